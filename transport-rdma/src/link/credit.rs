//! Credits: a frame is sent only when the peer has a receive for it. Arithmetic only; WIRE.md section 6.3 is the rule.
//!
//! Both sides count from the link's beginning, modulo 2^32: what was granted, what was used. A count that arrives twice, or
//! late, therefore says nothing wrong.

/// What this side may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SendCredits {
    granted: u32,
    used: u32,
}

impl SendCredits {
    pub(crate) fn new(granted: u32) -> Self {
        Self { granted, used: 0 }
    }

    /// How many more frames may be sent.
    pub(crate) fn available(&self) -> u32 {
        self.granted.wrapping_sub(self.used)
    }

    /// One frame is sent; the caller has looked at [`available`](Self::available).
    pub(crate) fn take(&mut self) {
        self.used = self.used.wrapping_add(1);
    }

    /// The peer's count from a header. True if there is more than before.
    pub(crate) fn update(&mut self, granted: u32) -> bool {
        let news = is_after(granted, self.granted);
        if news {
            self.granted = granted;
        }
        news
    }

    /// Gives back up to `count` unused credits and says how many.
    pub(crate) fn forfeit(&mut self, count: u32) -> u32 {
        let count = count.min(self.available());
        self.used = self.used.wrapping_add(count);
        count
    }
}

/// What the peer may send: the receiving side's count of what arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Received(u32);

impl Received {
    /// A frame has arrived that takes a credit, before the peer can have been told of more than `told`. False if it had
    /// none.
    #[must_use]
    pub(crate) fn count(&mut self, told: u32) -> bool {
        let had_one = is_after(told, self.0);
        if had_one {
            self.0 = self.0.wrapping_add(1);
        }
        had_one
    }
}

/// What this side has told the peer of its grants, and whether it should tell more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reports {
    window: u32,
    reported: u32,
    /// A CREDIT is on its way, and this was the grant that the peer knew of before. There is one receive for CREDITs at
    /// the peer, which is free again once it was read; a frame beyond this grant proves that.
    unread: Option<u32>,
}

impl Reports {
    /// The peer knows of the first `window` from the set-up of the link.
    pub(crate) fn new(window: u32) -> Self {
        Self { window, reported: window, unread: None }
    }

    /// What a header that leaves now says.
    pub(crate) fn stamp(&mut self, granted: u32) -> u32 {
        self.reported = granted;
        granted
    }

    /// Whether to send a CREDIT: half of the window is news to the peer, and it has read the last one.
    pub(crate) fn is_due(&mut self, granted: u32, received: Received) -> bool {
        if self.unread.is_some_and(|before| is_after(received.0, before)) {
            self.unread = None;
        }
        self.unread.is_none() && granted.wrapping_sub(self.reported) >= self.window.div_ceil(2)
    }

    /// The next header is that of a CREDIT.
    pub(crate) fn note_credit(&mut self) {
        self.unread = Some(self.reported);
    }
}

/// Whether `a` was reached later than `b`, by less than half of all numbers.
fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

#[cfg(test)]
mod tests;
