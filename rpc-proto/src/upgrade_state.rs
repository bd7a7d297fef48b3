//! Moving a session between its links: who has said what (WIRE.md section 7).

use super::wire::{Down, WireError};

/// The state of the attempt to use an upgraded link, of which there is at most one at a time.
///
/// An attempt ends when both sides have said DOWN. Neither leads: whoever sees the link fail says it first, the
/// other answers, and when both say it at once that is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UpgradeState {
    epoch: u32,
    open: bool,
    sent_down: bool,
}

/// The consequences of a DOWN that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fall {
    /// Freeze both halves of the session and say DOWN.
    pub say_down: bool,
    /// Both have said it: go on by the stream link after its number.
    pub resume: bool,
}

impl UpgradeState {
    /// The epoch of the current attempt, or of the last one.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether an attempt is being made, or its link is in use.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Whether the link of this epoch may still be used.
    pub fn is_usable(&self, epoch: u32) -> bool {
        self.open && self.epoch == epoch && !self.sent_down
    }

    /// Begins the next attempt and gives its epoch; `None` while one is open.
    pub fn begin(&mut self) -> Option<u32> {
        let epoch = self.epoch.checked_add(1)?;
        self.accept(epoch).ok()?;
        Some(epoch)
    }

    /// Begins the attempt that the peer offers. An epoch comes once, and only after the one before is over.
    pub fn accept(&mut self, epoch: u32) -> Result<(), WireError> {
        if self.open {
            return Err(WireError::new("offer", "comes before the last attempt is over"));
        }
        if epoch <= self.epoch {
            return Err(WireError::new("offer.epoch", "has been used"));
        }
        *self = Self { epoch, open: true, sent_down: false };
        Ok(())
    }

    /// The link of `epoch` failed, or the attempt is given up on this side. True: freeze both halves of the session and
    /// say DOWN.
    pub fn fail(&mut self, epoch: u32) -> bool {
        let first = self.is_usable(epoch);
        self.sent_down |= first;
        first
    }

    /// The peer said DOWN. One of an older epoch is an echo; one of an epoch that never was is a lie.
    pub fn on_down(&mut self, down: &Down) -> Result<Fall, WireError> {
        if down.epoch > self.epoch {
            return Err(WireError::new("down.epoch", "was never offered"));
        }
        if down.epoch < self.epoch {
            return Ok(Fall { say_down: false, resume: false });
        }
        if !self.open {
            return Err(WireError::new("down", "was said before"));
        }
        // The attempt ends here, whoever was first: what this side has not said it says now.
        self.open = false;
        Ok(Fall { say_down: !std::mem::replace(&mut self.sent_down, true), resume: true })
    }
}
