//! The attempts of a request: what became of them so far.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farcall::{Code, Executed, Status};

use crate::locked;
use crate::service::KvError;

/// The first pause between attempts. Each further one is twice as long, up to the longest, and up to a half shorter at random.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest pause while there is no leader. It is what a client adds to the time of an election.
const LONGEST: Duration = Duration::from_millis(160);
/// The longest pause while the leader has too much to do.
const LONGEST_IF_BUSY: Duration = Duration::from_secs(1);

/// The pauses between the attempts of a request.
pub(super) struct Pauses {
    next: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { next: PAUSE }
    }
}

impl Pauses {
    /// Returns the pause after an attempt that has failed with this error.
    pub(super) fn after(&mut self, error: &KvError) -> Duration {
        let is_busy = matches!(error, KvError::Rpc(status) if status.code() == Code::ResourceExhausted);
        let now = self.next.min(if is_busy { LONGEST_IF_BUSY } else { LONGEST });
        self.next = (now * 2).min(LONGEST_IF_BUSY);
        now.mul_f64(1.0 - 0.5 * fastrand::f64())
    }
}

/// The attempts of a request so far.
#[derive(Default)]
pub(super) struct Tries {
    /// Whether the attempts now open a session, which the change itself needs.
    opens: AtomicBool,
    /// Whether a leader may have executed one, or may still do so.
    executed: AtomicBool,
    failed: Mutex<Option<KvError>>,
}

impl Tries {
    /// Notes that the next attempts open a session. None so far may have made the change that is asked for.
    pub(super) fn open(&self) {
        self.opens.store(true, Ordering::Relaxed);
    }

    /// Notes that the next attempts make the change that is asked for. None so far did.
    pub(super) fn begin(&self) {
        self.opens.store(false, Ordering::Relaxed);
        self.executed.store(false, Ordering::Relaxed);
    }

    /// Makes an attempt. If the future is dropped, the attempt may be executed nevertheless.
    pub(super) async fn attempt<T>(
        &self,
        call: impl Future<Output = Result<T, KvError>>,
    ) -> Result<T, KvError> {
        let earlier = self.executed.swap(true, Ordering::Relaxed);
        let result = call.await;
        let is_known = match &result {
            Err(KvError::Rpc(status)) => status.executed() == Executed::No,
            Err(error) => !is_passing(error),
            Ok(_) => true,
        };
        if is_known {
            self.executed.store(earlier, Ordering::Relaxed);
        }
        result
    }

    /// Notes why an attempt failed, or why there was none.
    pub(super) fn failed(&self, error: KvError) {
        *locked(&self.failed) = Some(error);
    }

    /// Returns whether an attempt to make the change may have been executed whose result did not come.
    pub(super) fn may_be_executed(&self) -> bool {
        !self.opens.load(Ordering::Relaxed) && self.executed.load(Ordering::Relaxed)
    }

    /// Returns the error of the last attempt, as it counts for the whole request.
    pub(super) fn judge(&self, error: KvError) -> KvError {
        match error {
            KvError::Rpc(status) if self.opens.load(Ordering::Relaxed) => {
                status.with_executed(Executed::No).into()
            }
            KvError::Rpc(status) if status.executed() == Executed::No && self.may_be_executed() => {
                status.with_executed(Executed::Maybe).into()
            }
            error => error,
        }
    }

    /// Returns the error of a request whose time is over.
    pub(super) fn late(&self, patience: Duration) -> KvError {
        let why = match &*locked(&self.failed) {
            Some(last) => format!("no leader has answered within {patience:?}; the last failure: {last}"),
            None => format!("no leader has answered within {patience:?}"),
        };
        let executed = if self.may_be_executed() { Executed::Maybe } else { Executed::No };
        Status::deadline_exceeded(why).with_executed(executed).into()
    }
}

/// Returns whether another attempt may go well.
pub(super) fn is_passing(error: &KvError) -> bool {
    match error {
        KvError::NotLeader { .. } | KvError::NoQuorum(_) => true,
        KvError::Rpc(status) => {
            matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_while_there_is_no_leader_and_further_while_it_is_busy() {
        let no_leader = KvError::NotLeader { leader: None };
        let busy = Status::new(Code::ResourceExhausted, "too many calls").into();
        for (error, most) in [(no_leader, [20, 40, 80, 160, 160, 160]), (busy, [20, 40, 80, 160, 320, 640])] {
            let rounds: Vec<_> = (0..100)
                .map(|_| {
                    let mut pauses = Pauses::default();
                    most.map(|_| pauses.after(&error).as_millis())
                })
                .collect();
            for (at, most) in most.into_iter().enumerate() {
                let all = || rounds.iter().map(|round| round[at]);
                assert!(all().all(|pause| (most / 2..=most).contains(&pause)), "{error}: {rounds:?}");
                assert!(all().min() < all().max(), "clients of a lost leader do not come back at once");
            }
        }
    }

    /// Makes an attempt that ends with this status, and returns its error.
    async fn fail(tries: &Tries, code: Code, executed: Executed) -> KvError {
        let status = Status::new(code, "it has failed").with_executed(executed);
        let result: Result<(), KvError> = tries.attempt(async { Err(status.into()) }).await;
        result.expect_err("the attempt fails")
    }

    fn executed(error: &KvError) -> Executed {
        match error {
            KvError::Rpc(status) => status.executed(),
            other => panic!("not a status: {other}"),
        }
    }

    #[tokio::test]
    async fn a_refusal_counts_as_not_executed_unless_an_earlier_attempt_may_be_executed() {
        let tries = Tries::default();
        let refused = fail(&tries, Code::Unimplemented, Executed::No).await;
        assert_eq!(executed(&tries.judge(refused)), Executed::No);

        fail(&tries, Code::Unavailable, Executed::Maybe).await;
        let refused = fail(&tries, Code::Unimplemented, Executed::No).await;
        assert_eq!(executed(&tries.judge(refused)), Executed::Maybe);
    }

    #[tokio::test]
    async fn opening_a_session_does_not_count_as_making_the_change() {
        let tries = Tries::default();
        tries.open();
        let failed = fail(&tries, Code::Internal, Executed::Yes).await;
        assert_eq!(executed(&tries.judge(failed)), Executed::No);
        fail(&tries, Code::Unavailable, Executed::Maybe).await;
        assert_eq!(executed(&tries.late(Duration::ZERO)), Executed::No);

        tries.begin();
        assert_eq!(executed(&tries.late(Duration::ZERO)), Executed::No);
        fail(&tries, Code::Unavailable, Executed::Maybe).await;
        assert_eq!(executed(&tries.late(Duration::ZERO)), Executed::Maybe);
    }
}
