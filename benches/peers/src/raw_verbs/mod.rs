//! The device used by hand: one queue pair, no protocol, no runtime but to sleep in.
//!
//! - `echo`: each message is answered by one as long.
//! - `read`: READs of the server's memory.
//! - `write`: WRITEs to the server's memory.
//! - `add`: the server's device counts.
//! - `swap`: the server's device compares a number, and replaces it.
//! - `chain`: each payload goes in SENDs of 8 KiB, answered by one byte: what long messages would be without READs.
//!
//! Beside `echo`, the server reads (`--load-method lend`) or writes (`fill`) memory of the client's, on a queue pair of its own with
//! `--by second`.

mod bulk;
mod end;

use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use farcall_rdma::testing::device::{Atomic, Cq, ReadTarget, RemoteAccess, RemoteRange, Work};
use hdrhistogram::Histogram;

use crate::Result;
use crate::args::{Args, Method, Role};
use crate::load;
use crate::report::{Moment, Report};
use end::{End, SLOT};

pub(crate) async fn run(args: Args) -> Result<Option<Report>> {
    match args.role {
        Role::Server => serve(&args).await.map(|()| None),
        Role::Client => {
            let socket = TcpStream::connect(&args.address)?;
            let end = End::connect(&args, socket).await?;
            Client::new(args, end)?.run().await.map(Some)
        }
    }
}

async fn serve(args: &Args) -> Result<()> {
    let listener = TcpListener::bind(&args.address)?;
    crate::listening(listener.local_addr()?)?;
    let mut end = End::connect(args, listener.accept()?.0).await?;
    let exposed = match args.method {
        Method::Read => Some(end.expose(args.size).await),
        Method::Write => Some(end.expose_words(args.size, RemoteAccess::WRITE).await),
        Method::Add | Method::Swap => {
            let access = RemoteAccess { read: false, write: false, atomics: true };
            Some(end.expose_words(size_of::<u64>(), access).await)
        }
        _ => None,
    };
    if let Some(exposed) = exposed {
        exposed?;
        // The device does the rest by itself.
        std::future::pending::<()>().await;
    }
    let parts = parts(args);
    let answer = end.message(if args.method == Method::Echo { args.size } else { 1 })?;
    let mut received = 0;
    loop {
        received += end.completed(Cq::Receive).await?;
        end.post((0..received / parts).map(|_| send(answer.clone())))?;
        received %= parts;
    }
}

/// How many messages a payload goes in.
fn parts(args: &Args) -> usize {
    if args.method == Method::Chain { args.size.div_ceil(SLOT) } else { 1 }
}

fn send(message: Bytes) -> Work {
    Work::Send { parts: [message, Bytes::new()], signaled: false, solicited: false }
}

struct Client {
    args: Args,
    end: End,
    kind: Kind,
    /// When those in flight began, if they are timed; they end in order.
    began: VecDeque<Option<Instant>>,
    begun: u64,
}

enum Kind {
    Messages { part: Bytes, parts: usize },
    Reads { targets: Vec<Arc<ReadTarget>>, from: RemoteRange },
    Writes { bytes: Bytes, to: RemoteRange },
    Atomics { atomic: Atomic, targets: Vec<Arc<ReadTarget>>, on: RemoteRange },
}

impl Client {
    fn new(args: Args, mut end: End) -> Result<Self> {
        let kind = match args.method {
            Method::Read => {
                let from = end.exposed()?;
                Kind::Reads { targets: end.targets(args.concurrency, args.size)?, from }
            }
            Method::Write => {
                let to = end.exposed()?;
                Kind::Writes { bytes: end.payload(args.size)?, to }
            }
            Method::Add | Method::Swap => {
                let atomic = match args.method {
                    Method::Add => Atomic::FetchAdd(1),
                    // It succeeds, however many do it at once.
                    _ => Atomic::CompareAndSwap { expected: 0, new: 0 },
                };
                let on = end.exposed()?;
                Kind::Atomics { atomic, targets: end.targets(args.concurrency, size_of::<u64>())?, on }
            }
            _ => Kind::Messages { part: end.message(args.size.min(SLOT))?, parts: parts(&args) },
        };
        Ok(Self { args, end, kind, began: VecDeque::new(), begun: 0 })
    }

    async fn run(mut self) -> Result<Report> {
        for _ in 0..self.args.concurrency {
            self.begin()?;
        }
        let mut times = load::empty();
        self.until(Duration::from_secs_f64(self.args.warmup), &mut times).await?;
        times.reset();
        self.end.note_load()?;
        let (from, began) = (Moment::now(0, &self.args), Instant::now());
        let done = self.until(Duration::from_secs_f64(self.args.seconds), &mut times).await?;
        self.end.note_load()?;
        let (took, to) = (began.elapsed(), Moment::now(done, &self.args));
        Ok(Report::new(self.args, from, to, took, &times))
    }

    /// Goes on for so long; how many have ended.
    async fn until(&mut self, time: Duration, times: &mut Histogram<u64>) -> Result<u64> {
        let cq = if matches!(self.kind, Kind::Messages { .. }) { Cq::Receive } else { Cq::Send };
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < time {
            for _ in 0..self.end.completed(cq).await? {
                if let Some(began) = self.began.pop_front().flatten() {
                    times.saturating_record(began.elapsed().as_nanos() as u64);
                }
                done += 1;
                self.begin()?;
            }
        }
        Ok(done)
    }

    fn begin(&mut self) -> Result<()> {
        let timed = self.begun.is_multiple_of(load::timed_of(&self.args).into());
        self.began.push_back(timed.then(Instant::now));
        self.begun += 1;
        match &self.kind {
            Kind::Messages { part, parts } => self.end.post((0..*parts).map(|_| send(part.clone()))),
            Kind::Reads { targets, from } => {
                let into = targets[self.begun as usize % targets.len()].clone();
                self.end.post([Work::Read { at: 0, len: into.len(), into, from: *from, tag: self.begun }])
            }
            Kind::Writes { bytes, to } => {
                self.end.post([Work::Write { from: bytes.clone().into(), to: *to, tag: self.begun }])
            }
            Kind::Atomics { atomic, targets, on } => {
                let into = targets[self.begun as usize % targets.len()].clone();
                self.end.post([Work::Atomic { atomic: *atomic, on: *on, into, tag: self.begun }])
            }
        }
    }
}
