//! Messages that need not leave any more: their call is given up, or the session is over.

use std::mem::take;

use super::{Outbox, size};
use crate::leftovers::Leftovers;
use crate::message::Fragmenter;
use crate::wire::FrameType;

/// How many queued messages are looked at, at most, for each call that is given up.
const LOOKED_AT: usize = 64;

/// The outcome of taking a message back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// Nothing of it had left.
    Unsent,
    /// Some had; the peer is told that the rest will not come.
    Partly,
    /// All of it had left, or there never was one.
    Sent,
}

impl Outbox {
    /// Takes back what was not sent of a call's message. If a part has left, the peer is told that the rest will not
    /// come.
    pub fn abandon(&mut self, kind: FrameType, call: u64) -> Abandoned {
        if self.small_frames.take_out(|header| header.call == call && header.kind == kind) > 0 {
            return Abandoned::Unsent;
        }
        for queue in [&mut self.queue, &mut self.large] {
            if let Some(i) = queue.iter().position(|m| m.call == call && m.kind == kind) {
                queue.remove(i).inspect(|message| self.tally.unqueue(message));
                return Abandoned::Unsent;
            }
        }
        let Some(i) = self.cutting.iter().position(|m| m.call == call && m.is_of(kind)) else {
            // The peer may be reading it, and says DONE in any case. If that is that it could not, the rest need not go.
            if let Some(exposed) = self.exposed.values_mut().find(|m| m.call == call && m.is_of(kind)) {
                self.tally.give_up(exposed);
            }
            return Abandoned::Sent;
        };
        if self.cutting[i].has_begun() {
            // It keeps its part of the peer's budget until the frame that gives it up has left.
            self.tally.give_up(&mut self.cutting[i]);
            return Abandoned::Partly;
        }
        self.cutting.remove(i).inspect(|message| self.tally.end(message));
        Abandoned::Unsent
    }

    /// Takes back what was not sent of a call's streams. If a message has left in part, the peer is told that the rest
    /// will not come.
    pub fn abandon_streams(&mut self, call: u64) {
        self.abandon_all(|of, kind| of == call && kind.is_of_stream());
    }

    /// The peer has given a call up: nothing of it need leave any more.
    ///
    /// A peer may do so for calls of which nothing is here, and to find that out, all that is queued must be looked at. So
    /// where much is, it is looked at once for many such calls. Until then what is queued of them may leave; the peer
    /// ignores it.
    pub fn give_up(&mut self, call: u64) {
        self.given_up.insert(call);
        if self.given_up.len() * LOOKED_AT < self.unsent() {
            return;
        }
        let given_up = std::mem::take(&mut self.given_up);
        self.small_frames.take_out(|header| given_up.contains(&header.call));
        self.abandon_all(|call, _| given_up.contains(&call));
    }

    /// How many calls are [given up](Self::give_up) whose messages have not been looked for, and so are still among those
    /// that [wait](Self::waiting). A few to a hundred of these.
    pub fn given_up(&self) -> usize {
        self.given_up.len()
    }

    /// Takes back what was not sent of such messages, but for short ones.
    fn abandon_all(&mut self, is_such: impl Fn(u64, FrameType) -> bool) {
        let Self { queue, large, cutting, exposed, tally, .. } = self;
        for queue in [queue, large] {
            queue.retain(|message| {
                let is_such = is_such(message.call, message.kind);
                if is_such {
                    tally.unqueue(message);
                }
                !is_such
            });
        }
        let is_such = |message: &Fragmenter| is_such(message.call, message.kind());
        cutting.retain(|message| {
            let is_unsent = is_such(message) && !message.has_begun();
            if is_unsent {
                tally.end(message);
            }
            !is_unsent
        });
        let begun = cutting.iter_mut().chain(exposed.values_mut());
        begun.filter(|message| is_such(message)).for_each(|message| tally.give_up(message));
    }

    /// Takes back the messages of this kind of which nothing has left, and gives their calls: the peer will never hear
    /// of them.
    pub fn take_back(&mut self, kind: FrameType) -> Vec<u64> {
        let mut calls = Vec::new();
        self.small_frames.take_out(|header| {
            let taken = header.kind == kind;
            calls.extend(taken.then_some(header.call));
            taken
        });
        for queue in [&mut self.queue, &mut self.large] {
            queue.retain(|message| {
                let taken = message.kind == kind;
                if taken {
                    calls.push(message.call);
                    self.tally.unqueue(message);
                }
                !taken
            });
        }
        self.cutting.retain(|message| {
            let taken = message.is_of(kind) && !message.has_begun();
            if taken {
                calls.push(message.call);
                self.tally.end(message);
            }
            !taken
        });
        calls
    }

    /// The session is over: nothing leaves any more, so that what is said of its calls stays true. Returns the calls of
    /// which a message of this kind has not left whole, and all that has not left.
    pub fn close(&mut self, kind: FrameType) -> (Vec<u64>, Unsent) {
        self.closed = true;
        let mut calls = self.take_back(kind);
        calls.extend(self.cutting.iter().filter(|m| m.is_of(kind)).map(|m| m.call));
        let rest = Self {
            small_frames: take(&mut self.small_frames),
            queue: take(&mut self.queue),
            large: take(&mut self.large),
            cutting: take(&mut self.cutting),
            exposed: take(&mut self.exposed),
            tally: take(&mut self.tally),
            retained: take(&mut self.retained),
            retained_bytes: take(&mut self.retained_bytes),
            ..Self::new(0, 0)
        };
        self.left.clear();
        self.resend = 0;
        (calls, Unsent(rest))
    }
}

/// All that has not left when an outbox was [closed](Outbox::close), to be freed.
#[derive(Debug)]
pub struct Unsent(Outbox);

/// Its short messages count as one.
impl Leftovers for Unsent {
    fn len(&self) -> usize {
        let Outbox { queue, large, cutting, exposed, retained, .. } = &self.0;
        let short = usize::from(!self.0.small_frames.is_empty());
        short + queue.len() + large.len() + cutting.len() + exposed.len() + retained.len()
    }

    fn memory(&self) -> usize {
        self.0.memory()
    }

    fn drop_one(&mut self) {
        let Outbox { queue, large, cutting, exposed, tally, retained, retained_bytes, .. } = &mut self.0;
        if let Some(message) = queue.pop_front().or_else(|| large.pop_front()) {
            tally.unqueue(&message);
        } else if let Some(message) = cutting.pop_front().or_else(|| Some(exposed.pop_first()?.1)) {
            tally.end(&message);
        } else if let Some(frame) = retained.pop_front() {
            *retained_bytes -= size(&frame);
        } else {
            self.0.small_frames.clear();
        }
    }
}
