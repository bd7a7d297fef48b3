//! One end of a link, which a test holds.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;

use crate::proto::message::Frame;
use crate::proto::wire::{Header, WireError};
use crate::transport::{FrameSource, Link, LinkEnd, LinkHandler};

/// A guard against hangs; no test takes long.
const PATIENCE: Duration = Duration::from_secs(60);

/// One end of a link that has been started. It sends what a test queues, as the link has room, and records what arrives. Dropping
/// it drops the link.
pub struct End {
    link: Arc<dyn Link>,
    recorder: Arc<Recorder>,
    events: mpsc::UnboundedReceiver<Event>,
}

/// An event of a link.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A frame has arrived.
    Frame(Header, Bytes),
    /// The link has ended.
    End(LinkEnd),
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End").field("link", &self.link).finish_non_exhaustive()
    }
}

impl End {
    /// Starts a link.
    pub fn start(link: Arc<dyn Link>) -> Self {
        Self::start_with(link, false)
    }

    /// Starts a link, and lends it buffers for payloads longer than 4 KiB.
    pub fn start_lending(link: Arc<dyn Link>) -> Self {
        Self::start_with(link, true)
    }

    fn start_with(link: Arc<dyn Link>, lends: bool) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let recorder =
            Recorder { link: Arc::downgrade(&link), queue: Mutex::default(), events: sender, lends };
        let recorder = Arc::new(recorder);
        Arc::clone(&link).start(recorder.clone());
        Self { link, recorder, events }
    }

    /// Returns the link.
    pub fn link(&self) -> &Arc<dyn Link> {
        &self.link
    }

    /// Queues frames, and sends as many as the link takes. The others follow when there is room.
    pub fn send(&self, frames: impl IntoIterator<Item = Frame>) {
        self.recorder.queue().0.extend(frames);
        self.recorder.writable();
    }

    /// Returns how many frames wait for room.
    pub fn unsent(&self) -> usize {
        self.recorder.queue().0.len()
    }

    /// Returns the next event. `None` if the link was dropped without one about its end.
    ///
    /// # Panics
    ///
    /// If nothing happens for a minute.
    pub async fn next(&mut self) -> Option<Event> {
        tokio::time::timeout(PATIENCE, self.events.recv()).await.expect("something must happen to the link")
    }

    /// Returns an event that has happened, if any was not returned yet.
    pub fn try_next(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Returns the next frame.
    ///
    /// # Panics
    ///
    /// If the link ends before one arrives, or nothing happens for a minute.
    pub async fn frame(&mut self) -> (Header, Bytes) {
        match self.next().await {
            Some(Event::Frame(header, payload)) => (header, payload),
            Some(Event::End(end)) => panic!("the link ended early: {end}"),
            None => panic!("the link forgot its handler before its end"),
        }
    }

    /// Takes frames until the link ends, and returns how it did.
    ///
    /// # Panics
    ///
    /// If the link does not say how it ended, or nothing happens for a minute.
    pub async fn end(&mut self) -> LinkEnd {
        loop {
            match self.next().await.expect("a link must not forget its handler before its end") {
                Event::Frame(..) => {}
                Event::End(end) => return end,
            }
        }
    }
}

struct Recorder {
    link: Weak<dyn Link>,
    queue: Mutex<Queue>,
    events: mpsc::UnboundedSender<Event>,
    lends: bool,
}

impl Recorder {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, event: Event) {
        // Fails if the test has seen enough and ended.
        let _ = self.events.send(event);
    }
}

impl LinkHandler for Recorder {
    fn receive(&self, header: Header, payload: Bytes) -> Result<(), WireError> {
        self.note(Event::Frame(header, payload));
        Ok(())
    }

    fn buffer(&self, header: &Header) -> Result<Option<BytesMut>, WireError> {
        Ok((self.lends && header.len > 4096).then(|| BytesMut::with_capacity(header.len as usize)))
    }

    fn writable(&self) {
        if let Some(link) = self.link.upgrade() {
            link.send(&mut *self.queue());
        }
    }

    fn closed(&self, end: LinkEnd) {
        self.note(Event::End(end));
    }
}

/// Frames to be sent.
#[derive(Default)]
pub(super) struct Queue(VecDeque<Frame>);

impl<const N: usize> From<[Frame; N]> for Queue {
    fn from(frames: [Frame; N]) -> Self {
        Self(frames.into())
    }
}

impl FrameSource for Queue {
    fn next(&mut self, max_payload: usize) -> Option<Frame> {
        let frame = self.0.pop_front()?;
        assert!(frame.header.len as usize <= max_payload, "a link must take its own longest frame");
        Some(frame)
    }
}
