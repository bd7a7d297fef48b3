//! `farcall perf` with the devices alone.
//!
//! Runs in the VM as root, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod common;
mod files;
mod serving;

use std::process::{Command, Stdio};

use serde_json::Value;

use common::{complaint, farcall, printed};
use files::path;
use serving::Server;

/// Measures the devices alone. Returns the results and the status.
fn by_verbs(server: &Server, name: &str, arguments: &[&str]) -> (Value, Option<i32>) {
    let json = path(name);
    let first = ["perf", &server.address, "--transport", "verbs", "--seconds", "0.5", "--json"];
    let output = farcall(&[&first[..], &[json.to_str().unwrap()], arguments].concat());
    let results =
        std::fs::read(json).unwrap_or_else(|_| panic!("{}{}", printed(&output), complaint(&output)));
    (serde_json::from_slice(&results).unwrap(), output.status.code())
}

#[test]
fn the_devices_alone_are_measured() {
    let server = Server::start(&[]);
    let cases = ["--pattern", "echo,read,write", "--size", "64,64K", "--in-flight", "1,8"];
    let (results, status) = by_verbs(&server, "verbs.json", &cases);
    assert_eq!(status, Some(0), "{results:#}");
    let outcomes = results["outcomes"].as_array().unwrap();
    assert_eq!(outcomes.len(), 12);
    for outcome in outcomes {
        assert!(outcome["calls"].as_u64().unwrap() > 0 && outcome["errors"] == 0, "{outcome:#}");
        assert!(outcome["transport"].as_str().unwrap().starts_with("verbs on rxe0 port 1 "), "{outcome:#}");
    }
}

#[test]
fn a_pattern_that_the_devices_alone_do_not_do_is_named() {
    let server = Server::start(&[]);
    let (results, status) =
        by_verbs(&server, "verbs-missing.json", &["--pattern", "read,lend", "--connections", "1,2"]);
    assert_eq!((status, results["outcomes"].as_array().unwrap().len()), (Some(1), 1), "{results:#}");
    let missing = results["missing"].to_string();
    assert!(
        missing.contains("echo (SEND), read and write") && missing.contains("one connection"),
        "{missing}"
    );
}

#[test]
fn few_devices_are_answered_at_once_and_they_end_with_their_callers() {
    let server = Server::start(&[]);
    let spawn = || {
        Command::new(env!("CARGO_BIN_EXE_farcall"))
            .args(["perf", &server.address, "--transport", "verbs", "--pattern", "read"])
            .args(["--seconds", "3000"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut callers = [spawn(), spawn()];
    let measured = || by_verbs(&server, "verbs-third.json", &["--pattern", "read"]).1 == Some(0);
    // They take a while to begin. One that is refused, because this has its place, tries again.
    while measured() {
        for caller in &mut callers {
            if caller.try_wait().unwrap().is_some() {
                *caller = spawn();
            }
        }
    }
    for caller in &mut callers {
        caller.kill().unwrap();
        caller.wait().unwrap();
    }
    // The server learns a little later that they have gone.
    while !measured() {}
}
