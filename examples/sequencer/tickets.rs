//! Tickets: numbers that are given once, in order.

use farcall::Status;

use crate::numbers::{Atomic, Numbers};

/// A sequence of tickets. Several clients draw from one.
pub struct Tickets {
    numbers: Numbers,
    at: usize,
    voided: u64,
}

impl Tickets {
    /// Returns the sequence whose next ticket is at an offset.
    pub fn new(numbers: Numbers, at: usize) -> Self {
        Self { numbers, at, voided: 0 }
    }

    /// Draws a ticket. No handler of the server runs.
    ///
    /// If the connection is lost meanwhile, a ticket may have been drawn that nobody has. Nothing tells: others draw from the
    /// same number. It counts as void, and another one is drawn. So no ticket is given twice, and void ones may be missing.
    pub async fn draw(&mut self) -> Result<u64, Status> {
        loop {
            match self.numbers.fetch_add(self.at, 1).await? {
                Atomic::Done(ticket) => return Ok(ticket),
                Atomic::Maybe => self.voided += 1,
            }
        }
    }

    /// Returns how many tickets may be missing because of this client.
    pub fn voided(&self) -> u64 {
        self.voided
    }
}
