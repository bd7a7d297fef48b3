//! Decoding of long messages, away from the tasks that read connections.
//!
//! A task that decodes for long holds up its thread, and with it whatever else the runtime has given to that thread: in a runtime
//! with one thread everything, in others the task that was woken last. Either may be the reader of a connection. A caller that
//! polls its link itself has let go of it by then, but runs on such a thread, too. So arguments, answers and items above
//! [`VERY_LONG`] are decoded [`apart`].

use std::any::TypeId;
use std::future::{pending, poll_fn};
use std::panic::resume_unwind;
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::thread;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::codec::{Codec, Raw};
use crate::payload::Payload;

/// The length, in bytes, above which a message takes milliseconds to decode or decompress. A thread for blocking work does it then.
pub(crate) const VERY_LONG: usize = 256 << 10;

/// A permit for each job that may run at once. More would not be faster, and would take more memory.
static JOBS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    Arc::new(Semaphore::new(jobs))
});

/// Waits until the handler that awaits it runs in its own task. A handler gets a task when its first poll leaves it
/// unfinished.
pub async fn in_task() {
    let mut polled = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut polled, true) {
            return Poll::Ready(());
        }
        // Wakes a handler that runs in its own task already.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Whether a message takes long to decode.
#[inline]
pub(crate) fn is_long(payload: &Payload) -> bool {
    // Most are short, which takes one look.
    payload.short_len().is_none() && payload.body_len() > VERY_LONG
}

/// Whether this codec decodes anything: [`Raw`] returns what it is given, however long it is.
#[inline]
pub(crate) fn is_decoded<C: Codec>() -> bool {
    TypeId::of::<C>() != TypeId::of::<Raw>()
}

/// Runs `decode` on a thread for blocking work.
pub(crate) async fn apart<R: Send + 'static>(decode: impl FnOnce() -> R + Send + 'static) -> R {
    // Outside of a runtime, no connection shares this thread.
    let Ok(runtime) = Handle::try_current() else { return decode() };
    // A call that is given up while it waits here leaves no job behind. The semaphore is never closed.
    let permit = JOBS.clone().acquire_owned().await;
    let job = runtime.spawn_blocking(move || {
        let _permit = permit;
        decode()
    });
    match job.await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(decoded) => decoded,
        Err(Ok(panic)) => resume_unwind(panic),
        // The runtime shuts down, and drops this future, too.
        Err(Err(_)) => pending().await,
    }
}
