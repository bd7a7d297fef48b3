//! The client's session: it numbers requests, and says which of them are open.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::locked;
use crate::service::{KvError, MOST_OPEN};
use crate::types::RequestId;

/// The session of a client, which is opened when the first request needs it.
#[derive(Default)]
pub(super) struct Sessions {
    /// The session that new requests belong to.
    current: Mutex<Option<Arc<Session>>>,
    /// Locked while a session is being opened.
    opening: tokio::sync::Mutex<()>,
}

impl Sessions {
    /// Returns the identity of a new request. `open` opens a session, if there is none.
    pub(super) async fn request<F>(&self, open: impl Fn(u128) -> F) -> Result<Request, KvError>
    where
        F: Future<Output = Result<(), KvError>>,
    {
        let session = match self.current() {
            Some(session) => session,
            None => {
                let _alone = self.opening.lock().await;
                match self.current() {
                    Some(session) => session,
                    None => {
                        let number = fastrand::u128(..);
                        open(number).await?;
                        let session = Arc::new(Session { number, ..Session::default() });
                        *locked(&self.current) = Some(session.clone());
                        session
                    }
                }
            }
        };
        Ok(session.begin().await)
    }

    /// Notes that the store does not know a session any more.
    pub(super) fn ended(&self, session: u128) {
        locked(&self.current).take_if(|current| current.number == session);
    }

    fn current(&self) -> Option<Arc<Session>> {
        locked(&self.current).clone()
    }
}

#[derive(Default)]
struct Session {
    number: u128,
    requests: Mutex<Requests>,
    /// Told when a request ends.
    ended: Notify,
}

#[derive(Default)]
struct Requests {
    /// The number of the latest request.
    latest: u64,
    open: BTreeSet<u64>,
}

impl Session {
    /// Begins a request, once the oldest open one is near enough.
    async fn begin(self: Arc<Self>) -> Request {
        loop {
            let ended = self.ended.notified();
            if let Some(id) = self.try_begin() {
                return Request { id, session: self.clone() };
            }
            ended.await;
        }
    }

    fn try_begin(&self) -> Option<RequestId> {
        let mut requests = locked(&self.requests);
        let number = requests.latest + 1;
        let first_open = requests.open.first().copied().unwrap_or(number);
        if number - first_open >= MOST_OPEN {
            return None;
        }
        requests.latest = number;
        requests.open.insert(number);
        Some(RequestId { session: self.number, number, first_open })
    }
}

/// A request that is open until this is dropped.
pub(super) struct Request {
    id: RequestId,
    session: Arc<Session>,
}

impl Request {
    pub(super) fn id(&self) -> RequestId {
        self.id
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        locked(&self.session.requests).open.remove(&self.id.number);
        self.session.ended.notify_waiters();
    }
}
