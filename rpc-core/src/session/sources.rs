//! The sources from which links take frames, while the sending lock is held.

use bytes::BytesMut;

use super::sender::Sender;
use super::sending::Sending;
use crate::proto::message::{Expose, ExposeNothing, Frame};
use crate::proto::outbox::{Outbox, Route};
use crate::transport::FrameSource;

/// The frames of the stream link: link frames, and session frames unless these go by another link.
pub(super) struct StreamSource<'a> {
    pub(super) sending: &'a mut Sending,
    pub(super) sender: &'a Sender,
}

impl FrameSource for StreamSource<'_> {
    fn next(&mut self, max_payload: usize) -> Option<Frame> {
        let Sending { outbox, control, peer_max_frame, .. } = &mut *self.sending;
        let frame = match control.pop_front() {
            Some(frame) => frame,
            None if outbox.route() == Route::Stream => {
                outbox.next(max_payload.min(*peer_max_frame), &mut ExposeNothing)?
            }
            None => return None,
        };
        Some(self.sender.stamp(frame, outbox))
    }

    fn next_small_frames(&mut self, empty: &mut BytesMut, max_payload: usize) -> bool {
        let Sending { outbox, control, peer_max_frame, .. } = &mut *self.sending;
        if !control.is_empty() {
            return true;
        }
        if outbox.is_empty() || outbox.route() != Route::Stream {
            return false;
        }
        let rx_seq = self.sender.acknowledge_now();
        if outbox.next_small_frames(empty, max_payload.min(*peer_max_frame), rx_seq) > 0 {
            self.sender.note_sent(outbox);
        }
        !outbox.is_empty()
    }

    fn held(&self) -> usize {
        self.sending.outbox.memory()
    }
}

/// The session frames of the upgraded link.
pub(super) struct UpgradedSource<'a> {
    pub(super) outbox: &'a mut Outbox,
    pub(super) epoch: u32,
    /// The longest payload of a frame. It must also fit the stream link, by which it may have to be sent again.
    pub(super) max_frame: usize,
    pub(super) sender: &'a Sender,
}

impl FrameSource for UpgradedSource<'_> {
    fn is_empty(&self) -> bool {
        self.outbox.is_empty()
    }

    fn next(&mut self, max_payload: usize) -> Option<Frame> {
        self.next_exposing(max_payload, &mut ExposeNothing)
    }

    fn next_exposing(&mut self, max_payload: usize, expose: &mut dyn Expose) -> Option<Frame> {
        if self.outbox.route() != Route::Upgraded(self.epoch) {
            return None;
        }
        let max_payload = max_payload.min(self.max_frame);
        let frame = self.outbox.next(max_payload, expose)?;
        Some(self.sender.stamp(frame, self.outbox))
    }
}
