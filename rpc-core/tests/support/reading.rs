//! A link whose peer can read this side's memory, like RDMA.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bytes::{Bytes, BytesMut};
use farcall_core::proto::inbox::Described;
use farcall_core::proto::message::{Bulk, Expose, Exposing, Frame};
use farcall_core::proto::wire::{Header, WireError};
use farcall_core::transport::{Counters, Description, Direction, FrameSource, Link, LinkEnd, LinkHandler};

/// The state that both ends share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    exposed: Mutex<HashMap<(usize, u32), Bytes>>,
    /// Whether reads stay undone.
    pub(crate) stall: AtomicBool,
    /// Whether there is no memory to read into.
    pub(crate) full: AtomicBool,
    /// The number of messages that were read.
    pub(crate) reads: AtomicUsize,
}

impl Shared {
    /// Returns how many messages are exposed.
    pub(crate) fn exposed(&self) -> usize {
        lock(&self.exposed).len()
    }
}

/// One end of the link.
#[derive(Debug)]
pub(crate) struct Reading {
    side: usize,
    inner: Arc<dyn Link>,
    shared: Arc<Shared>,
    asked: Mutex<Vec<Described>>,
    reader: OnceLock<Weak<Reader>>,
}

/// Returns the two ends of a link. Each can read what the other exposes.
pub(crate) fn over(ends: [Arc<dyn Link>; 2], shared: &Arc<Shared>) -> [Arc<dyn Link>; 2] {
    let mut side = 0;
    ends.map(|inner| {
        side += 1;
        Arc::new(Reading {
            side,
            inner,
            shared: shared.clone(),
            asked: Mutex::default(),
            reader: OnceLock::new(),
        }) as Arc<dyn Link>
    })
}

struct Source<'a>(&'a Reading, &'a mut dyn FrameSource);

impl FrameSource for Source<'_> {
    fn next(&mut self, max_payload: usize) -> Option<Frame> {
        self.1.next_exposing(max_payload, &mut Window(self.0))
    }
}

struct Window<'a>(&'a Reading);

impl Expose for Window<'_> {
    fn expose(&mut self, seq: u32, bulk: &Bulk) -> Exposing {
        let Bulk::Plain(bytes) = bulk else { return Exposing::Never };
        lock(&self.0.shared.exposed).insert((self.0.side, seq), bytes.clone());
        Exposing::Described(Bytes::copy_from_slice(&(self.0.side as u64).to_le_bytes()))
    }
}

impl Link for Reading {
    fn description(&self) -> &Description {
        self.inner.description()
    }

    fn max_frame(&self) -> usize {
        self.inner.max_frame()
    }

    fn start(self: Arc<Self>, handler: Arc<dyn LinkHandler>) {
        let reader = Arc::new(Reader(self, handler));
        reader.0.reader.set(Arc::downgrade(&reader)).expect("started once");
        reader.0.inner.clone().start(reader.clone());
    }

    fn send(&self, source: &mut dyn FrameSource) {
        self.inner.send(&mut Source(self, source));
    }

    fn close(&self) {
        self.inner.close();
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn stage(&self, _: Direction, pieces: &[Bytes]) -> Bulk {
        Bulk::Plain(pieces.concat().into())
    }

    fn pull(&self, _: Direction, described: Described) {
        lock(&self.asked).push(described);
        // Frames from before UP are handled when UP arrives by the other link, so no batch of this link ends then.
        if let Some(reader) = self.reader.get().and_then(Weak::upgrade) {
            tokio::spawn(async move {
                if reader.read() {
                    reader.1.batch_end();
                }
            });
        }
    }

    fn revoke(&self, seq: u32, _: bool) {
        lock(&self.shared.exposed).remove(&(self.side, seq)).expect("concealed once, when it was exposed");
    }
}

/// A handler that delivers what arrives, then reads what that has asked for.
struct Reader(Arc<Reading>, Arc<dyn LinkHandler>);

impl Reader {
    /// Reads what was asked for. Returns whether there was anything.
    fn read(&self) -> bool {
        let shared = &self.0.shared;
        if shared.stall.load(Ordering::Relaxed) {
            return false;
        }
        let asked = std::mem::take(&mut *lock(&self.0.asked));
        let any = !asked.is_empty();
        for Described { seq, begin, total, descriptor, .. } in asked {
            assert_eq!(usize::from(descriptor[0]), 3 - self.0.side, "the peer's memory");
            // It is no longer exposed if the link has fallen.
            let Some(rest) = lock(&shared.exposed).get(&(3 - self.0.side, seq)).cloned() else { continue };
            let whole: Bytes = [begin, rest].concat().into();
            assert_eq!(whole.len(), total);
            shared.reads.fetch_add(1, Ordering::Relaxed);
            let room = !shared.full.load(Ordering::Relaxed);
            self.1.pulled(seq, room.then_some(whole)).expect("an honest peer");
        }
        any
    }
}

impl LinkHandler for Reader {
    fn receive(&self, header: Header, payload: Bytes) -> Result<(), WireError> {
        self.1.receive(header, payload)
    }

    fn buffer(&self, header: &Header) -> Result<Option<BytesMut>, WireError> {
        self.1.buffer(header)
    }

    fn filled(&self, header: Header, buffer: BytesMut) -> Result<(), WireError> {
        self.1.filled(header, buffer)
    }

    fn batch_end(&self) {
        self.read();
        self.1.batch_end();
    }

    fn writable(&self) {
        self.1.writable();
    }

    fn closed(&self, end: LinkEnd) {
        self.1.closed(end);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
