//! The receiving half of a session: order, fragments, described messages and links that come and go.

use bytes::Bytes;
use farcall_core::proto::inbox::{Arrived, Inbox, Limits, Order, Taken};
use farcall_core::proto::outbox::Route;
use farcall_core::proto::wire::{Up, WireError};

use crate::script::{Script, Step};

const LIMITS: Limits = Limits { max_message: 64 << 10, max_assembly: 128 << 10 };

/// Plays the input as frames and events of a session and holds its inbox to its limits.
pub fn inbox(data: &[u8]) {
    let mut session = Session { inbox: Inbox::new(LIMITS), epoch: 0, up: false, described: Vec::new() };
    session.inbox.allow_described();
    for step in Script::new(data) {
        if session.step(step).is_err() {
            break;
        }
    }
}

struct Session {
    inbox: Inbox,
    /// The number of the last link that was tried.
    epoch: u32,
    /// Whether the session is on that link.
    up: bool,
    /// The frames whose rest is being read.
    described: Vec<u32>,
}

impl Session {
    fn step(&mut self, step: Step) -> Result<(), WireError> {
        match step.event {
            0 => {
                self.epoch += 1;
                self.inbox.expect(self.epoch);
            }
            1 => {
                let up = Up { epoch: self.epoch, first_seq: self.inbox.rx_seq().wrapping_add(1) };
                for (header, payload) in self.inbox.up(up)? {
                    self.inbox.order(Route::Upgraded(self.epoch), &header)?;
                    let taken = self.inbox.take(&header, payload)?;
                    self.check(taken);
                }
                self.up = true;
            }
            2 => {
                self.up = false;
                let pulls = self.inbox.freeze();
                assert!(pulls.iter().all(|pull| self.described.contains(&pull.seq)));
            }
            3 => self.inbox.cancel(step.header.call),
            4 => {
                let Some(seq) = self.described.pop() else { return Ok(()) };
                let whole = step.payload.len().is_multiple_of(2).then_some(step.payload);
                self.inbox.pulled(seq, whole);
            }
            _ => self.frame(step)?,
        }
        Ok(())
    }

    fn frame(&mut self, step: Step) -> Result<(), WireError> {
        let Step { mut header, payload, by_stream, wrong_number, .. } = step;
        if !wrong_number {
            header.seq = self.inbox.rx_seq().wrapping_add(1);
        }
        let route = if self.epoch == 0 || by_stream { Route::Stream } else { Route::Upgraded(self.epoch) };
        match self.inbox.order(route, &header)? {
            Order::Next => {
                let taken = self.take(header, payload)?;
                self.check(taken);
            }
            Order::Hold => assert!(self.inbox.hold(header, payload), "the input is short"),
            Order::Discard => {}
        }
        Ok(())
    }

    /// Takes the frame in, through the inbox's own buffer where it lends one.
    fn take(
        &mut self,
        header: farcall_core::proto::wire::Header,
        payload: Bytes,
    ) -> Result<Taken, WireError> {
        use farcall_core::proto::wire::{FrameType, flags};
        let lends = header.kind == FrameType::FRAGMENT
            && header.flags & flags::ABANDONED == 0
            && header.call.is_multiple_of(2);
        if lends && let Some(mut buffer) = self.inbox.buffer(&header)? {
            assert!(
                buffer.capacity() - buffer.len() >= payload.len(),
                "a lent buffer has room for the payload"
            );
            buffer.extend_from_slice(&payload);
            return self.inbox.filled(&header, buffer);
        }
        self.inbox.take(&header, payload)
    }

    fn check(&mut self, taken: Taken) {
        match taken {
            Taken::Message(Arrived { bytes, .. }) => {
                assert!(bytes.len() as u64 <= LIMITS.max_message, "no message is longer than the limit");
            }
            Taken::Described(described) => self.described.push(described.seq),
            Taken::Lost(_) => panic!("there is memory for {} bytes", LIMITS.max_message),
            Taken::Part => {}
        }
    }
}
