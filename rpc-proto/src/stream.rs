//! The two ends of a stream, one direction of a call: how much may be sent, and how it ends (WIRE.md section 5.4).
//!
//! The end of the call itself is not their concern: who knows that asks them no more.

use super::wire::{Window, WireError};

/// The end that sends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SendHalf {
    sent: Window,
    granted: Window,
    stopped: bool,
    ended: bool,
}

impl SendHalf {
    /// The peer takes so much at first.
    pub fn new(first: Window) -> Self {
        Self { sent: Window { items: 0, bytes: 0 }, granted: first, stopped: false, ended: false }
    }

    /// How many items may be sent in the next message. 0: a WINDOW must come first, or there are to be no more.
    pub fn room(&self) -> u64 {
        let is_open = !self.stopped && !self.ended && self.sent.bytes < self.granted.bytes;
        if is_open { self.granted.items - self.sent.items } else { 0 }
    }

    /// Returns the rest of the window, in items and bytes. Both are 0 if nothing may be sent now.
    pub fn left(&self) -> Window {
        match self.room() {
            0 => Window { items: 0, bytes: 0 },
            items => Window { items, bytes: self.granted.bytes - self.sent.bytes },
        }
    }

    /// A message of so many items and bytes was queued; there was [room](Self::room) for it.
    pub fn sent(&mut self, items: u64, bytes: u64) {
        debug_assert!(0 < items && items <= self.room(), "an ITEM has room");
        self.sent.items += items;
        self.sent.bytes += bytes;
    }

    /// The peer takes more. Returns whether there is room now and was not before.
    pub fn on_window(&mut self, window: Window) -> Result<bool, WireError> {
        if window.items < self.granted.items || window.bytes < self.granted.bytes {
            return Err(WireError::new("window", "takes back what was granted"));
        }
        let was_full = self.room() == 0;
        self.granted = window;
        Ok(was_full && self.room() > 0)
    }

    /// The peer takes no more. False: it had said so.
    pub fn on_stop(&mut self) -> bool {
        !std::mem::replace(&mut self.stopped, true)
    }

    /// Whether the peer takes no more.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns what was sent in all, and what the peer has granted in all.
    pub fn moved(&self) -> [Window; 2] {
        [self.sent, self.granted]
    }

    /// There are no more: how many items END is to say. `None`: it has said so.
    pub fn end(&mut self) -> Option<u64> {
        let ended = std::mem::replace(&mut self.ended, true);
        (!ended).then_some(self.sent.items)
    }
}

/// The end that receives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecvHalf {
    received: Window,
    granted: Window,
    consumed: Window,
    /// How far ahead of what was consumed the peer may be.
    size: Window,
    /// Since the last WINDOW the peer has used up all that it had.
    was_used_up: bool,
    stopped: bool,
    ended: bool,
}

impl RecvHalf {
    /// This side takes so much at first.
    pub fn new(first: Window) -> Self {
        let none = Window { items: 0, bytes: 0 };
        Self {
            received: none,
            granted: first,
            consumed: none,
            size: first,
            was_used_up: false,
            stopped: false,
            ended: false,
        }
    }

    /// An ITEM of so many items and bytes has come. Returns whether it is to be kept.
    pub fn on_item(&mut self, items: u64, bytes: u64) -> Result<bool, WireError> {
        if self.ended {
            return Err(WireError::new("item", "comes after the END of its stream"));
        }
        if self.received.items + items > self.granted.items || self.received.bytes >= self.granted.bytes {
            return Err(WireError::new("item", "is beyond the window of its stream"));
        }
        self.received.items += items;
        self.received.bytes += bytes;
        self.was_used_up |=
            self.received.items == self.granted.items || self.received.bytes >= self.granted.bytes;
        Ok(!self.stopped)
    }

    /// The END has come, and says how many items there were.
    pub fn on_end(&mut self, items: u64) -> Result<(), WireError> {
        if self.ended {
            return Err(WireError::new("end", "comes twice"));
        }
        if items != self.received.items {
            return Err(WireError::new("end.items", "is not how many have come"));
        }
        self.ended = true;
        Ok(())
    }

