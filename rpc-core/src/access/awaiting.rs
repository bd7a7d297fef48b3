//! Waiting for what a device does by itself.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::coop;

use crate::calls::BusyPolling;
use crate::transport::Link;

/// Waits for what a link has begun. `None`: the link has failed.
///
/// The device does it without the peer's program, so it may be done by now. So the caller looks first, and then polls while that pays.
/// Then no other task wakes it, and the task that serves the link has no turn between.
pub(super) async fn done<T>(link: Arc<dyn Link>, mut answer: oneshot::Receiver<T>) -> Option<T> {
    // Callers that never have to wait must let other tasks run all the same.
    coop::consume_budget().await;
    link.look();
    if let Ok(done) = answer.try_recv() {
        return Some(done);
    }
    let mut polling = BusyPolling::by(link);
    poll_fn(|cx| {
        polling.poll();
        let done = Pin::new(&mut answer).poll(cx).map(Result::ok);
        if done.is_pending() {
            polling.again(cx);
        }
        done
    })
    .await
}
