//! Streams of all kinds over an RDMA device and over TCP: whole, given up by either end, late, and cut short.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod crowd;
#[path = "../flow/mod.rs"]
mod flow;
mod killed;
#[path = "../process/mod.rs"]
mod process;

use std::sync::Arc;
use std::time::Duration;

use farcall::{
    Bytes, Channel, Code, Config, Connection, EndReason, Executed, Handle, Policy, Server, Stream, stream,
};
use tokio::sync::{Mutex, Notify};

use flow::{ENDLESS, FlowClient, FlowServer, Item, Log, Plan, cut_short, stream_whole, take, until};

/// A guard against hangs only.
const PATIENCE: Duration = Duration::from_secs(300);

/// One after the other: they look at what this process has in use.
static ALONE: Mutex<()> = Mutex::const_new(());

const BOTH: [Policy; 2] = [Policy::Rdma, Policy::Tcp];

/// Not one message for which there is no buffer.
fn config(policy: Policy) -> Config {
    let mut config = Config::default();
    config.transport = Some(policy);
    config.rdma.strict_credits = true;
    // An emulated machine on a busy host is slow.
    config.liveness.connect_ms = 60_000;
    config
}

fn name(policy: Policy) -> &'static str {
    if policy == Policy::Rdma { "rdma" } else { "tcp" }
}

struct Ends {
    flow: FlowClient,
    log: Log,
    near: Arc<Connection>,
    server: Handle,
}

async fn serve(log: &Log, config: Config) -> (String, Handle) {
    let server = Server::builder().add(FlowServer::new(log.clone())).config(config).bind("127.0.0.1:0");
    let server = server.await.unwrap();
    let (address, handle) = (format!("farcall://{}", server.local_addr()), server.handle());
    tokio::spawn(server.serve());
    (address, handle)
}

async fn connect(address: &str, config: Config) -> (FlowClient, Arc<Connection>) {
    let name = name(config.transport.unwrap());
    let channel = Channel::builder().config(config).connect(address).await.unwrap();
    assert_eq!(channel.transport().await.unwrap().name, name);
    let near = channel.connection().await.unwrap();
    (FlowClient::new(channel), near)
}

impl Ends {
    async fn new(config: Config) -> Self {
        let log = Log::default();
        let (address, server) = serve(&log, config.clone()).await;
        let (flow, near) = connect(&address, config).await;
        Self { flow, log, near, server }
    }

    /// No handler is left and no buffer is used; and the connection is still there, by which calls go on.
    async fn nothing_is_left(&self) {
        until("all handlers are gone", PATIENCE, || self.log.running() == 0).await;
        memory_is_back().await;
        let content = Bytes::from_static(b"still here");
        let (echoed, parts) = self.flow.echo(content.clone()).with_parts().await;
        assert_eq!(echoed.unwrap(), content);
        assert!(Arc::ptr_eq(&parts.connection.unwrap(), &self.near), "the connection was lost on the way");
        assert_eq!(self.server.connections().len(), 1);
    }
}

/// No message has any of the memory that is registered for long ones.
async fn memory_is_back() {
    until("all memory is back", PATIENCE, || farcall_rdma::testing::fault::memory_in_use() == 0).await;
}

