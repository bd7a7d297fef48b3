//! Waiting for what a device does by itself.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::task::coop;

use crate::session::BusyPolling;
use crate::transport::Link;

/// The most bytes of an operation whose caller looks for the end by itself.
const SHORT: usize = 8 << 10;

/// An operation that a link has begun. Resolves to its outcome, or to `None` if the link has failed.
///
/// The device works without the peer's program and may have finished already. So the caller of a short operation looks first, and then
/// polls while that pays. If it finds the end itself, it needs no other task to wake it, and no turn of the task that serves the link.
/// A long operation has many pieces. Its caller would post one after the other, while calls wait for that task.
pub(super) struct Begun<T> {
    link: Arc<dyn Link>,
    answer: oneshot::Receiver<T>,
    is_short: bool,
    /// `None`: the caller has not looked yet.
    polling: Option<BusyPolling>,
}

impl<T> Begun<T> {
    /// Returns an operation on `len` bytes.
    pub(super) fn new(link: Arc<dyn Link>, answer: oneshot::Receiver<T>, len: usize) -> Self {
        Self { link, answer, is_short: len <= SHORT, polling: None }
    }
}

impl<T> Future for Begun<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let Self { link, answer, is_short, polling } = self.get_mut();
        if !*is_short {
            return Pin::new(answer).poll(cx).map(Result::ok);
        }
        let mut may_poll = true;
        if polling.is_none() {
            // Callers that never have to wait must let other tasks run all the same.
            ready!(coop::poll_proceed(cx)).made_progress();
            may_poll = link.look();
        }
        match answer.try_recv() {
            Ok(done) => return Poll::Ready(Some(done)),
            Err(TryRecvError::Closed) => return Poll::Ready(None),
            Err(TryRecvError::Empty) => {}
        }
        let polling = polling.get_or_insert_with(|| BusyPolling::by(Arc::clone(link)));
        if may_poll {
            polling.poll();
        }
        let done = Pin::new(answer).poll(cx).map(Result::ok);
        if done.is_pending() {
            polling.again(cx);
        }
        done
    }
}
