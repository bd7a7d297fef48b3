//! The sending half of a session: numbering, fragments, acknowledgement, and which link it goes by.

mod abandoning;
mod moving;
mod tally;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::BytesMut;

pub use self::abandoning::{Abandoned, Unsent};
use self::tally::Tally;
use super::message::{Expose, Exposing, Fragmenter, Frame, Message};
use super::small_frames::SmallFrames;
use super::wire::{Done, Down, FrameType, HEADER_LEN};
use crate::payload::MAX_SHORT;

/// The link of a session that a frame travels by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// The link that the session began on and that it ends with.
    Stream,
    /// The link of this epoch.
    Upgraded(u32),
}

/// Frames that may go out between two fragments, so that many small messages do not stop a large one.
const SMALL_RUN: u32 = 16;

/// The memory of a queued message beside its contents: itself, and an allocation for a short payload. Bytes.
const MESSAGE: usize = size_of::<Message>() + 64;

/// The sending half of a session.
///
/// Messages go in with [`push`](Self::push), frames come out of [`next`](Self::next) in the order in which they must be
/// sent; a frame has its number from then on. The messages of a call's streams, and those that [keep their
/// place](Message::keep_place), keep their order among themselves. So do the others. Frames that went by an upgraded
/// link are retained until the peer says that it has taken them in: that link may die before the session. Those on the
/// stream link are not: if that dies, so does the session.
#[derive(Clone, Debug, Hash)]
pub struct Outbox {
    /// Short messages of calls.
    small_frames: SmallFrames,
    queue: VecDeque<Message>,
    /// Too long for a frame, not begun: the assembly budget is used up.
    large: VecDeque<Message>,
    cutting: VecDeque<Fragmenter>,
    /// Described to the peer, which has not said DONE; by the number of the frame. The rest of such a message is the
    /// exposed bytes.
    exposed: BTreeMap<u32, Fragmenter>,
    tally: Tally,
    /// Calls of which nothing need leave, and of which something may be queued: it has not been looked for.
    given_up: BTreeSet<u64>,
    /// The calls of which a message has left that this is to be told of.
    left: Vec<u64>,
    small_run: u32,
    next_seq: u32,
    max_assembly: u64,
    route: Route,
    /// No session frame leaves until the peer has said what it has.
    frozen: bool,
    /// No session frame leaves any more.
    closed: bool,
    retained: VecDeque<Frame>,
    retained_bytes: usize,
    max_retained: usize,
    /// How many of `retained`, counted from its end, must be sent again.
    resend: usize,
}

impl Outbox {
    /// An outbox that begins on the stream link. `max_assembly` is the peer's; `max_retained` bounds the bytes kept
    /// for an upgraded link, headers included.
    pub fn new(max_assembly: u64, max_retained: usize) -> Self {
        Self {
            small_frames: SmallFrames::default(),
            queue: VecDeque::new(),
            large: VecDeque::new(),
            cutting: VecDeque::new(),
            exposed: BTreeMap::new(),
            tally: Tally::default(),
            given_up: BTreeSet::new(),
            left: Vec::new(),
            small_run: 0,
            next_seq: 1,
            max_assembly,
            route: Route::Stream,
            frozen: false,
            closed: false,
            retained: VecDeque::new(),
            retained_bytes: 0,
            max_retained,
            resend: 0,
        }
    }

    /// Sets the peer's limit, once its HELLO has said it.
    pub fn set_max_assembly(&mut self, max_assembly: u64) {
        self.max_assembly = max_assembly;
    }

    /// Queues a message; once [closed](Self::close), forgets it.
    pub fn push(&mut self, message: Message) {
        if self.closed {
            return;
        }
        if let Some((head, body)) = message.as_small_frame() {
            return self.small_frames.push(message.kind, message.call, head, body);
        }
        self.tally.queue(&message);
        match message.kind {
            // The peer keeps memory until it has a DONE, and after a fall does not wait for it long. And the place of a call
            // that is cancelled may have been given to one that waits here.
            FrameType::DONE | FrameType::CANCEL => self.queue.push_front(message),
            _ => self.queue.push_back(message),
        }
    }

    /// Queues short messages, and leaves none.
    pub fn push_small_frames(&mut self, small_frames: &mut SmallFrames) {
        if self.closed {
            small_frames.clear();
        } else {
            self.small_frames.append(small_frames);
        }
    }

