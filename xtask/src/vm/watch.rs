//! Watching machines until their commands have ended.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use super::qemu::{Channels, Machine};
use crate::failure::{Failure, Result};
use crate::host;

/// How long a guest may take to boot: seconds, on a machine that has nothing else to do.
const BOOT_LIMIT: Duration = Duration::from_secs(300);

/// How long one host of a pair may go on when the other's command has failed.
const GRACE: Duration = Duration::from_secs(10);

/// A piece of a command's output: a line with its newline, or what there was when no newline came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    /// The host's name if it is one of a pair.
    pub(crate) host: Option<&'static str>,
    pub(crate) stream: Stream,
    pub(crate) text: &'a [u8],
}

/// One of a command's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// An event of a guest.
enum Event {
    Output(Stream, Vec<u8>),
    Ready,
    Exit(u8),
    /// Its status channel has ended, and with it QEMU.
    Gone,
}

struct Watched {
    machine: Machine,
    deadline: Instant,
    ready: bool,
    status: Option<u8>,
}

/// Hands on the output of all machines until each one's command has ended; returns the first exit status that
/// is not 0, or 0. Anything else that ends a machine ends them all.
pub(super) fn watch(
    machines: Vec<(Machine, Channels)>,
    timeout: Duration,
    mut line: impl FnMut(Line<'_>) -> io::Result<()>,
) -> Result<u8> {
    let paired = machines.len() > 1;
    let (sender, events) = mpsc::sync_channel(64);
    let mut watched = Vec::new();
    for (host, (machine, channels)) in machines.into_iter().enumerate() {
        listen(host, channels, &sender);
        watched.push(Watched { machine, deadline: Instant::now() + BOOT_LIMIT, ready: false, status: None });
    }
    drop(sender);

    let mut watch = Watch { watched, timeout, bad: None };
    let mut outcome = Ok(());
    // The channel ends when every machine has, so what they wrote last is handed on even after a failure.
    loop {
        let step = match events.recv_timeout(host::TICK) {
            Ok((host, Event::Output(stream, text))) => {
                let host = paired.then(|| watch.watched[host].machine.name);
                line(Line { host, stream, text: &text })
                    .map_err(|error| Failure::failed(format!("handing on the output: {error}")))
            }
            Ok((host, event)) => watch.step(host, event),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let step = step.and_then(|()| host::check_signals()).and_then(|()| watch.check_deadlines());
        if let Err(failure) = step
            && outcome.is_ok()
        {
            outcome = Err(failure);
            watch.watched.iter_mut().for_each(|watched| watched.machine.kill());
        }
    }
    outcome.map(|()| watch.bad.map_or(0, |(status, _)| status))
}

struct Watch {
    watched: Vec<Watched>,
    timeout: Duration,
    /// The first exit status that is not 0, and when the grace that follows it ends.
    bad: Option<(u8, Instant)>,
}

impl Watch {
    fn step(&mut self, host: usize, event: Event) -> Result<()> {
        let watched = &mut self.watched[host];
        match event {
            Event::Output(..) => {}
            Event::Ready => {
                watched.ready = true;
                watched.deadline = Instant::now() + self.timeout;
            }
            Event::Exit(status) => {
                watched.status = Some(status);
                watched.machine.kill();
                if status != 0 {
                    self.bad.get_or_insert_with(|| (status, Instant::now() + GRACE));
                }
            }
            Event::Gone if watched.status.is_none() => {
                let (name, console) = (watched.machine.name, watched.machine.console_tail());
                return Err(Failure::machine(format!("{name}: the guest ended before its command{console}")));
            }
            Event::Gone => {}
        }
        Ok(())
    }

    fn check_deadlines(&mut self) -> Result<()> {
        let now = Instant::now();
        for host in 0..self.watched.len() {
            let watched = &mut self.watched[host];
            if watched.status.is_some() {
                continue;
            }
            if self.bad.is_some_and(|(_, grace)| now >= grace) {
                watched.status = Some(0);
                watched.machine.kill();
            } else if now >= watched.deadline {
                return Err(self.late(host));
            }
        }
        Ok(())
    }

    fn late(&self, host: usize) -> Failure {
        let watched = &self.watched[host];
        let (name, console) = (watched.machine.name, watched.machine.console_tail());
        if watched.ready {
            let limit = self.timeout.as_secs();
            Failure::timeout(format!("{name}: the command did not end within {limit} s{console}"))
        } else {
            let limit = BOOT_LIMIT.as_secs();
            Failure::machine(format!("{name}: the guest did not boot within {limit} s{console}"))
        }
    }
}

/// Turns what arrives on a machine's channels into events, in threads that end with the machine.
fn listen(host: usize, channels: Channels, events: &SyncSender<(usize, Event)>) {
    for (stream, channel) in [(Stream::Out, channels.stdout), (Stream::Err, channels.stderr)] {
        let events = events.clone();
        std::thread::spawn(move || {
            host::read_lines(channel, |line| {
                events.send((host, Event::Output(stream, line.to_vec()))).is_ok()
            });
        });
    }
    let events = events.clone();
    std::thread::spawn(move || {
        host::read_lines(channels.status, |line| match parse_status(line) {
            Some(event) => events.send((host, event)).is_ok(),
            None => true,
        });
        // Fails if nobody watches any more.
        let _ = events.send((host, Event::Gone));
    });
}

fn parse_status(line: &[u8]) -> Option<Event> {
    let line = str::from_utf8(line).ok()?.trim_end();
    match line.split_once(' ') {
        None if line == "ready" => Some(Event::Ready),
        Some(("exit", status)) => status.parse().ok().map(Event::Exit),
        _ => None,
    }
}
