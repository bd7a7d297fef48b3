//! A program that says where it listens.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A server's process, until it is dropped.
pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn of(program: &mut Command) -> Self {
        let mut process = program.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { process, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