    /// Whether nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        let large = self.large.len() + self.cutting.len();
        self.small_frames.len() + self.queue.len() + large + self.resend == 0
    }

    /// The link that session frames go by.
    pub fn route(&self) -> Route {
        self.route
    }

    /// The next session frame for the link that [`route`](Self::route) names, with at most `max_payload` bytes. `expose`
    /// is that link's.
    pub fn next(&mut self, max_payload: usize, expose: &mut dyn Expose) -> Option<Frame> {
        if self.frozen || self.closed {
            return None;
        }
        if self.resend > 0 {
            return self.next_again();
        }
        if self.route != Route::Stream && self.retained_bytes >= self.max_retained {
            return None;
        }
        let mut frame = self.next_new(max_payload, expose)?;
        frame.header.seq = self.next_seq;
        self.next_seq = self.next_seq.wrapping_add(1);
        if self.route != Route::Stream {
            self.retained_bytes += size(&frame);
            self.retained.push_back(frame.clone());
        }
        Some(frame)
    }

    /// Exchanges `empty` for encoded frames of short messages that may leave by the stream link now. Returns how many they
    /// are.
    pub fn next_small_frames(&mut self, empty: &mut BytesMut, max_payload: usize, rx_seq: u32) -> u32 {
        let others_wait =
            self.resend > 0 || self.tally.own() > 0 || !self.cutting.is_empty() || !self.large.is_empty();
        let stopped = self.frozen || self.closed || self.route != Route::Stream;
        if stopped || others_wait || max_payload < MAX_SHORT || self.small_frames.is_empty() {
            return 0;
        }
        let frames = self.small_frames.pop_chunk(empty, self.next_seq, rx_seq);
        self.next_seq = self.next_seq.wrapping_add(frames);
        frames
    }

    /// The number of the last frame that has left.
    pub fn last_seq(&self) -> u32 {
        self.next_seq.wrapping_sub(1)
    }

    fn next_new(&mut self, max_payload: usize, expose: &mut dyn Expose) -> Option<Frame> {
        self.begin_large();
        if (self.cutting.is_empty() || self.small_run < SMALL_RUN)
            && let Some(frame) = self.next_short(max_payload)
        {
            return Some(frame);
        }
        for _ in 0..self.cutting.len() {
            let mut message = self.cutting.pop_front()?;
            match self.describe(&mut message, max_payload, expose) {
                Ok(frame) => {
                    self.small_run = 0;
                    self.exposed.insert(self.next_seq, message);
                    return Some(frame);
                }
                Err(Exposing::Later) => self.cutting.push_back(message),
                Err(_) => {
                    self.small_run = 0;
                    return Some(self.cut(message, max_payload));
                }
            }
        }
        // Long messages have to wait; short ones do not.
        self.next_short(max_payload)
    }

    /// The next message that is no longer than a frame. Longer ones on the way there are set aside.
    fn next_short(&mut self, max_payload: usize) -> Option<Frame> {
        while !self.tally.has_barrier() {
            // The two queues take turns.
            let is_turn =
                self.tally.own() == 0 && (self.small_run.is_multiple_of(2) || self.queue.is_empty());
            let message = if is_turn && let Some(frame) = self.small_frames.pop() {
                if frame.header.len as usize <= max_payload {
                    self.small_run = self.small_run.saturating_add(1);
                    return Some(frame);
                }
                let message = Message::from_frame(frame);
                self.tally.queue(&message);
                message
            } else {
                match self.queue.pop_front() {
                    Some(message) => message,
                    None if self.small_frames.is_empty() => return None,
                    None => continue,
                }
            };
            if message.len() <= max_payload {
                self.small_run = self.small_run.saturating_add(1);
                self.tally.unqueue(&message);
                self.left.extend(message.holds_back().then_some(message.call));
                return Some(message.into_frame());
            }
            self.tally.set_aside(&message);
            self.large.push_back(message);
            self.begin_large();
        }
        None
    }

    fn describe(
        &self,
        message: &mut Fragmenter,
        max_payload: usize,
        expose: &mut dyn Expose,
    ) -> Result<Frame, Exposing> {
        if self.route == Route::Stream || !message.can_be_described(max_payload) {
            return Err(Exposing::Never);
        }
        if self.exposed.len() >= Down::MAX_PULLS {
            return Err(Exposing::Later);
        }
        message.describe(self.next_seq, expose)
    }

    fn cut(&mut self, mut message: Fragmenter, max_payload: usize) -> Frame {
        let frame = message.next(max_payload);
        if message.is_done() {
            self.forget(&message);
        } else {
            self.cutting.push_back(message);
        }
        frame
    }

    /// The peer has read what the frame of this number described, or wants it sent.
    pub fn done(&mut self, done: &Done) -> Result<(), NotSent> {
        if self.closed {
            return Ok(()); // It has crossed the end.
        }
        let message = self.exposed.remove(&done.seq).ok_or(NotSent)?;
        if done.outcome == Done::READ {
            self.forget(&message);
        } else {
            self.cutting.push_back(message);
        }
        Ok(())
    }

    /// A message that had begun is over.
    fn forget(&mut self, message: &Fragmenter) {
        self.tally.end(message);
        self.left.extend(message.holds_back().then_some(message.call));
    }

    /// Whether there are [such](Self::take_sent).
    pub fn has_sent(&self) -> bool {
        !self.left.is_empty()
    }

    /// The calls of which a message has left that [held back](Message::holds_back) others, since this was asked last; and was
    /// read, if it was described. Once for each.
    pub fn take_sent(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.left)
    }

    /// Begins large messages in order, as far as the peer's budget goes. One fits always: the peer's longest message
    /// is within its budget.
    fn begin_large(&mut self) {
        while let Some(message) = self.large.front() {
            let total = message.len() as u64;
            let assembling = self.tally.assembling();
            if assembling > 0 && assembling + total > self.max_assembly {
                break;
            }
            if let Some(message) = self.large.pop_front() {
                self.tally.begin(&message);
                self.cutting.push_back(Fragmenter::new(message));
            }
        }
    }

    /// How many messages of calls have not left, or not wholly, or have not been read, and are wanted still; but for those
    /// amid one.
    pub fn waiting(&self) -> usize {
        self.unsent() - self.tally.beside_calls()
    }

    /// Returns how many bytes are kept here: of messages that have not left, or not wholly, or have not been read, and of
    /// frames that the peer has not acknowledged.
    #[inline]
    pub fn memory(&self) -> usize {
        let contents = self.small_frames.memory() + self.tally.bytes() as usize + self.retained_bytes;
        contents + self.messages() * MESSAGE
    }

    /// How many messages have not left, or not wholly, or have not been read, but for small ones that are frames already.
    fn messages(&self) -> usize {
        self.queue.len() + self.large.len() + self.cutting.len() + self.exposed.len()
    }

    /// How many messages have not left, or not wholly, or have not been read.
    fn unsent(&self) -> usize {
        self.small_frames.len() + self.messages()
    }

    /// Returns how much has left of a call's message, and its length, both in bytes, while a part has not left. A message
    /// that the peer reads by itself counts when the peer has read all of it. `None`: there is no such message, or it is short.
    pub fn partly(&self, call: u64) -> Option<(u64, u64)> {
        let begun = self.cutting.iter().chain(self.exposed.values()).find(|message| message.call == call);
        let unsent = || self.large.iter().find(|message| message.call == call);
        begun
            .map(|message| (message.sent(), message.total()))
            .or_else(|| unsent().map(|m| (0, m.len() as u64)))
    }

    /// How many messages are described to the peer, which has not said DONE.
    pub fn exposed(&self) -> usize {
        self.exposed.len()
    }

    /// How many of those were described in the frame of this number or an earlier one.
    pub fn exposed_up_to(&self, last: u32) -> usize {
        self.exposed.keys().filter(|seq| last.wrapping_sub(**seq) as i32 >= 0).count()
    }

    /// The calls whose requests have not left, or not wholly, or have not been read, and are wanted still.
    #[cfg(all(test, not(miri)))]
    pub(super) fn wanted(&self) -> impl Iterator<Item = u64> {
        let queued = self.queue.iter().chain(&self.large).filter(|m| m.kind == FrameType::REQUEST);
        let begun = self.cutting.iter().chain(self.exposed.values());
        let begun = begun.filter(|m| m.is_of(FrameType::REQUEST) && !m.is_abandoned());
        queued.map(|m| m.call).chain(begun.map(|m| m.call))
    }

    /// The sum of the messages that are under way in fragments.
    #[cfg(test)]
    pub(super) fn assembling(&self) -> u64 {
        self.tally.assembling()
    }
}

/// Returns the bytes that a retained frame counts.
fn size(frame: &Frame) -> usize {
    HEADER_LEN + frame.header.len as usize
}

/// The peer acknowledged a frame that was never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSent;
