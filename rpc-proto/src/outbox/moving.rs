//! From one link to another: what is kept until the peer has it, and sent again by the other link.

use super::{NotSent, Outbox, Route, size};
use crate::message::Frame;
use crate::wire::{Pull, Up, flags};

impl Outbox {
    /// The next of the frames that went by a link which died. By the stream link they need no keeping any more.
    pub(super) fn next_again(&mut self) -> Option<Frame> {
        let index = self.retained.len() - self.resend;
        self.resend -= 1;
        if self.route != Route::Stream {
            return self.retained.get(index).cloned();
        }
        let frame = self.retained.remove(index)?;
        self.retained_bytes -= size(&frame);
        Some(frame)
    }

    /// The peer has taken in everything up to `rx_seq`. An acknowledgement of what was never sent is refused.
    pub fn acknowledged(&mut self, rx_seq: u32) -> Result<(), NotSent> {
        // The number after the last one sent is the first that can't be acknowledged.
        if (self.last_seq().wrapping_sub(rx_seq) as i32) < 0 {
            return Err(NotSent);
        }
        while self.retained.len() > self.resend
            && let Some(frame) = self.retained.front()
            && rx_seq.wrapping_sub(frame.header.seq) as i32 >= 0
        {
            self.retained_bytes -= size(frame);
            self.retained.pop_front();
        }
        Ok(())
    }

    /// From the next frame on goes by the upgraded link; the UP must be the next thing on the stream link.
    pub fn go_up(&mut self, epoch: u32) -> Up {
        self.route = Route::Upgraded(epoch);
        // Frames that a former link left to be sent again go first.
        let again = self.retained.get(self.retained.len() - self.resend).filter(|_| self.resend > 0);
        Up { epoch, first_seq: again.map_or(self.next_seq, |frame| frame.header.seq) }
    }

    /// Stops: no session frame leaves by any link until [`resume`](Self::resume).
    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    /// Both sides have said DOWN: goes on by the stream link, with what the peer does not have. `pulls` are the messages
    /// whose beginning it has, and of which it has not read what was exposed.
    pub fn resume(&mut self, peer_rx_seq: u32, pulls: &[Pull]) -> Result<(), NotSent> {
        self.frozen = false;
        self.route = Route::Stream;
        self.resend = 0;
        self.acknowledged(peer_rx_seq)?;
        self.resend = self.retained.len();
        for frame in &mut self.retained {
            if frame.header.flags & flags::DESCRIBED != 0 {
                self.retained_bytes -= size(frame);
                frame.undescribe();
                self.retained_bytes += size(frame);
                self.cutting.extend(self.exposed.remove(&frame.header.seq));
            }
        }
        // For the others a DONE is on its way.
        for pull in pulls {
            let rest = self.exposed.remove(&pull.seq).ok_or(NotSent)?;
            self.cutting.push_back(rest);
        }
        Ok(())
    }

    /// Whether nothing leaves before the peer's DOWN.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// How many frames are kept for the peer's acknowledgement.
    pub fn retained(&self) -> usize {
        self.retained.len()
    }
}
