//! Runs random command lines: each ends with an exit status of the command's own, without a panic.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod commands;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use commands::COMMANDS;

/// Arguments and values of options. No server listens at the addresses, and some of the files exist.
const WORDS: [&str; 40] = [
    "127.0.0.1:1",
    "127.0.0.1:1",
    "127.0.0.1:1",
    "tcp://127.0.0.1:1",
    "rdma://127.0.0.1:1?rdma.port=2",
    "tcp://127.0.0.1:1?rdma.prot=2",
    "unix:none.sock",
    "http://127.0.0.1:1",
    "127.0.0.1:99999",
    "host.txt",
    "host.txt",
    "calls.jsonl",
    "schema.json",
    "settings.toml",
    "none/none",
    ".",
    "Kv/get",
    "{}",
    "{\"a\": [1, -1e400]}",
    "tcp",
    "tcp,rdma,verbs",
    "echo,read",
    "bash",
    "no-device",
    "rx_prio9_pause",
    "12",
    "1",
    "0",
    "-1",
    "0.01",
    "1e9",
    "NaN",
    "64,4K",
    "99999999999999999999",
    "name=value",
    "é",
    "\u{1f600}",
    "",
    "-",
    "--",
];

/// Returns the options in a command's help, with `=` after those that take a value. Leaves out `--watch`, which waits.
fn options(command: &str) -> Vec<String> {
    let help = Command::new(env!("CARGO_BIN_EXE_farcall")).args([command, "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let option = |line: &str| {
        let line = line.trim_start();
        let line = line.strip_prefix("-v, ").unwrap_or(line);
        let mut words = line.strip_prefix("--")?.split_whitespace();
        let name = words.next().filter(|name| *name != "watch")?;
        let has_value = words.next().is_some_and(|value| value.starts_with('<'));
        Some(format!("--{name}{}", if has_value { "=" } else { "" }))
    };
    help.lines().filter_map(option).collect()
}

/// Returns a directory with files that commands read, for them to write into.
fn directory() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lines");
    fs::create_dir_all(&directory).unwrap();
    let hosts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../transport-rdma/tests/hosts");
    fs::copy(hosts.join("broadcom-bnxt-re.txt"), directory.join("host.txt")).unwrap();
    fs::write(directory.join("settings.toml"), "[liveness]\nconnect_ms = 500\n").unwrap();
    fs::write(directory.join("calls.jsonl"), "").unwrap();
    fs::write(directory.join("schema.json"), "[]").unwrap();
    directory
}

/// Runs a command line to its end. Returns whether its arguments were accepted.
fn run(line: &[String], directory: &Path) -> bool {
    // Longer than any of these takes on a machine that has other things to do.
    const PATIENCE: Duration = Duration::from_secs(120);
    let complaint = directory.join("complaint");
    let mut child = Command::new(env!("CARGO_BIN_EXE_farcall"))
        .args(line)
        .current_dir(directory)
        .env_remove("FARCALL_TRANSPORT")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&complaint).unwrap())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{line:?} does not end");
        }
        thread::sleep(Duration::from_millis(1));
    };
    let complaint = fs::read_to_string(complaint).unwrap();
    assert!(!complaint.contains("panicked"), "{line:?}: {complaint}");
    assert!(matches!(status.code(), Some(0 | 1 | 2 | 64)), "{line:?}: {status}: {complaint}");
    // The parser's own complaints begin so.
    !complaint.starts_with("error: ")
}

#[test]
fn no_command_line_panics_when_it_runs() {
    let lines = if std::env::var_os("FARCALL_LONG").is_some() { 10_000 } else { 300 };
    let directory = directory();
    // `serve` would run until it is stopped.
    let commands: Vec<_> = COMMANDS.into_iter().filter(|command| *command != "serve").collect();
    let options: Vec<_> = commands.iter().copied().map(options).collect();
    assert!(options[0].iter().any(|option| option == "--recorded="), "{:?}", options[0]);
    let mut random = fastrand::Rng::with_seed(1);
    let mut ran = 0;
    for number in 0..lines {
        let at = number % commands.len();
        let mut line = vec![commands[at].to_owned()];
        let word = |random: &mut fastrand::Rng| WORDS[random.usize(..WORDS.len())];
        // Most commands begin with a server.
        line.extend(random.bool().then(|| WORDS[0].to_owned()));
        line.extend((0..random.usize(..3)).map(|_| word(&mut random).to_owned()));
        for _ in 0..random.usize(..2) {
            let Some(option) = random.choice(&options[at]) else { break };
            let value = if option.ends_with('=') { word(&mut random) } else { "" };
            line.push(format!("{option}{value}"));
        }
        // This test must not use a device.
        if commands[at] == "doctor" && !line.iter().any(|word| word.starts_with("--schema")) {
            line.insert(1, "--no-trial".to_owned());
        }
        ran += usize::from(run(&line, &directory));
    }
    assert!(ran > lines / 4, "{ran} of {lines}");
}
