//! Typed calls over an RDMA device: content and counters.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod recorder;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use farcall::{Bytes, Channel, Code, Compression, Config, Executed, Handle, Policy, Server, rdma};

use recorder::Counts;

/// A guard against hangs only.
const PATIENCE: Duration = Duration::from_secs(240);

#[farcall::service(package = "test")]
trait Mix {
    /// Each byte depends on the argument's.
    async fn turn(&self, content: Bytes, by: u8) -> farcall::Result<Bytes>;
    /// As many bytes as asked for, beginning with `seed`.
    async fn make(&self, bytes: u32, seed: u8) -> farcall::Result<Bytes>;
}

struct Mixer;

impl Mix for Mixer {
    async fn turn(&self, content: Bytes, by: u8) -> farcall::Result<Bytes> {
        // Some handlers wait, so that answers overtake each other.
        if by.is_multiple_of(4) {
            tokio::task::yield_now().await;
        }
        Ok(turned(&content, by))
    }

    async fn make(&self, bytes: u32, seed: u8) -> farcall::Result<Bytes> {
        Ok(made(bytes as usize, seed))
    }
}

fn turned(content: &[u8], by: u8) -> Bytes {
    content.iter().map(|b| b.wrapping_add(by)).collect()
}

fn made(bytes: usize, seed: u8) -> Bytes {
    (0..bytes).map(|i| (i as u8).wrapping_mul(13).wrapping_add(seed)).collect()
}

/// RDMA or nothing, and not one message for which there is no buffer.
fn config() -> Config {
    let mut config = Config::default();
    config.transport = Some(Policy::Rdma);
    config.rdma.strict_credits = true;
    // An emulated machine on a busy host is slow.
    config.liveness.connect_ms = 60_000;
    config
}

async fn serve() -> (String, Handle) {
    serve_with(config()).await
}

async fn serve_with(config: Config) -> (String, Handle) {
    let server = Server::builder().add(MixServer::new(Mixer)).config(config).bind("127.0.0.1:0");
    let server = server.await.unwrap();
    let address = format!("rdma://{}", server.local_addr());
    let handle = server.handle();
    tokio::spawn(server.serve());
    (address, handle)
}

async fn connect(address: &str) -> Channel {
    let channel = Channel::builder().config(config()).connect(address).await.unwrap();
    assert_eq!(channel.transport().await.unwrap().name, "rdma");
    channel
}

/// A counter of the device, by name.
fn counter(name: &str) -> u64 {
    let path = format!("/sys/class/infiniband/rxe0/ports/1/hw_counters/{name}");
    std::fs::read_to_string(&path).unwrap().trim().parse().unwrap()
}

fn long() -> bool {
    std::env::var_os("FARCALL_LONG").is_some()
}

#[tokio::test]
async fn mixed_calls_of_many_tasks_get_their_own_answers() {
    const TASKS: usize = 64;
    const CONNECTIONS: usize = 8;
    let calls = if long() { 1_000_000 } else { 3_000 };
    let bad = ["send_rnr_err", "rcvd_rnr_err", "retry_exceeded_err"].map(|name| (name, counter(name)));
    let packets = counter("sent_pkts");
    let (address, server) = serve().await;
    let mut channels = Vec::new();
    for _ in 0..CONNECTIONS {
        channels.push(connect(&address).await);
    }
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let mix = MixClient::new(&channels[task % CONNECTIONS]);
            tokio::spawn(async move {
                for i in 0..calls / TASKS {
                    let n = task * 7919 + i * 104_729;
                    // 90 % up to 256 B, 9 % up to 8 KiB, 0.9 % up to 64 KiB, 0.1 % up to 1 MiB.
                    let len = match n % 1000 {
                        0 => n % (1 << 20),
                        1..10 => n % (64 << 10),
                        10..100 => n % (8 << 10),
                        _ => n % 256,
                    };
                    let by = n as u8;
                    if i % 3 == 0 {
                        assert_eq!(mix.make(len as u32, by).await.unwrap(), made(len, by));
                    } else {
                        let content = made(len, by);
                        assert_eq!(mix.turn(content.clone(), by).await.unwrap(), turned(&content, by));
                    }
                }
            })
        })
        .collect();
    let all = async {
        for task in tasks {
            task.await.unwrap();
        }
    };
    let patience = if long() { 40 * PATIENCE } else { PATIENCE };
    tokio::time::timeout(patience, all).await.expect("the calls must end");
    for (name, before) in bad {
        assert_eq!(counter(name), before, "{name}");
    }
    assert!(counter("sent_pkts") > packets + calls as u64, "the device's own counter must have moved");
    assert_eq!(server.connections().len(), CONNECTIONS);
}

/// A child shares all memory with this process until it becomes another program or ends. The device goes on with what this process
/// writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_that_are_forked_amid_calls_change_nothing() {
    let children = if long() { 1000 } else { 25 };
    let (address, _server) = serve().await;
    let channel = connect(&address).await;
    let mix = MixClient::new(&channel);
    let forking = tokio::task::spawn_blocking(move || {
        for _ in 0..children {
            // Another user makes these `fork`, because `vfork` copies nothing.
            let forked = |program| Command::new(program).uid(65534).gid(65534).status();
            assert!(forked("true").unwrap().success());
            // This one ends as the copy that it began as.
            forked("/no/such/program").unwrap_err();
        }
    });
    let mut calls = 0_u32;
    while !forking.is_finished() {
        for len in [100, 5000, 60_000, 300_000] {
            let (content, by) = (made(len, calls as u8), calls as u8 | 1);
            assert_eq!(mix.turn(content.clone(), by).await.unwrap(), turned(&content, by), "{len} bytes");
            calls += 1;
        }
    }
    forking.await.unwrap();
    let transport = channel.transport().await.unwrap();
    assert!(calls > children / 10 && transport.name == "rdma", "{calls} calls, {transport:?}");
}

