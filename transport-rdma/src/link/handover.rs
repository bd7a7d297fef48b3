//! Handing what has arrived to the session, for a limited time.
//!
//! Handlers run meanwhile. Messages and bytes do not bound how long that takes, so the clock does: what is left when the
//! time is over stays with the link, and other links have their turn.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use farcall_core::proto::wire::{Header, WireError};
use farcall_core::transport::LinkHandler;

use super::arrival::ReceivedSend;

/// The time after which nothing more is handed over in this turn.
pub(super) const ENOUGH: Duration = Duration::from_millis(1);

/// The most and the fewest frames between two looks at the clock. The most is what the session handles as one batch, so
/// that the looks cut no batch while handlers are quick.
const MOST: usize = 64;
const FEWEST: usize = 8;

/// The number of frames that a link hands over between two looks at the clock: half as many after those that took long.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace(usize);

impl Default for Pace {
    fn default() -> Self {
        Self(MOST)
    }
}

impl Pace {
    /// Hands messages over until none is left or the time is over, and takes them out. Returns whether the time is over.
    /// `taken` is told how many messages it is done with, or about to be.
    pub(super) fn hand_over(
        &mut self,
        handler: &dyn LinkHandler,
        messages: &mut VecDeque<ReceivedSend>,
        taken: impl Fn(usize),
    ) -> Result<bool, WireError> {
        // A lone frame is not worth a look at the clock.
        let frames = messages.iter().map(|message| message.headers.count).sum::<usize>();
        let begin = (frames > 1).then(Instant::now);
        if frames <= self.0 {
            taken(messages.len());
            let result = hand_over(handler, messages);
            messages.clear();
            let took = begin.map_or(Duration::ZERO, |begin| begin.elapsed());
            if took > ENOUGH {
                self.0 = (self.0 / 2).max(FEWEST);
            }
            return result.map(|()| took > ENOUGH);
        }
        let begin = begin.unwrap_or_else(Instant::now);
        let mut before = Duration::ZERO;
        while !messages.is_empty() && before <= ENOUGH {
            let waiting = messages.len();
            handler.receive_all(&mut Few { messages, left: self.0 })?;
            taken(waiting - messages.len());
            let now = begin.elapsed();
            self.0 = if now - before > ENOUGH { (self.0 / 2).max(FEWEST) } else { (self.0 * 2).min(MOST) };
            before = now;
        }
        Ok(before > ENOUGH)
    }
}

/// Hands all messages over.
pub(super) fn hand_over(
    handler: &dyn LinkHandler,
    messages: &mut VecDeque<ReceivedSend>,
) -> Result<(), WireError> {
    let mut frames = messages.iter_mut().map(|message| &mut message.frames);
    match (frames.next(), frames.next()) {
        (None, _) => Ok(()),
        (Some(only), None) => handler.receive_frames(only),
        (Some(first), Some(second)) => {
            handler.receive_all(&mut [first, second].into_iter().chain(frames).flatten())
        }
    }
}

/// A few frames of the messages. A message goes with its last frame.
struct Few<'a> {
    messages: &'a mut VecDeque<ReceivedSend>,
    left: usize,
}

impl Iterator for Few<'_> {
    type Item = (Header, Bytes);

    fn next(&mut self) -> Option<(Header, Bytes)> {
        self.left = self.left.checked_sub(1)?;
        let message = self.messages.front_mut()?;
        let frame = message.frames.next();
        message.headers.count -= 1;
        if message.headers.count == 0 {
            self.messages.pop_front();
        }
        frame
    }
}

#[cfg(all(test, not(farcall_loom)))]
mod tests {
    use std::cell::Cell;
    use std::sync::Mutex;

    use bytes::BytesMut;
    use farcall_core::proto::wire::FrameType;
    use farcall_core::transport::LinkEnd;

    use super::*;

    /// Notes the length of each batch of frames, which must come in order. Each takes it long.
    #[derive(Default)]
    struct Handler(Mutex<Vec<u64>>);

    impl LinkHandler for Handler {
        fn receive(&self, _: Header, _: Bytes) -> Result<(), WireError> {
            unreachable!("frames come together")
        }

        fn receive_all(&self, frames: &mut dyn Iterator<Item = (Header, Bytes)>) -> Result<(), WireError> {
            let mut batches = self.0.lock().expect("no thread has panicked");
            let next = batches.iter().sum::<u64>() + 1;
            let count = frames.zip(next..).map(|((header, _), next)| assert_eq!(header.call, next)).count();
            batches.push(count as u64);
            std::thread::sleep(2 * ENOUGH);
            Ok(())
        }

        fn closed(&self, _: LinkEnd) {}
    }

    /// A message of 50 frames.
    fn message(first: u64) -> ReceivedSend {
        let mut bytes = BytesMut::new();
        for call in first..first + 50 {
            bytes.extend_from_slice(&Header::new(FrameType::ITEM, call).encode());
        }
        ReceivedSend::new(bytes.freeze()).expect("whole frames")
    }

    #[test]
    fn frames_that_take_long_are_handed_over_few_at_a_time_and_all_in_order() {
        let mut messages: VecDeque<_> = [1, 51, 101].map(message).into();
        let handler = Handler::default();
        let (taken, mut turns, mut pace) = (Cell::new(0), Vec::new(), Pace::default());
        while !messages.is_empty() {
            pace.hand_over(&handler, &mut messages, |count| taken.set(taken.get() + count)).unwrap();
            assert_eq!(messages.len() + taken.get(), 3);
            turns.push(taken.get());
        }
        assert_eq!(*handler.0.lock().unwrap(), [64, 32, 16, 8, 8, 8, 8, 6]);
        assert_eq!(turns, [1, 1, 2, 2, 2, 2, 2, 3]);
    }
}
