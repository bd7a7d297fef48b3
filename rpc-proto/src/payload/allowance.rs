//! The memory that the values of a message may take.

use std::fmt;
use std::hint::black_box;

/// How much memory the values of one message may take, in bytes, if nothing else is set.
const MOST: u32 = 256 << 20;

/// How much of it nobody is asked for, in bytes. Most messages need no more. A peer has thousands of calls in progress and makes each
/// hold as much, so it must not be much more than is counted for every call.
pub(crate) const FREE: u32 = 8 << 10;

/// The shortest allocation that is tried before serde or prost make it, in bytes.
const LONG: usize = 64 << 10;

/// An account of the memory that values take. It counts what it has granted until it is dropped or reset.
pub trait MemoryGrant: fmt::Debug + Send + Sync {
    /// Grants so many bytes more. Returns false if there is no memory for them.
    fn grow(&mut self, bytes: usize) -> bool;

    /// Gives back what was granted.
    fn reset(&mut self);
}

/// The error of [`Decoder::take_memory`](super::Decoder::take_memory).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge(Bound);

impl TooLarge {
    /// Returns the error of an allocation that has failed.
    #[cold]
    pub(crate) fn no_memory() -> Self {
        Self(Bound::Allocator)
    }
}

/// The limit that values exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Message,
    Budget,
    Allocator,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Bound::Message => {
                "its values take more memory than those of one message may; send fewer at a time"
            }
            Bound::Budget => {
                "its values take more memory than the receiver's limits.memory has left; send fewer at a time, or later"
            }
            Bound::Allocator => {
                "the receiver's process has no memory for its values; give it more, or send fewer at a time"
            }
        })
    }
}

impl std::error::Error for TooLarge {}

/// A function that opens an account for a message; `None` if nothing counts the memory.
pub type OpenGrant = fn() -> Option<Box<dyn MemoryGrant>>;

/// The account that a message has for the memory of its values.
#[derive(Debug)]
enum Account {
    None,
    /// It is opened when it is needed, because most messages do not need it.
    AtNeed(OpenGrant),
    Open(Box<dyn MemoryGrant>),
}

/// The memory that the values of the message at hand may take.
#[derive(Debug)]
pub(super) struct Allowance {
    /// How much they may take before more is asked for, in bytes.
    left: u32,
    /// How much they may take beyond `left` if it is granted, in bytes.
    beyond: u32,
    /// How much was granted, in bytes.
    granted: u32,
    account: Account,
}

impl Allowance {
    /// Returns the allowance of messages whose memory nobody counts.
    #[inline]
    pub(super) fn new() -> Self {
        Self::of(Account::None)
    }

    /// Returns the allowance of a message for which an account is opened if it needs much.
    #[inline]
    pub(super) fn at_need(open: OpenGrant) -> Self {
        Self::of(Account::AtNeed(open))
    }

    /// Returns the allowance of messages that are counted in an account one after the other.
    pub(super) fn counted(account: Box<dyn MemoryGrant>) -> Self {
        Self::of(Account::Open(account))
    }

    #[inline]
    fn of(account: Account) -> Self {
        Self { left: FREE, beyond: MOST - FREE, granted: 0, account }
    }

    /// Sets how much may be taken from now on.
    pub(super) fn limit(&mut self, bytes: u32) {
        self.left = self.left.min(bytes);
        self.beyond = bytes - self.left;
    }

    /// Begins anew, for the next message. Memory that was granted for the last one is given back.
    #[inline]
    pub(super) fn renew(&mut self) {
        self.left = FREE;
        if self.granted > 0 {
            self.give_back();
        }
    }

    #[cold]
    fn give_back(&mut self) {
        if let Account::Open(account) = &mut self.account {
            account.reset();
        }
        (self.granted, self.beyond) = (0, MOST - FREE);
    }

    #[inline]
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), TooLarge> {
        match u32::try_from(bytes).ok().and_then(|bytes| self.left.checked_sub(bytes)) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => self.grow(bytes),
        }
    }

    /// Takes bytes for which more must be granted.
    #[cold]
    fn grow(&mut self, bytes: usize) -> Result<(), TooLarge> {
        let lacking =
            u32::try_from(bytes - self.left as usize).ok().filter(|lacking| *lacking <= self.beyond);
        let Some(lacking) = lacking else { return Err(TooLarge(Bound::Message)) };
        if let Account::AtNeed(open) = self.account {
            self.account = open().map_or(Account::None, Account::Open);
        }
        // As much again as was granted before, so that this is asked a few times for each message.
        let mut step = lacking.max(self.granted).max(FREE).min(self.beyond);
        if self.ask(step).is_err() {
            // There may be enough for this value.
            step = lacking.max(FREE).min(self.beyond);
            self.ask(step)?;
        }
        self.granted += step;
        self.beyond -= step;
        self.left = step - lacking;
        Ok(())
    }

    /// Asks the allocator and the account for so many bytes.
    fn ask(&mut self, bytes: u32) -> Result<(), TooLarge> {
        // serde and prost fill lists whose growth aborts the process where there is no memory. A list that grows asks for twice
        // what is in it.
        let all = FREE as usize + self.granted as usize + bytes as usize;
        check_memory(2 * all)?;
        if let Account::Open(account) = &mut self.account
            && !account.grow(bytes as usize)
        {
            return Err(TooLarge(Bound::Budget));
        }
        Ok(())
    }

    /// Returns the account, which counts the memory as long as it is held.
    #[inline]
    pub(super) fn into_grant(self) -> Option<Box<dyn MemoryGrant>> {
        match self.account {
            Account::Open(account) => Some(account),
            _ => None,
        }
    }
}

