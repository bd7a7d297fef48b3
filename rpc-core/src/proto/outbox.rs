//! What a session sends: numbering, fragments, acknowledgement, and which link it goes by.

use std::collections::{BTreeMap, VecDeque};

use bytes::BytesMut;

use super::message::{Cutting, Expose, Exposing, Frame, Message};
use super::shorts::{MAX_SHORT, Shorts};
use super::wire::{Done, Down, FrameType, HEADER_LEN, Pull, Up, flags};

/// Which of a session's links something travels by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// The link that the session began on and that it ends with.
    Stream,
    /// The link of this epoch.
    Upgraded(u32),
}

/// Frames that may go out between two fragments, so that many small messages do not stop a large one.
const SMALL_RUN: u32 = 16;

/// The sending half of a session.
///
/// Messages go in with [`push`](Self::push), frames come out of [`next`](Self::next) in the order in which they
/// must be sent; a frame has its number from then on. Messages of one call keep their order. Frames that went by an
/// upgraded link are retained until the peer says that it has taken them in: that link may die before the session.
/// Those on the stream link are not: if that dies, so does the session.
#[derive(Clone, Debug, Hash)]
pub struct Outbox {
    /// What is short and of a call.
    shorts: Shorts,
    queue: VecDeque<Message>,
    /// Too long for a frame, not begun: the assembly budget is used up.
    large: VecDeque<Message>,
    cutting: VecDeque<Cutting>,
    /// Described to the peer, which has not said DONE; by the number of the frame. What is left of such a message is
    /// what was exposed.
    exposed: BTreeMap<u32, Cutting>,
    /// How many of `cutting` and `exposed` are given up.
    abandoned: usize,
    /// Messages of the session itself in `queue`, `large` and `cutting`.
    own: usize,
    /// Messages of the session itself in `large` and `cutting`: what was queued after such a one (calls after their
    /// BIND) may not overtake it. Nor may what is short overtake one in `queue`.
    barriers: usize,
    small_run: u32,
    next_seq: u32,
    assembling: u64,
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
            shorts: Shorts::default(),
            queue: VecDeque::new(),
            large: VecDeque::new(),
            cutting: VecDeque::new(),
            exposed: BTreeMap::new(),
            abandoned: 0,
            own: 0,
            barriers: 0,
            small_run: 0,
            next_seq: 1,
            assembling: 0,
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
        if let Some((head, body)) = message.as_short() {
            return self.shorts.push(message.kind, message.call, head, body);
        }
        self.own += usize::from(message.call == 0);
        if message.kind == FrameType::DONE {
            // The peer keeps memory until it has this, and after a fall does not wait for it long.
            self.queue.push_front(message);
        } else {
            self.queue.push_back(message);
        }
    }

    /// Queues short messages, and leaves none.
    pub fn push_shorts(&mut self, shorts: &mut Shorts) {
        if self.closed {
            shorts.clear();
        } else {
            self.shorts.append(shorts);
        }
    }

    /// Whether nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        let large = self.large.len() + self.cutting.len();
        self.shorts.len() + self.queue.len() + large + self.resend == 0
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

    /// Moves the frames of short messages that may leave by the stream link now to the end of `to`, encoded, while that is
    /// shorter than `max`. Gives how many.
    pub fn next_shorts(&mut self, to: &mut BytesMut, max: usize, max_payload: usize, rx_seq: u32) -> u32 {
        let others_wait =
            self.resend > 0 || self.own > 0 || !self.cutting.is_empty() || !self.large.is_empty();
        let stopped = self.frozen || self.closed || self.route != Route::Stream;
        if stopped || others_wait || max_payload < MAX_SHORT || self.shorts.is_empty() {
            return 0;
        }
        let moved = self.shorts.move_to(to, max, self.next_seq, rx_seq);
        self.next_seq = self.next_seq.wrapping_add(moved);
        moved
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
        // What is long has to wait; what is short has not.
        self.next_short(max_payload)
    }

    /// The next message that is no longer than a frame. Longer ones on the way there are set aside.
    fn next_short(&mut self, max_payload: usize) -> Option<Frame> {
        while self.barriers == 0 {
            // Of the two queues in turn.
            let is_turn = self.own == 0 && (self.small_run.is_multiple_of(2) || self.queue.is_empty());
            let message = if is_turn && let Some(frame) = self.shorts.pop() {
                if frame.header.len as usize <= max_payload {
                    self.small_run = self.small_run.saturating_add(1);
                    return Some(frame);
                }
                Message::from_frame(frame)
            } else {
                match self.queue.pop_front() {
                    Some(message) => message,
                    None if self.shorts.is_empty() => return None,
                    None => continue,
                }
            };
            if message.len() <= max_payload {
                self.small_run = self.small_run.saturating_add(1);
                self.own -= usize::from(message.call == 0);
                return Some(message.into_frame());
            }
            self.barriers += usize::from(message.call == 0);
            self.large.push_back(message);
            self.begin_large();
        }
        None
    }

    fn describe(
        &self,
        message: &mut Cutting,
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

    fn cut(&mut self, mut message: Cutting, max_payload: usize) -> Frame {
        let frame = message.next(max_payload);
        if message.is_done() {
            self.forget(&message);
            self.barriers -= usize::from(message.call == 0);
            self.own -= usize::from(message.call == 0);
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
    fn forget(&mut self, message: &Cutting) {
        self.assembling -= message.total();
        self.abandoned -= usize::from(message.is_abandoned());
    }

    /// Begins large messages in order, as far as the peer's budget goes. One fits always: the peer's longest message
    /// is within its budget.
    fn begin_large(&mut self) {
        while let Some(message) = self.large.front() {
            let total = message.len() as u64;
            if self.assembling > 0 && self.assembling + total > self.max_assembly {
                break;
            }
            if let Some(message) = self.large.pop_front() {
                self.assembling += total;
                self.cutting.push_back(Cutting::new(message));
            }
        }
    }

    /// The next of the frames that went by a link which died. By the stream link they need no keeping any more.
    fn next_again(&mut self) -> Option<Frame> {
        let index = self.retained.len() - self.resend;
        self.resend -= 1;
        if self.route != Route::Stream {
            return self.retained.get(index).cloned();
        }
        let frame = self.retained.remove(index)?;
        self.retained_bytes -= size(&frame);
        Some(frame)
    }

    /// Takes back what was not sent of a call's message. If a part has left, the peer is told that the rest will not
    /// come.
    pub fn abandon(&mut self, kind: FrameType, call: u64) -> Abandoned {
        if self.shorts.take_out(|header| header.call == call && header.kind == kind) > 0 {
            return Abandoned::Unsent;
        }
        for queue in [&mut self.queue, &mut self.large] {
            if let Some(i) = queue.iter().position(|m| m.call == call && m.kind == kind) {
                queue.remove(i);
                return Abandoned::Unsent;
            }
        }
        let Some(i) = self.cutting.iter().position(|m| m.call == call) else {
            // The peer may be reading it, and says DONE in any case. If that is that it could not, the rest need not go.
            let exposed = self.exposed.values_mut().find(|m| m.call == call && m.is_of(kind));
            self.abandoned += exposed.map_or(0, |message| usize::from(message.abandon()));
            return Abandoned::Sent;
        };
        if self.cutting[i].has_begun() {
            // It keeps its part of the peer's budget until the frame that gives it up has left.
            self.abandoned += usize::from(self.cutting[i].abandon());
            return Abandoned::Partly;
        }
        if let Some(message) = self.cutting.remove(i) {
            self.assembling -= message.total();
        }
        Abandoned::Unsent
    }

    /// How many messages of calls have not left, or not wholly, or have not been read, and are wanted still.
    pub fn waiting(&self) -> usize {
        let begun = self.cutting.len() + self.exposed.len();
        self.shorts.len() + self.queue.len() + self.large.len() + begun - self.abandoned - self.own
    }

    /// Takes back the messages of this kind of which nothing has left, and gives their calls: the peer will never hear
    /// of them.
    pub fn take_back(&mut self, kind: FrameType) -> Vec<u64> {
        let mut calls = Vec::new();
        self.shorts.take_out(|header| {
            let taken = header.kind == kind;
            calls.extend(taken.then_some(header.call));
            taken
        });
        for queue in [&mut self.queue, &mut self.large] {
            queue.retain(|message| {
                let taken = message.kind == kind;
                calls.extend(taken.then_some(message.call));
                !taken
            });
        }
        self.cutting.retain(|message| {
            let taken = message.is_of(kind) && !message.has_begun();
            if taken {
                calls.push(message.call);
                self.assembling -= message.total();
            }
            !taken
        });
        calls
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
        // What a former link left to be sent again goes first.
        let again = self.retained.get(self.retained.len() - self.resend).filter(|_| self.resend > 0);
        Up { epoch, first_seq: again.map_or(self.next_seq, |frame| frame.header.seq) }
    }

    /// Stops: no session frame leaves by any link until [`resume`](Self::resume).
    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    /// The session is over: nothing leaves any more, so that what is said of its calls stays true. Gives the calls of
    /// which a message of this kind has not left whole, and forgets everything.
    pub fn close(&mut self, kind: FrameType) -> Vec<u64> {
        self.closed = true;
        let mut calls = self.take_back(kind);
        calls.extend(self.cutting.iter().filter(|m| m.is_of(kind)).map(|m| m.call));
        self.shorts.clear();
        self.queue.clear();
        self.large.clear();
        self.cutting.clear();
        self.exposed.clear();
        self.retained.clear();
        (self.abandoned, self.own, self.barriers, self.resend) = (0, 0, 0, 0);
        (self.assembling, self.retained_bytes) = (0, 0);
        calls
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
        // Of the others a DONE is on its way.
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

    /// How many messages are described to the peer, which has not said DONE.
    pub fn exposed(&self) -> usize {
        self.exposed.len()
    }

    /// How many of those were described in the frame of this number or an earlier one.
    pub fn exposed_up_to(&self, last: u32) -> usize {
        self.exposed.keys().filter(|seq| last.wrapping_sub(**seq) as i32 >= 0).count()
    }

    /// The calls whose requests have not left, or not wholly, or have not been read, and are wanted still.
    #[cfg(test)]
    pub(super) fn wanted(&self) -> impl Iterator<Item = u64> {
        let queued = self.queue.iter().chain(&self.large).filter(|m| m.kind == FrameType::REQUEST);
        let begun = self.cutting.iter().chain(self.exposed.values());
        let begun = begun.filter(|m| m.is_of(FrameType::REQUEST) && !m.is_abandoned());
        queued.map(|m| m.call).chain(begun.map(|m| m.call))
    }

    /// The sum of the messages that are under way in fragments.
    #[cfg(test)]
    pub(super) fn assembling(&self) -> u64 {
        self.assembling
    }

    /// How many frames are kept for the peer's acknowledgement.
    pub fn retained(&self) -> usize {
        self.retained.len()
    }
}

/// What a retained frame counts.
fn size(frame: &Frame) -> usize {
    HEADER_LEN + frame.header.len as usize
}

/// What became of a message that was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// Nothing of it had left.
    Unsent,
    /// Some had; the peer is told that the rest will not come.
    Partly,
    /// All of it had left, or there never was one.
    Sent,
}

/// The peer acknowledged a frame that was never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSent;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::proto::message::ExposeNothing;

    const MAX_FRAME: usize = 2048;

    fn request(call: u64, len: usize) -> Message {
        Message::new(FrameType::REQUEST, call, Bytes::from(vec![7; len]))
    }

    impl Outbox {
        fn extend<const N: usize>(&mut self, requests: [(u64, usize); N]) {
            requests.into_iter().for_each(|(call, len)| self.push(request(call, len)));
        }
    }

    /// Call, flags and length of the next frame.
    fn next(outbox: &mut Outbox) -> Option<(u64, u8, u32)> {
        outbox
            .next(MAX_FRAME, &mut ExposeNothing)
            .map(|frame| (frame.header.call, frame.header.flags, frame.header.len))
    }

    #[test]
    fn a_message_given_up_keeps_its_budget_until_the_peer_is_told() {
        let mut outbox = Outbox::new(10_000, 1 << 20);
        outbox.push(request(1, 9000));
        outbox.push(request(2, 9000));
        assert_eq!(next(&mut outbox), Some((1, flags::FRAGMENTED, 2048)));
        assert_eq!((outbox.abandon(FrameType::REQUEST, 1), outbox.waiting()), (Abandoned::Partly, 1));
        assert_eq!(next(&mut outbox), Some((1, flags::ABANDONED, 0)), "first, for the second has no room");
        assert_eq!(next(&mut outbox), Some((2, flags::FRAGMENTED, 2048)));
    }

    #[test]
    fn what_has_not_begun_is_taken_back_and_the_peer_never_hears_of_it() {
        let mut outbox = Outbox::new(10_000, 1 << 20);
        outbox.push(request(1, 9000));
        assert!(next(&mut outbox).is_some());
        outbox.push(Message::new(FrameType::BIND, 0, Bytes::from_static(b"x")));
        outbox.extend([(2, 10), (3, 5000), (4, 900)]);
        assert_eq!(outbox.abandon(FrameType::REQUEST, 4), Abandoned::Unsent);
        assert_eq!(outbox.take_back(FrameType::REQUEST), [2, 3]);
        assert_eq!(next(&mut outbox), Some((0, 0, 1)), "the BIND stays");
        let mut left = 2044;
        while let Some((call, _, len)) = next(&mut outbox) {
            assert_eq!(call, 1);
            left += len;
        }
        assert_eq!((left, outbox.is_empty(), outbox.assembling()), (9000, true, 0));
    }

    #[test]
    fn a_closed_outbox_says_what_has_not_left_whole_and_sends_nothing_more() {
        let mut outbox = Outbox::new(100_000, 1 << 20);
        outbox.extend([(1, 10), (2, 9000), (3, 9000)]);
        assert_eq!(next(&mut outbox), Some((1, 0, 10)));
        assert_eq!(next(&mut outbox), Some((2, flags::FRAGMENTED, 2048)));
        let mut unsent = outbox.close(FrameType::REQUEST);
        unsent.sort_unstable();
        assert_eq!(unsent, [2, 3]);
        outbox.push(request(4, 10));
        assert_eq!((next(&mut outbox), outbox.is_empty(), outbox.waiting()), (None, true, 0));
    }

    #[test]
    fn the_peer_is_told_that_its_memory_is_free_before_anything_else() {
        let mut outbox = Outbox::new(100_000, 1 << 20);
        outbox.extend([(1, 10), (2, 9000), (3, 10)]);
        outbox.push(Message::new(FrameType::DONE, 0, Bytes::from_static(b"x")));
        assert_eq!((next(&mut outbox), outbox.waiting()), (Some((0, 0, 1)), 3));
    }

    #[test]
    fn short_messages_do_not_wait_for_one_that_can_not_be_exposed_yet() {
        struct Full;
        impl Expose for Full {
            fn expose(&mut self, _: u32, _: &Bytes) -> Exposing {
                Exposing::Later
            }
        }
        let mut outbox = Outbox::new(100_000, 1 << 20);
        outbox.go_up(1);
        let mut long = request(1, 10);
        long.bulk = vec![7; 9000].into();
        outbox.push(long);
        (2..60).for_each(|call| outbox.push(request(call, 10)));
        outbox.push(Message::new(FrameType::DONE, 0, Bytes::from_static(b"x")));
        let frames = std::iter::from_fn(|| outbox.next(MAX_FRAME, &mut Full)).count();
        assert_eq!((frames, outbox.waiting()), (59, 1));
    }

    #[test]
    fn many_short_messages_and_a_long_one_take_turns() {
        let mut outbox = Outbox::new(100_000, 1 << 20);
        outbox.push(request(1, 9000));
        (2..200).for_each(|call| outbox.push(request(call, 10)));
        let calls: Vec<u64> = std::iter::from_fn(|| next(&mut outbox)).map(|frame| frame.0).collect();
        let long: Vec<usize> = (0..calls.len()).filter(|i| calls[*i] == 1).collect();
        assert_eq!(long.len(), 5);
        assert!(long.windows(2).all(|w| w[1] - w[0] == SMALL_RUN as usize + 1), "{long:?}");
    }
}
