//! Processes that are stopped, go on, and are killed, in the middle of long messages.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod process;
mod work;

use std::collections::HashMap;
use std::future::pending;
use std::time::Duration;

use farcall::{Channel, Code, Config, Executed, Policy};
use tokio::sync::Mutex;

use process::{Holdings, Process, say, told};
use work::{Load, Log, PATIENCE, SIZES, WorkClient, connect, until};

/// One after the other: who waits for a CPU may be taken for one that is stopped.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Messages that are read from their sender's memory.
const LONG: [usize; 3] = [100_000, 500_000, 1 << 20];

fn config() -> Config {
    let mut config = Config::default();
    config.transport = Some(Policy::Rdma);
    config.rdma.strict_credits = true;
    // One arena for each direction, so that how much memory is registered does not depend on the load.
    config.rdma.bulk_memory = 8 << 20;
    config.liveness.connect_ms = 30_000;
    config
}

/// Finds a peer silent after 2.4 s, at most, and does not wait long for one that does not answer.
fn impatient() -> Config {
    let mut config = config();
    config.liveness.connect_ms = 5000;
    config.liveness.ping_ms = 600;
    config.liveness.missed_pings = 2;
    config
}

async fn executed(work: &WorkClient) -> HashMap<u64, u32> {
    work.executed().await.unwrap().into_iter().collect()
}

/// Not a test by itself: a server in a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_server() {
    if told().is_some() {
        let (address, _server) = work::serve(&Log::default(), config()).await;
        say(&address);
        pending::<()>().await;
    }
}

/// Not a test by itself: callers in a process of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_client() {
    if let Some(address) = told() {
        let work = WorkClient::new(connect(&address, &config()).await);
        let hanging = tokio::spawn(work.hang(1000 << 32).into_future());
        let load = Load::start(&work, 0, 4, &LONG);
        load.go_on(8).await;
        say("under load");
        hanging.await.unwrap().unwrap();
    }
}

/// Not a test by itself: callers in a process of their own that see to it that none of their calls is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_careful_client() {
    if let Some(address) = told() {
        let work = WorkClient::new(connect(&address, &config()).await);
        let load = Load::start(&work, 0, 8, &SIZES);
        load.go_on(20).await;
        say("under load");
        load.go_on(200).await;
        let outcomes = load.stop().await;
        outcomes.all_answered();
        outcomes.agree_with(&executed(&work).await);
        say("content");
    }
}

fn start_server() -> (Process, String) {
    let mut server = Process::start("part_server", "");
    let address = server.said();
    (server, address)
}

async fn by_rdma(address: &str, config: &Config) -> Channel {
    let channel = connect(address, config).await;
    assert_eq!(channel.transport().await.unwrap().name, "rdma");
    channel
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stopped_for_a_moment_costs_no_call() {
    let _alone = ALONE.lock().await;
    let (server, address) = start_server();
    let channel = by_rdma(&address, &config()).await;
    let work = WorkClient::new(&channel);
    let load = Load::start(&work, 0, 8, &SIZES);
    for _ in 0..3 {
        load.go_on(20).await;
        server.stop();
        tokio::time::sleep(Duration::from_millis(700)).await;
        server.signal("CONT");
    }
    load.go_on(20).await;
    let outcomes = load.stop().await;
    outcomes.all_answered();
    outcomes.agree_with(&executed(&work).await);
    let transport = channel.transport().await.unwrap();
    assert_eq!(transport.name, "rdma", "{transport}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_a_server_that_is_stopped_for_long_end_and_it_serves_again_afterwards() {
    let _alone = ALONE.lock().await;
    let (server, address) = start_server();
    let work = WorkClient::new(by_rdma(&address, &impatient()).await);
    let hanging = tokio::spawn(work.hang(1000 << 32).into_future());
    let load = Load::start(&work, 0, 8, &SIZES);
    load.go_on(20).await;
    server.stop();
    let outcomes = load.fail().await;
    outcomes.all_say(&["no sign of the peer"]);
    let error = hanging.await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe), "{error}");
    server.signal("CONT");
    // The old channel connects anew, too.
    for work in [work, WorkClient::new(by_rdma(&address, &impatient()).await)] {
        let after = Load::start(&work, 100, 4, &SIZES);
        after.go_on(20).await;
        after.stop().await.all_answered();
    }
    let work = WorkClient::new(by_rdma(&address, &impatient()).await);
    // Calls that had arrived when it was stopped may have been executed since.
    until("it gives up the connection that ended", async || work.connections().await.unwrap() <= 1).await;
    outcomes.agree_with(&executed(&work).await);
}

