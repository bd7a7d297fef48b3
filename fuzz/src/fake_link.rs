//! A link whose far end is the fuzzer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use farcall_core::proto::wire::{FrameType, Header, WireError};
use farcall_core::transport::{Counters, Description, FrameSource, Link, LinkEnd, LinkHandler};

use crate::script::Script;

const MAX_FRAME: usize = 16 << 10;

/// A link that delivers what a test says, on the test's own thread, and checks that farcall sends whole frames.
#[derive(Default)]
pub(crate) struct FakeLink {
    handler: Mutex<Option<Arc<dyn LinkHandler>>>,
    is_closed: AtomicBool,
}

impl FakeLink {
    /// Delivers a frame. False: the link is over.
    pub(crate) fn deliver(&self, header: Header, payload: Bytes) -> bool {
        let Some(handler) = self.handler() else { return false };
        // Transports check headers before they deliver.
        if Header::decode(&header.encode()).is_err() {
            return true;
        }
        let delivered = self.give(&*handler, header, payload);
        handler.batch_end();
        delivered.is_ok() && !self.is_closed.load(Ordering::Relaxed)
    }

    /// Delivers as TCP does: a FRAGMENT goes straight to where it belongs.
    fn give(&self, handler: &dyn LinkHandler, header: Header, payload: Bytes) -> Result<(), WireError> {
        if header.kind == FrameType::FRAGMENT
            && let Some(mut buffer) = handler.buffer(&header)?
        {
            buffer.extend_from_slice(&payload);
            return handler.filled(header, buffer);
        }
        handler.receive(header, payload)
    }

    /// Delivers the frames of a script, numbered from `seq` on, and lets `run` do what each one asks for.
    pub(crate) fn play(&self, data: &[u8], mut seq: u32, mut run: impl FnMut()) {
        for mut step in Script::new(data) {
            if !step.header.kind.is_link() {
                if !step.wrong_number {
                    seq = seq.wrapping_add(1);
                }
                step.header.seq = seq;
            }
            let goes_on = self.deliver(step.header, step.payload);
            run();
            if !goes_on {
                break;
            }
        }
    }

    /// Ends the link as a network does.
    pub(crate) fn end(&self) {
        let handler = self.handler.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handler) = handler {
            handler.closed(LinkEnd::orderly());
        }
    }

    fn handler(&self) -> Option<Arc<dyn LinkHandler>> {
        self.handler.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Debug for FakeLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeLink")
    }
}

impl Link for FakeLink {
    fn description(&self) -> &Description {
        static DESCRIPTION: Description = Description {
            transport: "fake",
            local: None,
            peer: None,
            device: String::new(),
            busy_polls: false,
        };
        &DESCRIPTION
    }

    fn max_frame(&self) -> usize {
        MAX_FRAME
    }

    fn start(self: Arc<Self>, handler: Arc<dyn LinkHandler>) {
        *self.handler.lock().unwrap_or_else(PoisonError::into_inner) = Some(handler);
    }

    fn send(&self, source: &mut dyn FrameSource) {
        let mut small = BytesMut::new();
        while source.next_small_frames(&mut small, MAX_FRAME) {
            if !small.is_empty() {
                let mut frames = farcall_core::proto::wire::Frames::new(small.split().freeze());
                (&mut frames).for_each(drop);
                assert_eq!(frames.malformed(), None, "farcall sends whole frames");
                continue;
            }
            let Some(frame) = source.next(MAX_FRAME) else { break };
            let len: usize = frame.pieces.slices().map(<[u8]>::len).sum();
            assert_eq!(frame.header.len as usize, len, "a header says how long its payload is");
            assert_eq!(
                Header::decode(&frame.header.encode()),
                Ok(frame.header),
                "farcall sends valid headers"
            );
        }
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}
