//! The receiver of frames and events of a link, which hands them to its connection.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};

use super::Connection;
use crate::proto::outbox::Route;
use crate::proto::wire::{FrameType, Frames, Header, WireError};
use crate::transport::{BoxFuture, LinkEnd, LinkHandler};

/// The handler of a connection's link. A link that drops it without reporting its end has lost its task, with its
/// runtime. The stream link has it until its last bytes have left, and its socket serves nobody.
pub(super) struct LinkReceiver {
    connection: Arc<Connection>,
    route: Route,
    ended: AtomicBool,
}

impl LinkReceiver {
    pub(super) fn stream(connection: Arc<Connection>) -> Self {
        Self { connection, route: Route::Stream, ended: AtomicBool::new(false) }
    }

    pub(super) fn upgraded(connection: Arc<Connection>, epoch: u32) -> Self {
        Self { connection, route: Route::Upgraded(epoch), ended: AtomicBool::new(false) }
    }

    fn take_in(&self, frames: &mut impl Iterator<Item = (Header, Bytes)>) -> Result<(), WireError> {
        self.connection.heard.fetch_add(1, Ordering::Relaxed);
        self.check(self.connection.on_frames(self.route, frames))
    }

    fn check(&self, result: Result<(), WireError>) -> Result<(), WireError> {
        if let Err(error) = &result {
            self.connection.protocol_error(error);
        }
        result
    }
}

impl LinkHandler for LinkReceiver {
    fn receive(&self, header: Header, payload: Bytes) -> Result<(), WireError> {
        self.receive_all(&mut iter::once((header, payload)))
    }

    fn receive_all(&self, mut frames: &mut dyn Iterator<Item = (Header, Bytes)>) -> Result<(), WireError> {
        self.take_in(&mut frames)
    }

    fn receive_frames(&self, frames: &mut Frames) -> Result<(), WireError> {
        self.take_in(frames)
    }

    fn buffer(&self, header: &Header) -> Result<Option<BytesMut>, WireError> {
        // An upgraded link may fail while it holds a buffer, which the stream link would then need.
        if !is_bulk(header) || self.route != Route::Stream {
            return Ok(None);
        }
        let result = {
            let mut receiving = self.connection.receiving.lock();
            receiving.inbox.set_room(self.connection.sender.account().room());
            let order = receiving.inbox.order(self.route, header);
            let buffer = order.and_then(|_| receiving.inbox.buffer(header));
            receiving.measure();
            buffer
        };
        if let Err(error) = &result {
            self.connection.protocol_error(error);
        }
        result
    }

    fn filled(&self, header: Header, buffer: BytesMut) -> Result<(), WireError> {
        self.connection.heard.fetch_add(1, Ordering::Relaxed);
        self.check(self.connection.on_filled(header, buffer))
    }

    fn pulled(&self, seq: u32, whole: Option<Bytes>) -> Result<(), WireError> {
        self.connection.heard.fetch_add(1, Ordering::Relaxed);
        self.check(self.connection.on_pulled(seq, whole))
    }

    fn pause(&self) -> Option<BoxFuture<()>> {
        self.connection.sender.account().pause()
    }

    fn batch_end(&self) {
        self.connection.sender.flush();
        if self.route != Route::Stream {
            self.connection.sender.acknowledge_soon();
            self.connection.sender.account().judge();
        }
    }

    fn holds(&self, bytes: usize) {
        self.connection.receiving.lock().set_buffers(bytes);
    }

    fn amid_frame(&self) {
        self.connection.note_amid_message();
    }

    fn writable(&self) {
        self.connection.sender.flush_again();
    }

    fn closed(&self, end: LinkEnd) {
        self.ended.store(true, Ordering::Relaxed);
        match self.route {
            Route::Stream => {
                self.holds(0);
                self.connection.on_stream_closed(&end);
            }
            Route::Upgraded(epoch) => self.connection.on_upgraded_closed(epoch, &end),
        }
    }
}

impl Drop for LinkReceiver {
    fn drop(&mut self) {
        if !self.ended.load(Ordering::Relaxed) {
            self.closed(LinkEnd::failed("its task was dropped: the runtime that it ran on was shut down"));
        }
        if self.route == Route::Stream {
            self.connection.note_gone();
        }
    }
}

/// Whether the frame's payload is long enough to be read straight into its message.
fn is_bulk(header: &Header) -> bool {
    header.kind == FrameType::FRAGMENT && header.len > 4096
}
