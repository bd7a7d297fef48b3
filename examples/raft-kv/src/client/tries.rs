//! The attempts of a request: what became of them so far.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farcall::{Code, Executed, Status};

use crate::locked;
use crate::service::KvError;

/// The attempts of a request so far.
#[derive(Default)]
pub(super) struct Tries {
    /// Whether a leader may have executed one, or may still do so.
    executed: AtomicBool,
    failed: Mutex<Option<KvError>>,
}

impl Tries {
    /// Notes that the calls so far did not make the change that is asked for.
    pub(super) fn begin(&self) {
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

    /// Returns whether an attempt may have been executed whose result did not come.
    pub(super) fn may_be_executed(&self) -> bool {
        self.executed.load(Ordering::Relaxed)
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