    /// Whether the END has come.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The application has taken so many items, and with them all of so many bytes. Returns the WINDOW that is due.
    ///
    /// A reader that is faster than its window lets the peer be gets a larger one, by and by up to `most`: `grow` says
    /// whether there are so many bytes for it.
    pub fn consumed(
        &mut self,
        items: u64,
        bytes: u64,
        most: Window,
        grow: impl FnOnce(u64) -> bool,
    ) -> Option<Window> {
        self.consumed.items += items;
        self.consumed.bytes += bytes;
        if self.stopped || self.ended {
            return None;
        }
        let next = Window {
            items: self.consumed.items + self.size.items,
            bytes: self.consumed.bytes + self.size.bytes,
        };
        // A peer that is told for each item does nothing else; one that is told when it has none left waits.
        let is_due = 2 * (next.items - self.granted.items) >= self.size.items
            || 2 * (next.bytes - self.granted.bytes) >= self.size.bytes;
        // An ITEM of any length may have gone beyond the last, and leaves nothing to be granted yet.
        let is_of_use = next.items > self.received.items && next.bytes > self.received.bytes;
        if !is_due || !is_of_use {
            return None;
        }
        let is_faster = std::mem::take(&mut self.was_used_up) && self.consumed.items == self.received.items;
        let larger = Window {
            items: (2 * self.size.items).min(most.items.max(self.size.items)),
            bytes: (2 * self.size.bytes).min(most.bytes.max(self.size.bytes)),
        };
        if is_faster && larger != self.size && grow(larger.bytes - self.size.bytes) {
            self.size = larger;
        }
        self.granted = Window {
            items: self.consumed.items + self.size.items,
            bytes: self.consumed.bytes + self.size.bytes,
        };
        Some(self.granted)
    }

    /// Returns what has come in all, and what of it the application has taken.
    pub fn moved(&self) -> [Window; 2] {
        [self.received, self.consumed]
    }

    /// How many bytes the window has [grown](Self::consumed) by.
    pub fn grown(&self, first: Window) -> u64 {
        self.size.bytes - first.bytes
    }

