//! A server of the command.

#[path = "../listening/mod.rs"]
mod listening;

use std::process::Command;

pub(crate) use listening::Server;

impl Server {
    /// Starts `farcall serve` on a port of its own.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut serve = Command::new(env!("CARGO_BIN_EXE_farcall"));
        Self::of(serve.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments))
    }
}