fn long() -> bool {
    std::env::var_os("FARCALL_LONG").is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_stopped_loses_no_call_and_holds_up_nobody_else() {
    let _alone = ALONE.lock().await;
    let (address, server) = work::serve(&Log::default(), config()).await;
    let other = WorkClient::new(by_rdma(&address, &config()).await);
    let mut client = Process::start("part_careful_client", &address);
    assert_eq!(client.said(), "under load");
    client.stop();
    let others = Load::start(&other, 100, 2, &SIZES);
    others.go_on(20).await;
    if long() {
        // The lease of what it was to read ends, and the rest goes by TCP. From then on it has another ten seconds. Where it
        // was stopped with nothing to read, it keeps its link.
        let by_tcp = async || server.connections().iter().any(|end| end.transport().name == "tcp");
        let _ = tokio::time::timeout(Duration::from_secs(15), until("its lease ends", by_tcp)).await;
        others.go_on(20).await;
    }
    others.stop().await.all_answered();
    assert_eq!(server.connections().len(), 2, "it may come back");
    client.signal("CONT");
    assert_eq!(client.said(), "content");
}

fn rounds() -> usize {
    if long() { 20 } else { 2 }
}

/// The holdings of this process while none of its peers is in trouble.
struct Baseline {
    holdings: Holdings,
    is_whole: bool,
}

impl Baseline {
    fn new() -> Self {
        Self { holdings: Holdings::now(), is_whole: false }
    }

    async fn is_reached_again(&mut self) {
        if self.is_whole {
            let what = format!("everything comes back to {:?}", self.holdings);
            until(&what, async || Holdings::now().within(&self.holdings)).await;
        } else {
            // The first peer leaves what others find: memory that is registered, threads that wait for work.
            until("queue pairs go", async || Holdings::now().ends_within(&self.holdings)).await;
            *self = Self { holdings: Holdings::now(), is_whole: true };
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_killed_amid_long_messages_leaves_nothing_with_the_server() {
    let _alone = ALONE.lock().await;
    let log = Log::default();
    let (address, server) = work::serve(&log, config()).await;
    let other = WorkClient::new(by_rdma(&address, &config()).await);
    let mut before = Baseline::new();
    for _ in 0..rounds() {
        let mut client = Process::start("part_client", &address);
        assert_eq!(client.said(), "under load");
        let others = Load::start(&other, 100, 2, &LONG);
        others.go_on(2).await;
        until("its call hangs", async || log.hanging() == 1).await;
        client.kill().await;
        others.go_on(4).await;
        others.stop().await.all_answered();
        until("the server sees it go", async || server.connections().len() == 1).await;
        until("its handler is dropped", async || log.hanging() == 0).await;
        before.is_reached_again().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_amid_long_messages_ends_every_call_saying_so() {
    let _alone = ALONE.lock().await;
    let mut before = Baseline::new();
    for _ in 0..rounds() {
        let (server, address) = start_server();
        let channel = by_rdma(&address, &config()).await;
        let work = WorkClient::new(&channel);
        let hanging = tokio::spawn(work.hang(1000 << 32).into_future());
        let load = Load::start(&work, 0, 4, &LONG);
        load.go_on(8).await;
        server.kill().await;
        load.fail().await.all_say(&["ended", "reset", "closed"]);
        let error = tokio::time::timeout(PATIENCE, hanging).await.expect("it ends").unwrap().unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe), "{error}");
        drop((work, channel));
        before.is_reached_again().await;
    }
}
