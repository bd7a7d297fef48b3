//! Runs a program of the system for what it prints.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that a program may take. Those that are asked read a few files or netlink messages.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// The most that is read of what it prints.
const MOST: u64 = 1 << 20;

/// Returns what the program prints to standard output, if it succeeds in time. Blocks.
pub(super) fn run(program: &[&str], limit: Duration) -> io::Result<String> {
    let Some((name, arguments)) = program.split_first() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // An ordinary user's PATH leaves out the administrator's programs.
    let path = std::env::var("PATH").unwrap_or_default();
    let mut child = Command::new(name)
        .args(arguments)
        .env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"))
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let printed = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        // The pipe is closed behind what is read, so that the program ends.
        let read = printed.map(|printed| printed.take(MOST).read_to_end(&mut bytes));
        read.transpose().map(|_| bytes)
    });
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if began.elapsed() > limit {
            // It may have ended by itself just now.
            let _ = child.kill();
            break child.wait()?;
        }
        thread::sleep(Duration::from_millis(2));
    };
    let bytes = reader.join().map_err(|_| io::ErrorKind::Other)??;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
        false => Err(io::Error::from_raw_os_error(libc::EIO)),
    }
}
