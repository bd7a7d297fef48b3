//! The `farcall` command as a shell runs it: what it prints, and its exit status.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::process::{Command, Output};

fn farcall(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farcall")).args(arguments).output().unwrap()
}

#[test]
fn it_says_its_version() {
    for flag in ["--version", "-V"] {
        let output = farcall(&[flag]);
        assert!(output.status.success());
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            concat!("farcall ", env!("CARGO_PKG_VERSION"), "\n")
        );
    }
}

#[test]
fn wrong_arguments_are_named_and_end_with_status_2() {
    for (arguments, named) in [
        (&[][..], "a command is missing"),
        (&["conect"], "no command `conect`"),
        (&["connect"], "the address is missing"),
        (&["check", "--fast"], "`--fast`"),
    ] {
        let output = farcall(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(said.contains(named) && said.contains("usage:"), "{arguments:?}: {said}");
    }
}
