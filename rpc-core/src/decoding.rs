//! Decoding of long messages, away from the tasks that read connections.
//!
//! A task that decodes for long holds up its thread, and with it whatever else the runtime has given to that thread: in a runtime
//! with one thread everything, in others the task that was woken last. Either may be the reader of a connection. A caller that
//! polls its link itself has let go of it by then, but runs on such a thread, too. So arguments, answers and items above
//! [`VERY_LONG`] are decoded [`apart`].

mod threads;

use std::any::TypeId;
use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Poll;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::codec::{Codec, Raw};
use crate::memory::HostTurn;
use crate::payload::Payload;

/// The length, in bytes, above which a message takes milliseconds to decode or decompress. A [thread for that](threads) does it then.
pub(crate) const VERY_LONG: usize = 256 << 10;

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

/// Runs `decode` on [another thread](threads), inside the runtime of the caller. Hosts take turns, so that one with many messages keeps no
/// other waiting. `host`: the client's, if a client has sent the message.
pub(crate) async fn apart<R: Send + 'static>(
    host: Option<HostTurn>,
    decode: impl FnOnce() -> R + Send + 'static,
) -> R {
    // Outside of a runtime, no connection shares this thread.
    let Ok(runtime) = Handle::try_current() else { return decode() };
    let (tell, decoded) = oneshot::channel();
    let inside = runtime.clone();
    let job = move || {
        let _inside = inside.enter();
        // The call may have been given up.
        let _ = tell.send(catch_unwind(AssertUnwindSafe(decode)));
    };
    // Its clock may be paused, and stands still only while its own pool works.
    let runs_in_pool = runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
    // In a task, because nobody may poll this future while others of the host wait for their turn. A call that is given up before its turn
    // leaves no job behind.
    let waits = runtime.spawn(async move {
        let turn = match host {
            Some(host) => host.wait(threads::turn()).await,
            None => threads::turn().await,
        };
        if runs_in_pool {
            turn.run_in_pool(&Handle::current(), job);
        } else {
            turn.run(job);
        }
    });
    let _waits = AbortOnDrop(waits.abort_handle());
    match decoded.await {
        Ok(Ok(decoded)) => decoded,
        Ok(Err(panic)) => resume_unwind(panic),
        // The runtime shuts down, and drops this future, too.
        Err(_) => pending().await,
    }
}

/// Ends a task, unless it has ended.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
