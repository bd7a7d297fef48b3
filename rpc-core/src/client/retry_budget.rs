//! The bound on attempts beyond the first of each call.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::Retry;

/// The parts of a token that are counted.
const PARTS: f64 = 1000.0;

/// Tokens for further attempts, which successful calls earn.
#[derive(Debug)]
pub(super) struct RetryBudget {
    /// In parts of a token.
    left: AtomicU64,
    most: AtomicU64,
    earned: AtomicU64,
}

impl RetryBudget {
    pub(super) fn new(retry: &Retry) -> Self {
        let budget =
            Self { left: AtomicU64::new(u64::MAX), most: AtomicU64::default(), earned: AtomicU64::default() };
        budget.limit(retry);
        budget
    }

    /// Sets how many tokens there are at most, and what a call earns.
    pub(super) fn limit(&self, retry: &Retry) {
        let most = (f64::from(retry.max_tokens) * PARTS) as u64;
        self.most.store(most, Ordering::Relaxed);
        self.earned.store((retry.token_ratio * PARTS) as u64, Ordering::Relaxed);
        self.left.fetch_min(most, Ordering::Relaxed);
    }

    /// Notes a call that has succeeded.
    pub(super) fn earn(&self) {
        let most = self.most.load(Ordering::Relaxed);
        let earned = self.earned.load(Ordering::Relaxed);
        let more = |left: u64| (left < most).then(|| (left + earned).min(most));
        // An error means that there is no room for more.
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Takes a token for another attempt, if there is one.
    pub(super) fn spend(&self) -> bool {
        let token = PARTS as u64;
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(token)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_many_calls_may_be_made_again() {
        let budget = RetryBudget::new(&Retry { max_tokens: 10, ..Retry::default() });
        assert_eq!((0..20).filter(|_| budget.spend()).count(), 10);
        let mut again = 0;
        for _ in 0..10_000 {
            budget.earn();
            again += u32::from(budget.spend());
        }
        assert_eq!(again, 1000);
        (0..10_000).for_each(|_| budget.earn());
        assert_eq!((0..20).filter(|_| budget.spend()).count(), 10, "no more than the limit is saved");
    }
}
