//! Locks: each is one number, which clients swap.

use std::time::{Duration, Instant};

use farcall::Status;

use super::numbers::{Atomic, Backoff, Numbers};

/// The content of a lock: the fencing number, and below it the id of the holder.
///
/// Each change makes the fencing number greater. It is odd while the lock is held. A word never comes back, until the fencing number
/// wraps after four billion changes: so a swap that was meant for an earlier word fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word(u64);

impl Word {
    fn new(fence: u32, holder: u32) -> Self {
        Self(u64::from(fence) << 32 | u64::from(holder))
    }

    fn fence(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn is_held(self) -> bool {
        self.fence() % 2 == 1
    }

    /// The word after this one, if `holder` takes the lock.
    fn taken_by(self, holder: u32) -> Self {
        Self::new(self.fence().wrapping_add(if self.is_held() { 2 } else { 1 }), holder)
    }

    /// The word after this one, if its holder releases the lock.
    fn released(self) -> Self {
        Self::new(self.fence().wrapping_add(1), 0)
    }
}

/// A lock in the server's memory, as one owner sees it. All its owners must use one lease.
pub struct Lock {
    numbers: Numbers,
    at: usize,
    owner: u32,
    lease: Duration,
}

/// A lock that is held. Dropping it releases nothing: others wait for the end of the lease.
#[must_use = "a lock is held until it is released"]
pub struct Held<'a> {
    lock: &'a Lock,
    word: Word,
    until: Instant,
}

impl Lock {
    /// Returns the lock at an offset, for an owner whose id no other task has.
    pub fn new(numbers: Numbers, at: usize, owner: u32, lease: Duration) -> Self {
        Self { numbers, at, owner, lease }
    }

    /// Takes the lock. Waits while another has it, and takes it from a holder that has not released it within its lease.
    ///
    /// # Cancel safety
    ///
    /// If this is dropped, the lock may be taken. Then it is free again after the lease.
    pub async fn acquire(&self) -> Result<Held<'_>, Status> {
        let mut backoff = Backoff::default();
        let mut seen = Word(self.numbers.number(self.at).await?);
        // No clock is compared with another one's: a waiter measures how long it has seen the same word.
        let mut since = Instant::now();
        loop {
            if !seen.is_held() || since.elapsed() >= self.lease {
                let began = Instant::now();
                let mine = seen.taken_by(self.owner);
                let before = self.swap(seen, mine).await?;
                if before == seen {
                    return Ok(Held { lock: self, word: mine, until: began + self.lease });
                }
                (seen, since) = (before, Instant::now());
                continue;
            }
            backoff.wait().await;
            let now = Word(self.numbers.number(self.at).await?);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
    }

    /// Replaces a word by one that only this owner writes, and only once. Returns the word before, which is `from` if that was done.
    async fn swap(&self, from: Word, to: Word) -> Result<Word, Status> {
        loop {
            if let Atomic::Done(before) = self.numbers.compare_and_swap(self.at, from.0, to.0).await? {
                // If it is `to`, an attempt before this one was done after all.
                return Ok(if before == to.0 { from } else { Word(before) });
            }
            // It may have been done. The word tells.
            let now = Word(self.numbers.number(self.at).await?);
            if now == to {
                return Ok(from);
            }
            if now != from {
                return Ok(now);
            }
            // Not done, or not yet. Another attempt is safe: of all that are under way one succeeds at most.
        }
    }
}

impl Held<'_> {
    /// Returns the fencing number, which is greater than those of all earlier holders. A service that the
    /// lock protects can refuse a holder that comes too late.
    pub fn fence(&self) -> u32 {
        self.word.fence()
    }

    /// Whether the lease has not ended: nobody else has the lock.
    pub fn is_valid(&self) -> bool {
        Instant::now() < self.until
    }

    /// Releases the lock. Returns false if another has taken it because the lease had ended.
    pub async fn release(self) -> Result<bool, Status> {
        let was_valid = self.is_valid();
        let before = self.lock.swap(self.word, self.word.released()).await?;
        // The word may be a later holder's if an attempt was done whose outcome got lost. Within the lease it was one of these.
        Ok(before == self.word || was_valid)
    }
}
