//! Servers that say whether they serve.

use std::convert::Infallible;
use std::fmt;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;

use crate::backoff;
use crate::client::RawChannel;
use crate::client::connector::Shared;
use crate::connection::Connection;
use crate::status::{Code, Status};
use crate::stream::Stream;

/// The pause before a server is asked again after one failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause before a server is asked again, except for chance.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The answers of a server: whether calls should go there, at first and at each change. An error is why the server does not tell, and is the
/// last item.
pub type Answers = Pin<Box<dyn Stream<Item = Result<bool, Status>> + Send>>;

/// The way to ask a server whether it serves. See [`Endpoint::health`](super::Endpoint::health).
pub trait WatchHealth: fmt::Debug + Send + Sync + 'static {
    /// Asks a server. `server` leads there by the connection that the balancing channel has. Its calls have the default settings, and no
    /// middleware. Dropping the answers must end the call.
    ///
    /// A server whose answers end is asked again after a pause: about a second at first, then twice as long each time without an answer
    /// between, up to 30 s. After UNIMPLEMENTED it is asked by its next connection.
    fn watch(&self, server: RawChannel) -> Answers;
}

/// A server's own word on whether it serves.
pub(super) struct Health {
    by: Arc<dyn WatchHealth>,
    /// Whether its last word is that it does not.
    says_no: AtomicBool,
    /// Whether a warning has said why the server does not tell.
    has_warned: AtomicBool,
    /// Held by the connection that asks. One of several is enough.
    turn: Mutex<()>,
}

impl Health {
    pub(super) fn new(by: Arc<dyn WatchHealth>) -> Self {
        let (says_no, has_warned) = Default::default();
        Self { by, says_no, has_warned, turn: Mutex::default() }
    }

    /// Whether the server says that it does not serve. Its last word counts until the next, even if it has lost its connection since.
    pub(super) fn says_no(&self) -> bool {
        self.says_no.load(Ordering::Relaxed)
    }

    /// Asks the server of a connection until that takes no more calls. `changed` is called when it says something else than before.
    pub(super) async fn ask(&self, lane: &Arc<Shared>, connection: &Connection, changed: impl Fn()) {
        tokio::select! {
            // First, so that the end of a connection is no failure of the server.
            biased;
            () = connection.not_open() => {}
            never = self.ask_again_and_again(lane, changed) => match never {},
        }
    }

    async fn ask_again_and_again(&self, lane: &Arc<Shared>, changed: impl Fn()) -> Infallible {
        let _turn = self.turn.lock().await;
        let mut failures = 0;
        loop {
            let mut answers = self.by.watch(RawChannel::by_lane(Arc::clone(lane)));
            let why = loop {
                match poll_fn(|cx| answers.as_mut().poll_next(cx)).await {
                    Some(Ok(serves)) => {
                        failures = 0;
                        self.note(serves, &changed);
                    }
                    Some(Err(why)) => break Some(why),
                    None => break None,
                }
            };
            drop(answers);
            // A server that ends its answers is perhaps about to drain. So its last word counts on.
            if let Some(why) = why {
                self.warn(lane, &why);
                self.note(true, &changed);
                if why.code() == Code::Unimplemented {
                    return pending().await;
                }
            }
            tokio::time::sleep(backoff::pause(failures, FIRST_PAUSE, LONGEST_PAUSE)).await;
            failures += 1;
        }
    }

    fn note(&self, serves: bool, changed: impl Fn()) {
        if self.says_no.swap(!serves, Ordering::Relaxed) == serves {
            changed();
        }
    }

    /// Logs why the server does not tell: as a warning the first time.
    fn warn(&self, lane: &Shared, why: &Status) {
        let server = lane.connector.target();
        if self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::debug!(server, %why, "a server does not tell whether it serves");
        } else {
            tracing::warn!(server, %why, "a server does not tell whether it serves, and counts as serving");
        }
    }
}
