//! The command lines that `--help` shows, with the key-value server of the examples.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod common;
mod listening;

use std::path::Path;
use std::process::{Command, Output};

use common::{complaint, farcall, printed};
use listening::Server;

/// Builds and starts the example `kv-server`.
fn start() -> Server {
    let farcall = Path::new(env!("CARGO_BIN_EXE_farcall"));
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--example", "kv-server"]).current_dir(workspace);
    // Beside the command, whatever directory and profile that is in.
    let profile = farcall.parent().unwrap();
    build.arg("--target-dir").arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    Server::of(Command::new(profile.join("examples/kv-server")).arg("127.0.0.1:0"))
}

/// Runs a command line of `--help`, with this server in place of the host and the package there.
fn run(line: &str, server: &Server) -> Output {
    let line = line.replace("db1", &server.address).replace("shop.v1", "farcall.example");
    let arguments = line.strip_prefix("farcall ").unwrap();
    let line = format!("exec '{}' {arguments}", env!("CARGO_BIN_EXE_farcall"));
    Command::new("sh").args(["-c", &line]).output().unwrap()
}

/// Returns the examples of a command's `--help` that begin like this.
fn shown(command: &str, beginning: &str) -> Vec<String> {
    let help = printed(&farcall(&[command, "--help"]));
    let lines = help.lines().map(str::trim).filter(|line| line.starts_with(beginning));
    // The effect of an example stands far behind it.
    let lines: Vec<_> = lines.map(|line| line.split("  ").next().unwrap().to_owned()).collect();
    assert!(!lines.is_empty(), "{beginning}: {help}");
    lines
}

#[test]
fn the_help_is_enough_to_use_a_server() {
    let server = start();
    let says = |line: &str| {
        let output = run(line, &server);
        assert_eq!(output.status.code(), Some(0), "{line}: {}", complaint(&output));
        printed(&output)
    };
    let list = says(&shown("list", "farcall list db1")[0]);
    assert!(list.lines().any(|line| line == "farcall.example.Kv"), "{list}");
    let described: Vec<_> = shown("describe", "farcall describe db1").iter().map(|line| says(line)).collect();
    assert_eq!(described.len(), 3);
    let put = "put(key: string, value: attachment) -> option<u64>";
    for text in &described {
        assert!(text.contains("farcall.example.Kv  postcard") && text.contains(put), "{text}");
    }
    assert!(described[2].contains("\"key\": "), "{}", described[2]);

    let call = |method: &str| {
        shown("call", "farcall call db1").into_iter().find(|line| line.contains(method)).unwrap()
    };
    // Busy machines take their time.
    let get = call("Kv/get").replace("--timeout 0.5", "--timeout 60");
    assert_eq!(says(&get), "null\n");
    assert_eq!(says(&call("Kv/put")), "null\n");
    assert_eq!(says(&get), "\"hello\"\n");
    // The value has 5 bytes.
    assert_eq!(says(&call("Kv/put")), "5\n");
}
