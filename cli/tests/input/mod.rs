//! Running `farcall call` with lines on standard input.

use std::io::Write;
use std::process::{Command, Stdio};

/// Calls a method of the server at this address. An error is what the command complains of.
pub(crate) fn call(address: &str, method: &str, arguments: &[&str], input: &str) -> Result<String, String> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_farcall"))
        .args(["call", address, method])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command may have ended before it has read all of it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}
