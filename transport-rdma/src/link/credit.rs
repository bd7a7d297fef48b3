//! Credits: a message is sent only when the peer has a receive for it, however many frames it holds. Arithmetic only; WIRE.md section 6.3 is the rule.
//!
//! Both sides count from the link's beginning, modulo 2^32: what was granted, what was used. A count that arrives twice, or
//! late, therefore says nothing wrong.
//!
//! A peer begins with a small window. One that uses all of it is lent more (`endpoint::memory` knows how much there is), and
//! is asked to give that back when others need it.

/// The credits that this side may send with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SendCredits {
    granted: u32,
    used: u32,
}

impl SendCredits {
    pub(crate) fn new(granted: u32) -> Self {
        Self { granted, used: 0 }
    }

    /// How many more messages may be sent.
    pub(crate) fn available(&self) -> u32 {
        self.granted.wrapping_sub(self.used)
    }

    /// One message is sent; the caller has looked at [`available`](Self::available).
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

    /// Returns up to `count` unused credits to the peer, and how many they are.
    pub(crate) fn forfeit(&mut self, count: u32) -> u32 {
        let count = count.min(self.available());
        self.used = self.used.wrapping_add(count);
        count
    }
}

/// The credits of the peer: the receiving side's count of arrivals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Received(u32);

impl Received {
    /// A message has arrived that takes a credit, before the peer can have been told of more than `told`. False if it had
    /// none.
    #[must_use]
    pub(crate) fn count(&mut self, told: u32) -> bool {
        self.forfeit(1, told)
    }

    /// The peer has given back this many, before it can have been told of more than `told`. False if it had fewer.
    #[must_use]
    pub(crate) fn forfeit(&mut self, count: u32, told: u32) -> bool {
        let had_them = count <= told.wrapping_sub(self.0);
        if had_them {
            self.0 = self.0.wrapping_add(count);
        }
        had_them
    }

    /// Whether the peer has used all that it can have been told of.
    pub(crate) fn is_all_of(self, told: u32) -> bool {
        self.0 == told
    }

    /// How many messages have come since then.
    pub(crate) fn since(self, then: Self) -> u32 {
        self.0.wrapping_sub(then.0)
    }
}

/// The PINGs of the peer, or its GRANTs and RECLAIMs: it has one receive for these. So it sends the next when it knows that
/// the last was read, and it knows that by something that this side has said since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct PollCycle(Option<u64>);

impl PollCycle {
    /// Another one has arrived, when the peer can have heard this many bytes. False if those were as many the last time.
    #[must_use]
    pub(crate) fn take(&mut self, heard: u64) -> bool {
        self.0.replace(heard) != Some(heard)
    }
}

/// The state of telling the peer its grants, and whether there is more to tell.
///
/// The peer has one receive for GRANT and RECLAIM. So the next one leaves only when the last is known to have been
/// read. FORFEITs are apart: there is one for each RECLAIM, and who sends that keeps a receive for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CreditUpdate {
    window: u32,
    reported: u32,
    unread: Option<Unread>,
    /// A PING is on its way, or its PONG.
    pinging: bool,
}

/// A GRANT or RECLAIM on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Unread {
    /// The grant that the peer knew of before: a message beyond it proves that the CREDIT was read.
    before: u32,
    /// So does a FORFEIT, if it was a RECLAIM.
    reclaims: bool,
    /// So does a PONG, if there was a PING behind it.
    pinged: bool,
}

impl CreditUpdate {
    /// The peer knows of the first `window` from the set-up of the link.
    pub(crate) fn new(window: u32) -> Self {
        Self { window, reported: window, unread: None, pinging: false }
    }

    /// The peer's window is now this, by lending or by its FORFEIT.
    pub(crate) fn set_window(&mut self, window: u32) {
        self.window = window;
    }

    /// Returns the grant for a header that leaves now.
    pub(crate) fn stamp(&mut self, granted: u32) -> u32 {
        self.reported = granted;
        granted
    }

    /// Whether there is a receive for a GRANT or RECLAIM.
    pub(crate) fn is_read(&mut self, received: Received) -> bool {
        if self.unread.is_some_and(|unread| is_after(received.0, unread.before)) {
            self.unread = None;
        }
        self.unread.is_none()
    }

    /// Whether to send a GRANT: half of the window is news to the peer, and it has read the last one.
    pub(crate) fn is_due(&mut self, granted: u32, received: Received) -> bool {
        self.is_read(received) && granted.wrapping_sub(self.reported) >= self.window.div_ceil(2)
    }

    /// The next header is that of a GRANT.
    pub(crate) fn note_grant(&mut self) {
        self.unread = Some(Unread { before: self.reported, reclaims: false, pinged: false });
    }

    /// The next header is that of a RECLAIM.
    pub(crate) fn note_reclaim(&mut self) {
        self.unread = Some(Unread { before: self.reported, reclaims: true, pinged: false });
    }

    /// Whether there is a receive for a PING. One proves that the last CREDIT was read, where an idle peer uses no grant that would.
    pub(crate) fn may_ping(&self) -> bool {
        !self.pinging
    }

    /// The next header is that of a PING.
    pub(crate) fn note_ping(&mut self) {
        self.pinging = true;
        if let Some(unread) = &mut self.unread {
            unread.pinged = true;
        }
    }

    /// A PONG has come. False if no PING was sent.
    #[must_use]
    pub(crate) fn note_pong(&mut self) -> bool {
        self.unread = self.unread.filter(|unread| !unread.pinged);
        std::mem::take(&mut self.pinging)
    }

    /// The RECLAIM was answered.
    pub(crate) fn note_forfeit(&mut self) {
        self.unread = self.unread.filter(|unread| !unread.reclaims);
    }
}

/// Whether `a` was reached later than `b`, by less than half of all numbers.
fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

#[cfg(test)]
mod tests;
