//! A host that fills the memory of a server by RDMA, whose budget is small, beside an honest client.
//!
//! Runs on both hosts of a pair of VMs, as `cargo xtask test pair` does it: host 1 serves, host 2 attacks.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod pair;
mod process;

use std::future::pending;

use farcall::{Bytes, Channel, Code, Config, Executed, Policy, Server, Status, Streaming, stream};
use tokio::task::JoinSet;

use pair::{PATIENCE, is_server, together_with};
use process::Process;

const MIB: usize = 1 << 20;

/// The server's budget.
const LIMIT: usize = 24 * MIB;

/// The memory that a process holds besides, in bytes: code, stacks, and what its allocator has not given back.
const BESIDES: usize = 64 * MIB;

const SERVER: &str = "10.99.0.1:7511";

#[farcall::service(package = "test")]
trait Victim {
    async fn echo(&self, content: Bytes) -> farcall::Result<Bytes>;
    async fn hang(&self, content: Bytes) -> farcall::Result<()>;
    async fn ignore(&self, items: Streaming<Bytes>) -> farcall::Result<()>;
}

struct Patient;

impl Victim for Patient {
    async fn echo(&self, content: Bytes) -> farcall::Result<Bytes> {
        Ok(content)
    }

    async fn hang(&self, content: Bytes) -> farcall::Result<()> {
        let _held = content;
        pending().await
    }

    async fn ignore(&self, items: Streaming<Bytes>) -> farcall::Result<()> {
        let _unread = items;
        pending().await
    }
}

fn config() -> Config {
    let mut config = Config::default();
    config.transport = Some(Policy::Rdma);
    config.rdma.memory = 8 << 20;
    config.rdma.bulk_memory = 16 << 20;
    // An emulated machine on a busy host is slow.
    config.liveness.connect_ms = 60_000;
    config
}

/// The server's process: listens until it is killed.
#[tokio::test]
async fn serve_for_attackers() {
    if process::told().is_none() {
        return;
    }
    let mut config = config();
    config.limits.memory = LIMIT as u64;
    let server = Server::builder().add(VictimServer::new(Patient)).config(config);
    let server = server.bind(SERVER).await.unwrap();
    process::say("ready");
    server.serve().await;
}

async fn victim() -> farcall::Result<VictimClient> {
    let channel = Channel::builder().config(config()).connect(&format!("farcall://{SERVER}")).await?;
    let transport = channel.transport().await?;
    assert_eq!(transport.name, "rdma", "{transport}");
    Ok(VictimClient::new(channel))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_fills_memory_by_rdma_is_refused_and_harms_nobody_else() {
    if !is_server() {
        return together_with(7510, Config::default(), async |_| attack().await).await;
    }
    let mut server = Process::start("serve_for_attackers", "");
    assert_eq!(server.said(), "ready");
    let honest = victim().await.unwrap();
    let (mut most, mut calls) = (0, 0);
    let mut attacked = std::pin::pin!(together_with(7510, Config::default(), async |_| {}));
    loop {
        tokio::select! {
            () = &mut attacked => break,
            () = call_honestly(&honest) => calls += 1,
        }
        most = most.max(process::resident(server.id()));
    }
    call_honestly(&honest).await;
    println!("{calls} honest calls; {} MiB resident at most, the budget is {} MiB", most / MIB, LIMIT / MIB);
    // The attackers' host sees that its calls are refused for the budget.
    assert!(
        most <= LIMIT + config().rdma.most_memory() as usize + BESIDES,
        "{most} bytes are resident at most"
    );
}

async fn call_honestly(honest: &VictimClient) {
    let content = Bytes::from(vec![9; 10_000]);
    let answer = tokio::time::timeout(PATIENCE, honest.echo(content.clone())).await;
    assert_eq!(answer.expect("an honest call hangs").expect("an honest call fails"), content);
}

/// Calls that never end, with arguments that are sent and ones that are read by the device, and streams that nobody reads. Goes on until
/// the server has refused enough of them, or closed the connection, for the memory that they take.
async fn attack() {
    let (rounds, enough) = if std::env::var_os("FARCALL_LONG").is_some() { (5, 20) } else { (1, 2) };
    for _ in 0..rounds {
        let mut ends = JoinSet::new();
        let mut refused = 0;
        while refused < enough {
            // The server may have closed the last one, and want no other yet.
            if ends.len() < 800
                && let Ok(victim) = victim().await
            {
                begin(&victim, &mut ends);
            }
            let ended = tokio::time::timeout(PATIENCE, ends.join_next()).await.expect("nothing is refused");
            let Some(ended) = ended else { continue };
            let status: Status = ended.unwrap();
            if status.code() == Code::ResourceExhausted {
                assert_eq!(status.executed(), Executed::No, "{status}");
            }
            assert!(status.message().contains("limits.memory"), "{status}");
            refused += 1;
        }
    }
}

/// Begins calls on a connection. `ends` tells how each of them fails.
fn begin(victim: &VictimClient, ends: &mut JoinSet<Status>) {
    for len in [2_000, 100_000, 1 << 20] {
        for _ in 0..60 {
            let hanging = victim.hang(Bytes::from(vec![1; len]));
            ends.spawn(async move { hanging.await.expect_err("it hangs") });
        }
    }
    for _ in 0..20 {
        let items = stream::iter((0..1000).map(|_| Bytes::from(vec![2; 20_000])));
        let ignored = victim.ignore(items);
        ends.spawn(async move { ignored.await.expect_err("it hangs") });
    }
}
