//! A link that a test can inspect and interfere with.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use bytes::{Bytes, BytesMut};
use farcall_core::class::TrafficClass;
use farcall_core::proto::message::Frame;
use farcall_core::proto::wire::{FrameType, Header, WireError};
use farcall_core::transport::{Counters, Description, FrameSource, Link, LinkEnd, LinkHandler};

/// One end of a link, with a record of the frames that it has sent.
#[derive(Debug)]
pub(crate) struct Tap {
    inner: Arc<dyn Link>,
    /// Whether sent frames are lost.
    pub(crate) deaf: AtomicBool,
    /// Whether arriving frames are lost.
    pub(crate) mute: AtomicBool,
    /// How many more frames it has room for.
    room: AtomicUsize,
    cut: AtomicBool,
    handler: OnceLock<Weak<dyn LinkHandler>>,
    sent: Mutex<Vec<Passed>>,
    arrived: Mutex<Vec<Passed>>,
    /// The classes for which it was told to mark packets.
    pub(crate) marks: Mutex<Vec<TrafficClass>>,
}

/// The type, call and length of a frame.
pub(crate) type Passed = (FrameType, u64, u32);

impl Tap {
    pub(crate) fn new(inner: Arc<dyn Link>) -> Arc<Self> {
        let flag = || AtomicBool::new(false);
        Arc::new(Self {
            inner,
            deaf: flag(),
            mute: flag(),
            room: AtomicUsize::new(usize::MAX),
            cut: flag(),
            handler: OnceLock::new(),
            sent: Mutex::default(),
            arrived: Mutex::default(),
            marks: Mutex::default(),
        })
    }

    /// Makes both directions lose all frames, without telling either side.
    pub(crate) fn silence(&self) {
        self.deaf.store(true, Ordering::Relaxed);
        self.mute.store(true, Ordering::Relaxed);
    }

    /// Takes so many more frames that are to be sent.
    pub(crate) fn take(&self, frames: usize) {
        self.room.store(frames, Ordering::Relaxed);
        if let Some(handler) = self.handler.get().and_then(Weak::upgrade) {
            handler.writable();
        }
    }

    /// Makes the link fail. This side is told so, and the other sees an end.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
        self.inner.close();
    }

    /// Returns the frames that were sent.
    pub(crate) fn sent(&self) -> Vec<Passed> {
        self.sent.lock().unwrap().clone()
    }

    /// Returns the frames that have arrived.
    pub(crate) fn arrived(&self) -> Vec<Passed> {
        self.arrived.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, kind: FrameType) -> usize {
        self.sent().iter().filter(|frame| frame.0 == kind).count()
    }
}

struct Source<'a>(&'a Tap, &'a mut dyn FrameSource);

impl FrameSource for Source<'_> {
    fn next(&mut self, max_payload: usize) -> Option<Frame> {
        let room = self.0.room.load(Ordering::Relaxed).checked_sub(1)?;
        let frame = self.1.next(max_payload)?;
        self.0.room.store(room, Ordering::Relaxed);
        let Header { kind, call, len, .. } = frame.header;
        self.0.sent.lock().unwrap().push((kind, call, len));
        Some(frame)
    }
}

impl Link for Tap {
    fn description(&self) -> &Description {
        self.inner.description()
    }

    fn max_frame(&self) -> usize {
        self.inner.max_frame()
    }

    fn start(self: Arc<Self>, handler: Arc<dyn LinkHandler>) {
        self.handler.set(Arc::downgrade(&handler)).unwrap();
        self.inner.clone().start(Arc::new(Tapped(self, handler)));
    }

    fn mark(&self, class: TrafficClass) {
        self.marks.lock().unwrap().push(class);
    }

    fn send(&self, source: &mut dyn FrameSource) {
        let mut source = Source(self, source);
        if self.deaf.load(Ordering::Relaxed) {
            while source.next(self.max_frame()).is_some() {}
        } else {
            self.inner.send(&mut source);
        }
    }

    fn close(&self) {
        self.inner.close();
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

struct Tapped(Arc<Tap>, Arc<dyn LinkHandler>);

impl Tapped {
    fn note(&self, header: &Header) {
        self.0.arrived.lock().unwrap().push((header.kind, header.call, header.len));
    }

    fn is_mute(&self) -> bool {
        self.0.mute.load(Ordering::Relaxed)
    }
}

impl LinkHandler for Tapped {
    fn receive(&self, header: Header, payload: Bytes) -> Result<(), WireError> {
        self.note(&header);
        if self.is_mute() { Ok(()) } else { self.1.receive(header, payload) }
    }

    fn buffer(&self, header: &Header) -> Result<Option<BytesMut>, WireError> {
        if self.is_mute() { Ok(None) } else { self.1.buffer(header) }
    }

    fn filled(&self, header: Header, buffer: BytesMut) -> Result<(), WireError> {
        self.note(&header);
        self.1.filled(header, buffer)
    }

    fn batch_end(&self) {
        self.1.batch_end();
    }

    fn writable(&self) {
        self.1.writable();
    }

    fn closed(&self, end: LinkEnd) {
        let cut = self.0.cut.load(Ordering::Relaxed);
        self.1.closed(if cut { LinkEnd::failed("cut by the test") } else { end });
    }
}
