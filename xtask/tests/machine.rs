//! The VM from outside: what `cargo xtask vm` promises to whoever runs it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn vm(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("vm").args(args).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn assert_status(output: &Output, status: i32) {
    assert_eq!(output.status.code(), Some(status), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// The directory that a VM shares with this machine.
fn shared() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("vm").join("out")
}

/// The processes and temporary files of the `xtask` process `id`: all have a path of the same form in them.
fn left_behind(id: u32) -> Vec<String> {
    let mark = format!("xtask-{id}-");
    let list =
        |dir: &Path| fs::read_dir(dir).expect("a readable directory").flatten().map(|entry| entry.path());
    let processes = list(Path::new("/proc")).filter_map(|dir| fs::read(dir.join("cmdline")).ok());
    let files = list(&std::env::temp_dir()).map(|path| path.display().to_string());
    processes.map(|line| text(&line)).chain(files).filter(|what| what.contains(&mark)).collect()
}

#[test]
fn a_commands_status_directory_and_variables_come_through() {
    let output = vm(&["--", "sh", "-c", r#"pwd; echo "$FARCALL_X $RUST_X $OTHER" >&2; exit 7"#])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("FARCALL_X", "it's here")
        .env("RUST_X", "a\nb")
        .env("OTHER", "not carried")
        .output()
        .unwrap();
    assert_status(&output, 7);
    assert_eq!(text(&output.stdout).trim_end(), env!("CARGO_MANIFEST_DIR"));
    let stderr = text(&output.stderr);
    // The very first VM is preceded by word of what is being installed.
    assert!(stderr.ends_with("it's here a\nb \n"), "{stderr}");
}

#[test]
fn output_is_intact_and_only_the_shared_directory_outlasts_the_vm() {
    let name = format!("random-{}", std::process::id());
    let lost = std::env::temp_dir().join(&name);
    let script = r#"
        head -c 1048576 /dev/urandom >"$1" && cp "$1" "$FARCALL_VM_OUT/$2" && cat "$1"
        cat "$1" >&2"#;
    let output = vm(&["--", "sh", "-c", script, "sh", lost.to_str().unwrap(), &name]).output().unwrap();
    let kept = shared().join(&name);
    let expected = fs::read(&kept).unwrap();
    fs::remove_file(&kept).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(expected.len(), 1 << 20);
    assert!(output.stdout == expected, "standard output differs");
    assert!(output.stderr == expected, "standard error differs");
    assert!(!lost.exists(), "the VM has written to this machine");
}

#[test]
fn an_ordinary_user_is_held_to_the_limit_on_locked_memory() {
    let vm = |limit: &str, script: &str| vm(&["--user", "--memlock", limit, "--", "sh", "-c", script]);
    let server = "ibv_rc_pingpong -g 1 --iters 1 --rx-depth 1 --size 4194304";
    let limited = vm("1024", server).output().unwrap();
    assert_status(&limited, 1);
    assert!(text(&limited.stderr).contains("Couldn't register MR"), "{}", text(&limited.stderr));

    let script = format!("{server} & until {server} 192.168.77.1; do sleep 0.1; done; wait $!");
    assert_status(&vm("8192", &script).output().unwrap(), 0);
}

#[test]
fn there_can_be_a_machine_without_a_device() {
    let script = r#"ls /sys/class/infiniband; echo "$FARCALL_RDMA""#;
    let output = vm(&["--no-rdma", "--", "sh", "-c", script]).output().unwrap();
    assert_status(&output, 0);
    assert_eq!(text(&output.stdout), "\n");
}

#[test]
fn a_command_that_takes_too_long_is_ended_and_what_it_said_is_kept() {
    // Long enough for a shell to begin in a machine that has just booted, on a host that has other things to do.
    let output = vm(&["--timeout", "15", "--", "sh", "-c", "printf begun; sleep 1000"]).output().unwrap();
    assert_status(&output, 124);
    assert_eq!(text(&output.stdout), "begun");
    assert!(text(&output.stderr).contains("did not end within 15 s"), "{}", text(&output.stderr));
}

#[test]
fn a_process_that_a_command_leaves_running_does_not_keep_the_vm() {
    let output = vm(&["--timeout", "500", "--", "sh", "-c", "sleep 1000 & exit 5"]).output().unwrap();
    assert_status(&output, 5);
}

#[test]
fn a_kernel_that_panics_is_told_from_a_command_that_fails() {
    let output = vm(&["--", "sh", "-c", "echo c >/proc/sysrq-trigger"]).output().unwrap();
    assert_status(&output, 125);
    assert!(text(&output.stderr).contains("Kernel panic"), "{}", text(&output.stderr));
}

#[test]
fn a_machine_that_cannot_start_is_told_too() {
    let output = vm(&["--memory", "1", "--", "true"]).output().unwrap();
    assert_status(&output, 125);
}

#[test]
fn a_signal_ends_the_vm_and_nothing_is_left_behind() {
    let mut xtask = vm(&["--", "sh", "-c", "echo up; sleep 1000"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(xtask.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    assert!(!left_behind(xtask.id()).is_empty(), "the check below would not find a thing");

    let kill = Command::new("kill").args(["-TERM", &xtask.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(xtask.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(left_behind(xtask.id()), [""; 0]);
}

#[test]
fn hosts_of_a_pair_run_side_by_side_and_the_first_bad_status_counts() {
    // The second waits for a byte of the first, which is sent once.
    let listen = "echo $FARCALL_HOST; busybox nc -l -p 9999; exit 3";
    let connect = "echo $FARCALL_HOST; until echo done | busybox nc 10.99.0.1 9999; do sleep 0.1; done";
    let output = vm(&["--pair", listen, connect]).output().unwrap();
    assert_status(&output, 3);
    let stdout = text(&output.stdout);
    let mut lines: Vec<_> = stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[h1] 1", "[h1] done", "[h2] 2"]);
}

#[test]
fn a_host_that_fails_does_not_wait_for_the_other() {
    let output = vm(&["--pair", "sleep 300; echo late", "exit 4"]).output().unwrap();
    assert_status(&output, 4);
    assert_eq!(text(&output.stdout), "");
}
