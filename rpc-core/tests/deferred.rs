//! Long messages that are not read yet, because their sender already holds more than its share of the server's memory.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use farcall_core::client::RawChannel;
use farcall_core::config::Policy;
use farcall_core::memory::PeerMemory;
use farcall_core::status::{Code, Executed, Result};
use tokio::task::JoinHandle;

use support::fabric::{Fabric, settings};
use support::reading::Shared;
use support::{ECHO, HANG, Setup, bytes, call, setup, until};

const MIB: usize = 1 << 20;

/// The memory for peers. Greedy ones are held back from five eighths of it on, and closed from seven eighths on.
const MEMORY: usize = 16 * MIB;

/// How many hanging calls make a connection greedy, with arguments of this length each.
const HANGING: usize = 5;
const ARGUMENT: usize = 2 * MIB + LONG;

/// The length of the message that waits: longer than a frame, and short enough for what is left of the budget.
const LONG: usize = 200 << 10;

/// A connection with an upgraded link that holds most of the budget.
struct Greedy {
    t: Setup,
    fabric: Arc<Fabric>,
    memory: Arc<Shared>,
    hanging: Vec<JoinHandle<Result<Bytes>>>,
}

impl Greedy {
    async fn new() -> Self {
        let memory = Arc::new(Shared::default());
        let fabric = Arc::new(Fabric::readable(&memory));
        let mut server = settings(&fabric, Policy::Auto);
        server.limits.memory = MEMORY as u64;
        let t = setup(settings(&fabric, Policy::Auto), server);
        let mut hanging = Vec::new();
        for i in 1..=HANGING {
            hanging.push(t.spawn(HANG, bytes(ARGUMENT, i)));
            t.seen.started.notified().await;
            assert_eq!(memory.reads.load(Ordering::Relaxed), i, "arguments are read while there is room");
        }
        Self { t, fabric, memory, hanging }
    }

    /// Makes a call whose argument the server has been told of, and does not read.
    async fn deferred(&self) -> JoinHandle<Result<Bytes>> {
        let waiting = self.t.spawn(ECHO, bytes(LONG, 0));
        until("the server knows of it", || self.held().partial > 0 || self.reads() > HANGING).await;
        // Whatever would read it has its turn.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            (self.reads(), self.memory.exposed()),
            (HANGING, 1),
            "it is read although there is no room"
        );
        assert!(self.held().partial < LONG, "memory is taken for it: {:?}", self.held());
        waiting
    }

    /// Returns how many messages were read, in both directions.
    fn reads(&self) -> usize {
        self.memory.reads.load(Ordering::Relaxed)
    }

    fn held(&self) -> PeerMemory {
        self.t.host.memory().peers().pop().expect("all connections have one origin")
    }

    /// Returns how many connections there have been.
    fn connections(&self) -> usize {
        self.t.near.taps.lock().expect("no test has panicked").len()
    }

    /// Has the hanging calls end, and with them what makes the connection greedy.
    fn let_go(&self) {
        self.hanging.iter().for_each(JoinHandle::abort);
    }

    /// Waits until the server holds no message, and nothing is exposed to it.
    async fn until_nothing_is_held(&self) {
        let host = &self.t.host;
        until("memory stays taken", || host.memory().used() <= 128 << 10).await;
        until("a message stays exposed", || self.memory.exposed() == 0).await;
    }
}

/// Fails where a call has no outcome. Time is paused, so that this costs none.
async fn outcome(call: JoinHandle<Result<Bytes>>) -> Result<Bytes> {
    let outcome = tokio::time::timeout(Duration::from_secs(60), call).await;
    outcome.expect("the call has no outcome").expect("no panic")
}

#[tokio::test(start_paused = true)]
async fn a_long_message_of_a_greedy_peer_is_read_when_memory_becomes_free() {
    let greedy = Greedy::new().await;
    let waiting = greedy.deferred().await;
    // Other connections are served meanwhile.
    let honest = RawChannel::new(greedy.t.near.clone(), settings(&greedy.fabric, Policy::Auto));
    let sent = bytes(LONG, 1);
    assert_eq!(call(&honest, &greedy.t.info, ECHO, sent.clone()).await.as_ref(), Ok(&sent));
    assert_eq!(greedy.reads(), HANGING + 2, "an argument and an answer of the honest one");
    assert!(!waiting.is_finished());
    greedy.let_go();
    assert_eq!(outcome(waiting).await, Ok(bytes(LONG, 0)));
    assert_eq!(greedy.reads(), HANGING + 4);
    greedy.until_nothing_is_held().await;
}

#[tokio::test(start_paused = true)]
async fn a_long_message_for_which_no_memory_becomes_free_is_refused() {
    let greedy = Greedy::new().await;
    let waiting = greedy.deferred().await;
    let runs = greedy.t.seen.runs();
    let refusal = outcome(waiting).await.expect_err("there is no room");
    assert_eq!((refusal.code(), refusal.executed()), (Code::ResourceExhausted, Executed::No), "{refusal}");
    assert_eq!((greedy.reads(), greedy.t.seen.runs()), (HANGING, runs));
    greedy.let_go();
    greedy.until_nothing_is_held().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_while_its_message_waits_leaves_nothing() {
    let greedy = Greedy::new().await;
    let waiting = greedy.deferred().await;
    let runs = greedy.t.seen.runs();
    waiting.abort();
    greedy.let_go();
    greedy.until_nothing_is_held().await;
    assert_eq!(greedy.t.seen.runs(), runs, "a handler ran for a cancelled call");
    // The connection goes on.
    let sent = bytes(LONG, 2);
    assert_eq!(greedy.t.call(ECHO, sent.clone()).await.as_ref(), Ok(&sent));
    assert_eq!(greedy.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ends_while_a_message_waits_leaves_nothing() {
    let greedy = Greedy::new().await;
    let waiting = greedy.deferred().await;
    greedy.t.tap().cut();
    outcome(waiting).await.expect_err("its connection is closed");
    let host = &greedy.t.host;
    until("the connection stays", || host.connections().is_empty()).await;
    until("memory stays taken", || host.memory().used() == 0).await;
    assert_eq!(greedy.reads(), HANGING);
}