    /// The application takes no more. Returns whether the peer is to be told.
    pub fn stop(&mut self) -> bool {
        let stopped = std::mem::replace(&mut self.stopped, true);
        !stopped && !self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Window = Window { items: 4, bytes: 100 };
    const MOST: Window = Window { items: 16, bytes: 1000 };

    fn window(items: u64, bytes: u64) -> Window {
        Window { items, bytes }
    }

    #[test]
    fn one_message_of_any_length_goes_beyond_the_bytes_and_none_beyond_the_items() {
        let (mut send, mut recv) = (SendHalf::new(FIRST), RecvHalf::new(FIRST));
        assert_eq!(send.room(), 4);
        send.sent(1, 99);
        assert_eq!(recv.on_item(1, 99), Ok(true));
        assert_eq!(send.room(), 3);
        send.sent(1, 5000);
        assert_eq!(recv.on_item(1, 5000), Ok(true));
        assert_eq!(send.room(), 0, "no byte is left");
        assert!(recv.clone().on_item(1, 0).is_err());
        // All that was ever granted is less than what has come: nothing is due before that is consumed.
        assert_eq!(recv.consumed(1, 99, MOST, |_| true), None);
        let granted = recv.consumed(1, 5000, FIRST, |_| true).unwrap();
        assert_eq!(granted, window(6, 5199));
        assert_eq!(send.on_window(granted), Ok(true));
        assert_eq!(send.room(), 4);
        send.sent(4, 4);
        assert_eq!((recv.clone().on_item(4, 4), recv.on_item(5, 4).is_err()), (Ok(true), true));
    }

    #[test]
    fn a_window_is_told_of_when_half_of_it_is_consumed() {
        let mut recv = RecvHalf::new(FIRST);
        recv.on_item(2, 20).unwrap();
        assert_eq!(recv.consumed(1, 0, MOST, |_| true), None);
        assert_eq!(recv.consumed(1, 20, MOST, |_| true), Some(window(6, 120)));
        recv.on_item(1, 40).unwrap();
        assert_eq!(recv.consumed(1, 40, MOST, |_| true), None);
        recv.on_item(1, 10).unwrap();
        assert_eq!(recv.consumed(1, 10, MOST, |_| true), Some(window(8, 170)));
    }

    #[test]
    fn a_window_grows_for_a_reader_that_waits_for_it_and_for_no_other() {
        let mut recv = RecvHalf::new(FIRST);
        let all = |recv: &mut RecvHalf, may: bool| {
            let (items, bytes) =
                (recv.granted.items - recv.received.items, recv.granted.bytes - recv.received.bytes);
            recv.on_item(items, bytes).unwrap();
            recv.consumed(items, bytes, MOST, |_| may).map(|_| recv.size)
        };
        assert_eq!(all(&mut recv, true), Some(window(8, 200)));
        assert_eq!(all(&mut recv, false), Some(window(8, 200)), "the connection has no more for it");
        assert_eq!(all(&mut recv, true), Some(window(16, 400)));
        assert_eq!(all(&mut recv, true), Some(window(16, 800)));
        assert_eq!(all(&mut recv, true), Some(window(16, 1000)));
        assert_eq!(all(&mut recv, true), Some(window(16, 1000)));
        assert_eq!(recv.grown(FIRST), 900);

        let mut slow = RecvHalf::new(FIRST);
        slow.on_item(4, 10).unwrap();
        slow.consumed(3, 0, MOST, |_| true).unwrap();
        assert_eq!(slow.size, FIRST, "an item waits for it");
        let mut idle = RecvHalf::new(FIRST);
        idle.on_item(2, 10).unwrap();
        idle.consumed(2, 10, MOST, |_| true).unwrap();
        assert_eq!(idle.size, FIRST, "its peer could have sent more");
    }

    #[test]
    fn an_end_counts_the_items_and_is_said_once() {
        let (mut send, mut recv) = (SendHalf::new(FIRST), RecvHalf::new(FIRST));
        send.sent(3, 30);
        recv.on_item(3, 30).unwrap();
        assert!(recv.clone().on_end(2).is_err() && recv.clone().on_end(4).is_err());
        assert_eq!(send.end(), Some(3));
        assert_eq!((send.end(), send.room()), (None, 0));
        recv.on_end(3).unwrap();
        assert!(recv.on_end(3).is_err() && recv.on_item(1, 1).is_err());
        assert_eq!(recv.consumed(3, 30, MOST, |_| true), None, "of no use to anybody");
        assert!(!recv.stop(), "there is nobody to tell");
        assert_eq!(send.on_window(window(9, 900)), Ok(false), "it has crossed the END");
    }

    #[test]
    fn a_stopped_sender_sends_no_more_and_items_on_their_way_are_dropped() {
        let (mut send, mut recv) = (SendHalf::new(FIRST), RecvHalf::new(FIRST));
        assert!(recv.stop() && !recv.stop());
        send.sent(1, 10);
        assert_eq!(recv.on_item(1, 10), Ok(false));
        assert!(send.on_stop() && !send.on_stop());
        assert_eq!((send.room(), send.is_stopped()), (0, true));
        assert_eq!(send.on_window(window(9, 900)), Ok(false));
        recv.on_end(send.end().unwrap()).unwrap();
    }

    #[test]
    fn a_window_takes_nothing_back() {
        let mut send = SendHalf::new(FIRST);
        assert_eq!(send.on_window(window(4, 100)), Ok(false));
        for less in [window(3, 200), window(9, 99)] {
            assert!(send.on_window(less).is_err());
        }
        assert_eq!(send.on_window(window(u64::MAX, u64::MAX)), Ok(false));
        assert_eq!(send.room(), u64::MAX);
    }
}
