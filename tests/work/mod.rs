//! Parts that tests of failures share: a service that writes down what it executed, and callers whose outcomes can be held
//! against that.

#![expect(dead_code, reason = "each test uses a part of it")]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use farcall::{Bytes, Channel, Code, Config, Executed, Handle, Server, Status};
use tokio::task::JoinHandle;

/// A guard against hangs only.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

#[farcall::service(package = "test")]
pub(crate) trait Work {
    /// Whether the content is what is [made](made) of `id`, which is written down.
    async fn check(&self, id: u64, content: Bytes) -> farcall::Result<bool>;
    /// So many bytes that are made of `id`, which is written down.
    async fn make(&self, id: u64, len: u32) -> farcall::Result<Bytes>;
    /// Never returns; `id` is written down.
    async fn hang(&self, id: u64) -> farcall::Result<()>;
    /// How often each id was executed.
    async fn executed(&self) -> farcall::Result<Vec<(u64, u32)>>;
    /// How many connections the server has.
    async fn connections(&self) -> farcall::Result<u32>;
}

/// The server's part.
#[derive(Clone, Default)]
pub(crate) struct Log {
    executed: Arc<Mutex<HashMap<u64, u32>>>,
    hanging: Arc<AtomicUsize>,
    server: Arc<OnceLock<Handle>>,
}

impl Log {
    fn note(&self, id: u64) {
        *self.executed.lock().unwrap().entry(id).or_default() += 1;
    }

    /// This is the server that it is the log of.
    pub(crate) fn is_of(&self, server: &Server) {
        assert!(self.server.set(server.handle()).is_ok());
    }

    /// How many handlers hang.
    pub(crate) fn hanging(&self) -> usize {
        self.hanging.load(Ordering::Relaxed)
    }

    pub(crate) fn times(&self) -> HashMap<u64, u32> {
        self.executed.lock().unwrap().clone()
    }
}

struct Hanging(Arc<AtomicUsize>);

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Work for Log {
    async fn check(&self, id: u64, content: Bytes) -> farcall::Result<bool> {
        self.note(id);
        Ok(content == made(id, content.len()))
    }

    async fn make(&self, id: u64, len: u32) -> farcall::Result<Bytes> {
        self.note(id);
        Ok(made(id, len as usize))
    }

    async fn hang(&self, id: u64) -> farcall::Result<()> {
        self.note(id);
        self.hanging.fetch_add(1, Ordering::Relaxed);
        let _hanging = Hanging(self.hanging.clone());
        pending().await
    }

    async fn executed(&self) -> farcall::Result<Vec<(u64, u32)>> {
        Ok(self.times().into_iter().collect())
    }

    async fn connections(&self) -> farcall::Result<u32> {
        Ok(self.server.get().unwrap().connections().len() as u32)
    }
}

/// Serves on this machine; gives the address.
pub(crate) async fn serve(log: &Log, config: Config) -> (String, Handle) {
    let server = Server::builder().add(WorkServer::new(log.clone())).config(config).bind("127.0.0.1:0");
    let server = server.await.unwrap();
    log.is_of(&server);
    let (address, handle) = (format!("farcall://{}", server.local_addr()), server.handle());
    tokio::spawn(server.serve());
    (address, handle)
}