/// How long items are, and how many of them: several in a frame, one in a frame, in fragments, and such as are read.
const PLANS: [(u32, u64); 11] = [
    (0, 50),
    (1, 50),
    (100, 1500),
    (1000, 200),
    (8000, 50),
    (8192, 20),
    (16_384, 20),
    (70_000, 20),
    (131_073, 10),
    (600_000, 8),
    (4 << 20, 3),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_all_kinds_and_lengths_come_whole() {
    let _alone = ALONE.lock().await;
    for policy in BOTH {
        let ends = Ends::new(config(policy)).await;
        let mut moved = 0;
        for (len, count) in PLANS {
            for id in 0..4 {
                let plan = Plan { id, len, count };
                let whole = tokio::time::timeout(PATIENCE, stream_whole(&ends.flow, plan));
                whole.await.unwrap_or_else(|_| panic!("{plan:?} hangs")).unwrap();
                moved += if id < 2 { plan.bytes() } else { 2 * plan.bytes() };
            }
        }
        let traffic = ends.near.traffic();
        let [by_rdma, by_tcp] =
            [traffic.upgraded, traffic.stream].map(|link| link.bytes_sent + link.bytes_received);
        match policy {
            // By TCP there are acknowledgements, the more the longer it takes.
            Policy::Rdma => {
                assert!(by_rdma > moved && by_tcp < moved / 100, "{moved} were to move: {traffic:?}");
            }
            _ => assert!(by_tcp > moved && by_rdma == 0, "{moved} were to move: {traffic:?}"),
        }
        ends.nothing_is_left().await;
    }
}

/// Lengths of items of the kinds that go different ways.
const LENGTHS: [u32; 3] = [10, 9000, 600_000];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_goes_to_and_fro_and_outlives_the_clients_end() {
    let _alone = ALONE.lock().await;
    for policy in BOTH {
        let ends = Ends::new(config(policy)).await;
        for len in LENGTHS {
            let plan = Plan { id: 0, len, count: 12 };
            let (say, items) = stream::channel(1);
            let mut back = ends.flow.back(plan, items).await.unwrap();
            for number in 0..10 {
                say.send(plan.item(number)).await.unwrap();
                assert!(
                    back.message().await.unwrap() == Some(plan.item(number)),
                    "item {number} of {len} bytes"
                );
            }
            // The rest comes after the end was said.
            say.send(plan.item(10)).await.unwrap();
            say.send(plan.item(11)).await.unwrap();
            drop(say);
            for number in 10..12 {
                assert!(
                    back.message().await.unwrap() == Some(plan.item(number)),
                    "item {number} of {len} bytes"
                );
            }
            assert_eq!(back.message().await.unwrap(), None);
            drop(back);
        }
        ends.nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_stream_or_its_call_ends_the_handler() {
    let _alone = ALONE.lock().await;
    for policy in BOTH {
        let ends = Ends::new(config(policy)).await;
        for (id, len) in (0..).zip(LENGTHS) {
            for taken in [0, 1, 20] {
                let plan = Plan { id, len, count: ENDLESS };
                let mut watched = ends.flow.watch(plan).await.unwrap();
                take(plan, taken, &mut watched).await.unwrap();
                let mut back = ends.flow.back(plan, plan.items()).await.unwrap();
                take(plan, taken, &mut back).await.unwrap();
                drop((watched, back));
                let load = tokio::spawn(ends.flow.load(plan, plan.items()).into_future());
                until("all have begun", PATIENCE, || ends.log.running() > 0).await;
                load.abort();
                ends.nothing_is_left().await;
                assert!(!ends.log.went(id).whole, "a stream that was given up was taken for a whole one");
            }
        }
    }
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Items without an end, and what tells when nobody wants more.
fn endless(plan: Plan) -> (impl Stream<Item = Item> + Send + 'static, Arc<Notify>) {
    let given_up = Arc::new(Notify::new());
    let notify = NotifyOnDrop(given_up.clone());
    let items = stream::iter((0..).map(move |number| {
        let _ = &notify;
        plan.item(number)
    }));
    (items, given_up)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_has_enough_stops_its_client_and_goes_on() {
    let _alone = ALONE.lock().await;
    for policy in BOTH {
        let ends = Ends::new(config(policy)).await;
        for len in [10, 9000, 30_000, 600_000] {
            for count in [0, 1, 5] {
                let plan = Plan { id: 0, len, count };
                let (items, given_up) = endless(plan);
                let call = tokio::spawn(ends.flow.taste(plan, items).into_future());
                tokio::time::timeout(PATIENCE, given_up.notified()).await.expect("it is told to stop");
                assert!(!call.is_finished(), "the handler is at work");
                ends.log.go_on();
                call.await.unwrap().unwrap();
            }
        }
        ends.nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_comes_after_the_items_before_it_and_says_why() {
    let _alone = ALONE.lock().await;
    for policy in BOTH {
        let ends = Ends::new(config(policy)).await;
        for len in LENGTHS {
            let plan = Plan { id: 0, len, count: 7 };
            let mut failing = ends.flow.fail(plan).await.unwrap();
            take(plan, 7, &mut failing).await.unwrap();
            let error = failing.message().await.unwrap_err();
            assert_eq!((error.code(), error.message()), (Code::DataLoss, "as it was told to"));
            assert_eq!(failing.end_reason(), Some(EndReason::Status));

            // The handler finds that an item is not what it must be, and ends amid the client's stream.
            let wrong = Plan { id: 1, ..plan };
            let (items, given_up) = endless(plan);
            let error = ends.flow.load(wrong, items).await.unwrap_err();
            assert_eq!(error.code(), Code::DataLoss, "{error}");
            given_up.notified().await;
        }
        ends.nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_streams_on_both_sides() {
    let _alone = ALONE.lock().await;
    let limit = Duration::from_millis(400);
    for policy in BOTH {
        let ends = Ends::new(config(policy)).await;
        for len in LENGTHS {
            let plan = Plan { id: 0, len, count: ENDLESS };
            let mut watched = ends.flow.watch(plan).timeout(limit).await.unwrap();
            let error = cut_short(plan, 0, &mut watched).await;
            assert_eq!(
                (error.code(), error.executed()),
                (Code::DeadlineExceeded, Executed::Maybe),
                "{error}"
            );
            assert_eq!(watched.end_reason(), Some(EndReason::Deadline));
            let error = ends.flow.load(plan, plan.items()).timeout(limit).await.unwrap_err();
            assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
            assert!(!ends.log.went(0).whole);
        }
        ends.nothing_is_left().await;
    }
}