#[tokio::test]
async fn compressed_calls_travel_by_the_device_in_fewer_bytes() {
    let server = Server::builder().add(MixServer::new(Mixer)).config(config()).compress(Compression::Zstd);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("rdma://{}", server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::builder().config(config()).compress(Compression::Lz4);
    let channel = channel.connect(&address).await.unwrap();
    let mix = MixClient::new(&channel);
    let connection = channel.connection().await.unwrap();
    for len in [1500, 20_000, 1 << 20] {
        let content = made(len, 1);
        let response = mix.turn(content.clone(), 4).with_response().await.unwrap();
        assert_eq!((response.value, response.compression), (turned(&content, 4), Compression::Zstd));
    }
    // It is of a kind that becomes much shorter.
    let moved = connection.traffic().upgraded;
    assert!(moved.bytes_sent < 50_000 && moved.bytes_received < 50_000, "{moved:?}");

    // Half of this stays, which is long enough to be read by the other side.
    let mut noise = fastrand::Rng::with_seed(1);
    let content: Bytes = (0..1 << 20).map(|i| if i % 2000 < 1000 { noise.u8(..) } else { 0 }).collect();
    for _ in 0..10 {
        let response = mix.turn(content.clone(), 0).with_response().await.unwrap();
        assert_eq!((response.value, response.compression), (content.clone(), Compression::Zstd));
    }
    assert_eq!(channel.transport().await.unwrap().name, "rdma");
}

#[tokio::test]
async fn values_of_many_sizes_come_back() {
    let (address, _server) = serve().await;
    let channel = connect(&address).await;
    let mix = MixClient::new(&channel);
    for len in [0, 1, 100, 219, 220, 512, 2048, 2049, 8000, 8159, 8160, 8161, 8192, 16_384, 100_000, 1 << 20]
    {
        let content = made(len, len as u8);
        assert_eq!(mix.turn(content.clone(), 3).await.unwrap(), turned(&content, 3), "{len} bytes");
    }
    let traffic = channel.connection().await.unwrap().traffic();
    assert!(traffic.upgraded.bytes_sent > 1 << 20, "{traffic:?}");
    assert!(traffic.stream.bytes_sent < 64 << 10, "{traffic:?}");
}

#[tokio::test]
async fn a_drain_lets_the_answers_arrive() {
    let (address, server) = serve().await;
    let mix = MixClient::new(connect(&address).await);
    let answers: Vec<_> = (0..8)
        .map(|i| {
            let mix = mix.clone();
            tokio::spawn(async move { (i, mix.make(300_000, i).await) })
        })
        .collect();
    mix.make(1, 0).await.unwrap();
    server.drain(PATIENCE).await;
    for answer in answers {
        let (i, answer) = answer.await.unwrap();
        match answer {
            Ok(answer) => assert_eq!(answer, made(300_000, i)),
            Err(status) => assert_eq!(status.executed(), Executed::No, "{status}"),
        }
    }
}

#[tokio::test]
async fn a_client_that_stays_on_tcp_is_refused_and_nothing_executed() {
    let (address, _server) = serve().await;
    for _ in 0..10 {
        let error = match Channel::connect(&address.replace("rdma://", "tcp://")).await {
            // The client may have called before it read that it is refused.
            Ok(channel) => MixClient::new(channel).make(1, 0).await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No), "{error}");
        assert!(error.message().contains("require"), "{error}");
    }
}

/// Sums over all tests of this program, whose drivers share the device.
fn stats() -> rdma::DeviceStats {
    rdma::stats().into_iter().find(|stats| stats.device == "rxe0").unwrap_or_default()
}

#[tokio::test]
async fn calls_of_the_driver_and_bytes_of_the_device_are_counted() {
    let counts = Counts::default();
    let _guard = metrics::set_default_local_recorder(&counts);
    let before = stats();
    // A window of four for each peer of this runtime's endpoint.
    let mut config = config();
    config.rdma.window = 4;
    let (address, server) = serve_with(config).await;
    let channel = connect(&address).await;
    let mix = MixClient::new(&channel);
    let calls: Vec<_> = (0..64).map(|by| tokio::spawn(mix.turn(made(6000, by), by).into_future())).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let after = stats();
    assert!(after.polls > before.polls, "{after:?}");
    assert!(after.spins + after.sleeps > before.spins + before.sleeps, "{after:?}");
    assert!(after.credit_waits > before.credit_waits, "{after:?}");

    drop((channel, mix));
    server.drain(PATIENCE).await;
    for (name, least) in [
        ("farcall_bytes_sent_total side=client transport=rdma", 64.0 * 6000.0),
        ("farcall_bytes_sent_total side=server transport=rdma", 64.0 * 6000.0),
        ("farcall_rdma_polls_total device=rxe0", 1.0),
        ("farcall_rdma_credit_waits_total device=rxe0", 1.0),
    ] {
        until(|| counts.has(name) && counts.get(name) >= least).await;
    }
}

async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("it must come about");
}
