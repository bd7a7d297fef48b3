//! A reader that has gone, as `head` does, is no failure.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod serving;

use std::io::pipe;
use std::process::{Command, Stdio};

use serving::Server;

/// Runs the command with nobody who reads. Returns its exit status.
#[track_caller]
fn unread(arguments: &[&str]) -> i32 {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_farcall"));
    let output = command.args(arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    output.status.code().unwrap_or_else(|| panic!("{arguments:?}: {:?}", output.status))
}

#[test]
fn commands_about_no_server_end_quietly() {
    for arguments in [
        &["--help"][..],
        &["help", "perf"],
        &["doctor", "--help"],
        &["doctor", "--schema"],
        &["completions", "bash"],
        &["explain"],
        &["explain", "no-device"],
    ] {
        assert_eq!(unread(arguments), 0, "{arguments:?}");
    }
}

#[test]
fn the_doctor_keeps_the_status_of_what_it_found() {
    let hosts = concat!(env!("CARGO_MANIFEST_DIR"), "/../transport-rdma/tests/hosts");
    for (host, status) in [("no-driver", 2), ("mellanox-connectx5-roce", 1), ("soft-roce", 0)] {
        let record = format!("{hosts}/{host}.txt");
        for more in [&[][..], &["--json"]] {
            assert_eq!(unread(&[&["doctor", "--recorded", &record], more].concat()), status, "{host}");
        }
    }
}

#[test]
fn commands_that_ask_a_server_end_quietly() {
    let server = Server::start(&["--admin"]);
    let address = server.address.as_str();
    for arguments in [
        &["list", address][..],
        &["describe", address],
        &["describe", address, "--json"],
        &["call", address, "Perf/stream_down", "{\"count\": 1000, \"size\": 1000}"],
        &["call", address, "Perf/echo", "{\"data\": \"hello\"}"],
        &["health", address],
        &["top", address, "--count", "1", "--every", "0.1"],
        &["top", address, "--every", "0.1", "--json"],
        &["perf", address, "--transport", "tcp", "--seconds", "0.05"],
        &["connect", address],
    ] {
        assert_eq!(unread(arguments), 0, "{arguments:?}");
    }
}