/// Connects as often as it takes: who listens there may be busy, or not as far yet.
pub(crate) async fn connect(address: &str, config: &Config) -> Channel {
    let connected = async {
        loop {
            match Channel::builder().config(config.clone()).connect(address).await {
                Ok(channel) => return channel,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, connected).await.expect("somebody must listen")
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("in vain: {what}"));
}

/// A period of 251 bytes, so that a piece in a wrong place shows.
pub(crate) fn made(id: u64, len: usize) -> Bytes {
    let period: Vec<u8> = (0..251_u64).map(|i| (i.wrapping_mul(31) ^ id ^ id >> 32) as u8).collect();
    let mut whole = period.repeat(len / period.len() + 1);
    whole.truncate(len);
    whole.into()
}

/// Short ones, such as fill a frame, and such as are read.
pub(crate) const SIZES: [usize; 6] = [10, 700, 6000, 30_000, 150_000, 600_000];

/// Callers that call one after the other, until they are told to stop or a call fails.
pub(crate) struct Load {
    seen: Arc<Seen>,
    callers: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    over: AtomicBool,
    count: AtomicU64,
    longest_ms: AtomicU64,
    outcomes: Mutex<HashMap<u64, Result<(), Status>>>,
}

impl Seen {
    fn note(&self, id: u64, began: Instant, outcome: Result<(), Status>) -> bool {
        let goes_on = outcome.is_ok();
        self.longest_ms.fetch_max(began.elapsed().as_millis() as u64, Ordering::Relaxed);
        self.count.fetch_add(u64::from(goes_on), Ordering::Relaxed);
        self.outcomes.lock().unwrap().insert(id, outcome);
        goes_on
    }

    fn first_error(&self) -> Option<Status> {
        self.outcomes.lock().unwrap().values().find_map(|outcome| outcome.clone().err())
    }
}

async fn call_on(work: WorkClient, caller: u64, seen: Arc<Seen>, sizes: &'static [usize]) {
    for i in 0.. {
        if seen.over.load(Ordering::Relaxed) {
            return;
        }
        let id = caller << 32 | i;
        let len = sizes[(caller + i) as usize % sizes.len()];
        let began = Instant::now();
        let outcome = if i.is_multiple_of(2) {
            let answer = work.check(id, made(id, len)).await;
            answer.map(|right| assert!(right, "call {id:x}: the server got a wrong content"))
        } else {
            let answer = work.make(id, len as u32).await;
            answer.map(|answer| assert!(answer == made(id, len), "call {id:x}: wrong content"))
        };
        if !seen.note(id, began, outcome) {
            return;
        }
    }
}

impl Load {
    /// Ids begin at `first << 32`.
    pub(crate) fn start(work: &WorkClient, first: u64, callers: u64, sizes: &'static [usize]) -> Self {
        let seen = Arc::<Seen>::default();
        let caller = |n| tokio::spawn(call_on(work.clone(), n, seen.clone(), sizes));
        let callers = (first..first + callers).map(caller).collect();
        Self { seen, callers }
    }

    /// How many calls have been answered.
    pub(crate) fn answered(&self) -> u64 {
        self.seen.count.load(Ordering::Relaxed)
    }

    /// Waits until so many more have been answered.
    pub(crate) async fn go_on(&self, calls: u64) {
        let before = self.answered();
        let is_answered = || self.answered() >= before + calls;
        until("calls are answered", async || {
            // Nobody is left to call: the error says more than waiting would.
            let is_over = self.callers.iter().all(JoinHandle::is_finished);
            assert!(!is_over || is_answered(), "all calls fail: {:?}", self.seen.first_error());
            is_answered()
        })
        .await;
    }

    /// Lets each caller finish its call.
    pub(crate) async fn stop(self) -> Outcomes {
        self.seen.over.store(true, Ordering::Relaxed);
        self.fail().await
    }

    /// Waits until each caller's call has failed.
    pub(crate) async fn fail(self) -> Outcomes {
        for caller in self.callers {
            tokio::time::timeout(PATIENCE, caller).await.expect("every call must end").unwrap();
        }
        let outcomes = std::mem::take(&mut *self.seen.outcomes.lock().unwrap());
        Outcomes { calls: outcomes, longest_ms: self.seen.longest_ms.load(Ordering::Relaxed) }
    }
}

/// The outcomes that callers have seen.
pub(crate) struct Outcomes {
    pub(crate) calls: HashMap<u64, Result<(), Status>>,
    pub(crate) longest_ms: u64,
}

impl Outcomes {
    pub(crate) fn errors(&self) -> impl Iterator<Item = &Status> {
        self.calls.values().filter_map(|outcome| outcome.as_ref().err())
    }

    pub(crate) fn all_answered(&self) {
        if let Some(error) = self.errors().next() {
            panic!("a call was lost: {error}");
        }
    }

    /// Each call that failed did so because the other side went, and says why in these words or that nothing was executed.
    pub(crate) fn all_say(&self, words: &[&str]) {
        for error in self.errors() {
            assert_eq!(error.code(), Code::Unavailable, "{error}");
            let says = words.iter().any(|words| error.message().contains(words));
            assert!(says || error.executed() == Executed::No, "{error}");
        }
    }

    /// No outcome contradicts what was executed.
    pub(crate) fn agree_with(&self, executed: &HashMap<u64, u32>) {
        for (id, outcome) in &self.calls {
            let times = executed.get(id).copied().unwrap_or_default();
            match outcome {
                Ok(()) => assert_eq!(times, 1, "call {id:x} was answered"),
                Err(error) if error.executed() == Executed::No => {
                    assert_eq!(times, 0, "call {id:x}: {error}");
                }
                Err(error) => assert!(times <= 1, "call {id:x} was executed {times} times: {error}"),
            }
        }
    }
}
