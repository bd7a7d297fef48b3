//! Runs a program of the system for what it prints.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that a program may take. The programs here read a few files or netlink messages.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// The most that is kept of what it prints.
const MOST: u64 = 8 << 20;

/// Returns what the program prints to standard output, if it succeeds in time. Blocks.
///
/// The error has a number of the system's: `EIO` if the program has failed, unless it says that it may not do what it was asked
/// (`EPERM`), or that a device has nothing of the kind (`EOPNOTSUPP`).
///
/// A program that hangs in the kernel, as behind a card that does not answer, is left to itself.
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
        .stderr(Stdio::piped())
        .spawn()?;
    let (receiver, complaint) = (reading(child.stdout.take()), reading(child.stderr.take()));
    let began = Instant::now();
    let late = || io::Error::from_raw_os_error(libc::ETIMEDOUT);
    let Ok(bytes) = receiver.recv_timeout(limit) else {
        // The program may have ended just now. One that can't be killed is left alone.
        let _ = child.kill();
        thread::spawn(move || child.wait());
        return Err(late());
    };
    // Its output is closed, so it ends.
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => {
                return Ok(String::from_utf8_lossy(&bytes?).trim_end().to_owned());
            }
            Some(_) => {
                let complaint = complaint.recv_timeout(limit.saturating_sub(began.elapsed()));
                let complaint = complaint.ok().and_then(Result::ok).unwrap_or_default();
                return Err(io::Error::from_raw_os_error(errno(&String::from_utf8_lossy(&complaint))));
            }
            None if began.elapsed() > limit => {
                let _ = child.kill();
                thread::spawn(move || child.wait());
                return Err(late());
            }
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Reads all that a program prints, in a thread.
fn reading(printed: Option<impl Read + Send + 'static>) -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = printed.map_or(Ok(0), |mut printed| {
            (&mut printed).take(MOST).read_to_end(&mut bytes)?;
            // The rest is read, so that the program does not fail for it.
            io::copy(&mut printed, &mut io::sink())
        });
        // Nobody waits any more if it took too long.
        let _ = sender.send(read.map(|_| bytes));
    });
    receiver
}

/// Returns the error number for what a program that failed has printed to standard error. Their exit statuses differ.
fn errno(complaint: &str) -> i32 {
    let says = |texts: &[&str]| texts.iter().any(|text| complaint.contains(text));
    if says(&["not permitted", "Permission denied", "must be root"]) {
        libc::EPERM
    } else if says(&["not supported", "no stats available"]) {
        libc::EOPNOTSUPP
    } else {
        libc::EIO
    }
}