/// Checks that the allocator has so many bytes at this moment, by taking them and giving them back, if they are many.
pub(crate) fn check_memory(bytes: usize) -> Result<(), TooLarge> {
    if bytes < LONG {
        return Ok(());
    }
    let mut taken = Vec::<u8>::new();
    let is_there = taken.try_reserve_exact(bytes).is_ok();
    // Without a use of it, the compiler may leave the allocation out.
    black_box(taken.as_ptr());
    if is_there { Ok(()) } else { Err(TooLarge::no_memory()) }
}

#[cfg(test)]
#[expect(clippy::disallowed_types, reason = "a function that opens an account has no parameter")]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// The bytes that the account of this thread has granted, and may grant.
        static ACCOUNT: Cell<(usize, usize)> = const { Cell::new((0, usize::MAX)) };
    }

    #[derive(Debug, Default)]
    struct Counter(usize);

    impl MemoryGrant for Counter {
        fn grow(&mut self, bytes: usize) -> bool {
            let (granted, most) = ACCOUNT.get();
            let is_granted = granted + bytes <= most;
            if is_granted {
                ACCOUNT.set((granted + bytes, most));
                self.0 += bytes;
            }
            is_granted
        }

        fn reset(&mut self) {
            let (granted, most) = ACCOUNT.get();
            ACCOUNT.set((granted - std::mem::take(&mut self.0), most));
        }
    }

    impl Drop for Counter {
        fn drop(&mut self) {
            self.reset();
        }
    }

    fn at_need(most: usize) -> Allowance {
        ACCOUNT.set((0, most));
        Allowance::at_need(|| Some(Box::<Counter>::default()))
    }

    #[test]
    fn an_account_grants_what_is_taken_and_counts_it_until_it_is_dropped() {
        let mut allowance = at_need(usize::MAX);
        assert_eq!(allowance.take(FREE as usize), Ok(()));
        assert_eq!(ACCOUNT.get().0, 0, "little is free");
        let mut taken = 0;
        while let Ok(()) = allowance.take(1000) {
            taken += 1000;
            let granted = ACCOUNT.get().0;
            assert!(taken <= granted && granted <= 2 * taken + 2 * FREE as usize, "{granted} for {taken}");
        }
        assert!(taken > (MOST - FREE) as usize - 1000);
        assert_eq!(allowance.take(1000), Err(TooLarge(Bound::Message)));
        let grant = allowance.into_grant();
        assert_eq!(ACCOUNT.get().0, (MOST - FREE) as usize);
        drop(grant);
        assert_eq!(ACCOUNT.get().0, 0);
    }

    #[test]
    fn an_account_may_refuse() {
        let mut allowance = at_need(1 << 20);
        assert_eq!(allowance.take(600_000), Ok(()));
        assert_eq!(allowance.take(600_000), Err(TooLarge(Bound::Budget)));
    }

    #[test]
    fn one_message_after_the_other_is_counted() {
        ACCOUNT.set((0, 1 << 20));
        let mut allowance = Allowance::counted(Box::<Counter>::default());
        for _ in 0..3 {
            assert_eq!(allowance.take(600_000), Ok(()));
            assert_eq!(ACCOUNT.get().0, 600_000 - FREE as usize);
            assert_eq!(allowance.take(600_000), Err(TooLarge(Bound::Budget)));
            allowance.renew();
            assert_eq!(ACCOUNT.get().0, 0);
        }
    }

    #[test]
    fn limits_hold_with_and_without_an_account() {
        for mut allowance in [at_need(usize::MAX), Allowance::new()] {
            allowance.limit(100_000);
            assert_eq!(allowance.take(60_000), Ok(()));
            assert_eq!(allowance.take(40_001), Err(TooLarge(Bound::Message)));
            assert_eq!(allowance.take(40_000), Ok(()));
            assert_eq!(allowance.take(usize::MAX), Err(TooLarge(Bound::Message)));
        }
    }
}
