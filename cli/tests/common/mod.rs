//! Running the command.

use std::process::{Command, Output};

pub(crate) fn farcall(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farcall")).args(arguments).output().unwrap()
}

pub(crate) fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn complaint(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
