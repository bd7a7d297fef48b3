//! Calls that are copied as they come, for `farcall record`.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::MetadataValue;
use crate::dynamic::{Kind, Payload};
use crate::middleware::{Request, Response};
use crate::{Result, Status};

/// A call that was captured: its arguments, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Captured {
    /// When the call came, in microseconds since the server was bound.
    pub at_us: u64,
    /// The name of the method, as in `shop.v1.Kv/put`.
    pub path: String,
    /// The name of the codec.
    pub codec: String,
    /// The hash of the method's signature.
    pub fingerprint: u64,
    /// The metadata of the call, if they were asked for. Binary ones are left out.
    pub metadata: Vec<(String, String)>,
    /// The arguments.
    pub arguments: Message,
    /// The time until the answer, in microseconds.
    pub took_us: u64,
    /// The answer.
    pub outcome: Outcome,
    /// How many calls were not captured before this one: they had no answer, because they were given up or their handlers panicked, or the
    /// recorder did not keep up.
    pub missed: u64,
}

/// A message as a codec has encoded it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The message itself.
    #[serde(with = "crate::attachment")]
    pub body: Bytes,
    /// The long byte strings that it refers to.
    pub attachments: Vec<Vec<u8>>,
}

impl Message {
    /// Returns a copy of what a codec has encoded.
    pub fn of(payload: &Payload) -> Self {
        let (body, attachments) = payload.clone().into_parts();
        Self { body, attachments: attachments.iter().map(|bytes| bytes.to_vec()).collect() }
    }

    /// Returns a copy for a codec to decode.
    pub fn payload(&self) -> Payload {
        Payload::new(self.body.clone(), self.attachments.iter().cloned().map(Bytes::from).collect())
    }

    fn len(&self) -> usize {
        self.body.len() + self.attachments.iter().map(Vec::len).sum::<usize>()
    }
}

/// The end of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Outcome {
    /// The result.
    Answer(Message),
    /// The error of the application.
    Error(Message),
    /// A status: the name of its code, and its message.
    Status(String, String),
}

/// Bytes of captured calls that wait for a recorder. More are missed.
const MOST: usize = 32 << 20;

/// Recorders that listen at a time.
const RECORDERS: usize = 8;

/// The recorders that listen.
#[derive(Debug, Default)]
pub(super) struct Taps {
    /// How many there are. A call costs one load while there are none.
    count: AtomicUsize,
    taps: Mutex<Vec<Arc<Tap>>>,
}

/// A recorder that listens.
#[derive(Debug)]
struct Tap {
    /// The beginning of the paths that it wants.
    only: String,
    with_metadata: bool,
    sender: Sender<Captured>,
    /// Bytes that wait.
    waiting: AtomicUsize,
    missed: AtomicU64,
}

/// Listens as long as it exists.
pub(super) struct Listening {
    taps: Arc<Taps>,
    tap: Arc<Tap>,
    calls: Receiver<Captured>,
}

impl Taps {
    fn taps(&self) -> MutexGuard<'_, Vec<Arc<Tap>>> {
        self.taps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to listen.
    pub(super) fn listen(self: &Arc<Self>, only: String, with_metadata: bool) -> Result<Listening> {
        let (sender, calls) = channel(1024);
        let tap =
            Tap { only, with_metadata, sender, waiting: AtomicUsize::new(0), missed: AtomicU64::new(0) };
        let tap = Arc::new(tap);
        let mut taps = self.taps();
        if taps.len() == RECORDERS {
            return Err(Status::resource_exhausted(format!("{RECORDERS} recorders listen already")));
        }
        taps.push(Arc::clone(&tap));
        self.count.store(taps.len(), Ordering::Relaxed);
        Ok(Listening { taps: Arc::clone(self), tap, calls })
    }

    /// Returns what to keep of a call until its answer. `None`: nobody wants it.
    pub(super) fn begin(&self, request: &Request, bound: Instant) -> Option<Begun> {
        if self.count.load(Ordering::Relaxed) == 0 || request.kind() != Kind::Unary {
            return None;
        }
        // Lent memory is not in the message, and is gone when the call is repeated.
        let arguments = request.arguments();
        if !arguments.loans().is_empty() {
            return None;
        }
        let path = request.path();
        let taps: Vec<_> = self.taps().iter().filter(|tap| path.starts_with(&tap.only)).cloned().collect();
        if taps.is_empty() {
            return None;
        }
        let info = request.info();
        let fingerprint = info.methods.iter().find(|method| method.name == request.method())?.fingerprint;
        let metadata = request.metadata().iter().filter_map(|(name, value)| match value {
            MetadataValue::Ascii(value) => Some((name.to_owned(), value.to_owned())),
            MetadataValue::Binary(_) => None,
        });
        let began = Instant::now();
        let captured = Captured {
            at_us: (began - bound).as_micros() as u64,
            path,
            codec: info.codec.clone().into_owned(),
            fingerprint,
            metadata: if taps.iter().any(|tap| tap.with_metadata) { metadata.collect() } else { Vec::new() },
            arguments: Message::of(arguments),
            took_us: 0,
            outcome: Outcome::Status(String::new(), String::new()),
            missed: 0,
        };
        Some(Begun { taps, captured, began })
    }
}

/// A call that waits for its answer.
pub(super) struct Begun {
    taps: Vec<Arc<Tap>>,
    captured: Captured,
    began: Instant,
}

impl Begun {
    /// Gives the call to those who want it.
    pub(super) fn end(mut self, answered: &Result<Response, Status>) {
        let taps = std::mem::take(&mut self.taps);
        self.captured.outcome = match answered {
            Err(status) => Outcome::Status(status.code().name().to_owned(), status.message().to_owned()),
            Ok(response) => match response.answer() {
                Some(Ok(payload)) => Outcome::Answer(Message::of(payload)),
                Some(Err(payload)) => Outcome::Error(Message::of(payload)),
                None => return,
            },
        };
        self.captured.took_us = self.began.elapsed().as_micros() as u64;
        for tap in &taps {
            tap.give(&self.captured);
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        for tap in &self.taps {
            tap.missed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Tap {
    fn give(&self, captured: &Captured) {
        let bytes = captured.bytes();
        let mut captured = captured.clone();
        if !self.with_metadata {
            captured.metadata.clear();
        }
        captured.missed = self.missed.swap(0, Ordering::Relaxed);
        let missed = captured.missed;
        let waiting = self.waiting.fetch_add(bytes, Ordering::Relaxed);
        if waiting + bytes > MOST || self.sender.try_send(captured).is_err() {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.missed.fetch_add(missed + 1, Ordering::Relaxed);
        }
    }
}

impl Captured {
    fn bytes(&self) -> usize {
        let answer = match &self.outcome {
            Outcome::Answer(message) | Outcome::Error(message) => message.len(),
            Outcome::Status(_, message) => message.len(),
        };
        self.arguments.len() + answer
    }
}

impl Listening {
    /// Waits for the next call.
    pub(super) async fn next(&mut self) -> Option<Captured> {
        let captured = self.calls.recv().await?;
        self.tap.waiting.fetch_sub(captured.bytes(), Ordering::Relaxed);
        Some(captured)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut taps = self.taps.taps();
        taps.retain(|tap| !Arc::ptr_eq(tap, &self.tap));
        self.taps.count.store(taps.len(), Ordering::Relaxed);
    }
}
