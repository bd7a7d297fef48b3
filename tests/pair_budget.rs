//! A host that fills the memory of a server by RDMA, beside an honest client.
//!
//! Runs on both hosts of a pair of VMs, as `cargo xtask test pair` does it: host 1 serves, host 2 attacks.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod pair;
mod process;

use std::future::pending;
use std::time::Duration;

use farcall::{Bytes, Channel, Code, Config, Executed, Policy, Server, Status, Streaming, stream};
use tokio::task::JoinSet;

use pair::{PATIENCE, is_server, together_with};
use process::Process;

const MIB: usize = 1 << 20;

/// The memory that a process holds besides, in bytes: code, stacks, and what its allocator has not given back.
const BESIDES: usize = 64 * MIB;

/// A server under attack.
#[derive(Clone, Copy)]
struct Attacked {
    /// Of the server. Through the port before it the hosts wait for each other.
    port: u16,
    /// Whether the server's budget is 24 MiB, and RDMA has 24 MiB more. Else they have their defaults, which take a gigabyte of a VM.
    has_little: bool,
    /// The most calls that the attackers make at once.
    calls: usize,
}

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

fn is_long() -> bool {
    std::env::var_os("FARCALL_LONG").is_some()
}

impl Attacked {
    fn address(self) -> String {
        format!("10.99.0.1:{}", self.port)
    }

    fn config(self) -> Config {
        let mut config = Config::default();
        config.transport = Some(Policy::Rdma);
        if self.has_little {
            config.limits.memory = 24 << 20;
            config.rdma.memory = 8 << 20;
            config.rdma.bulk_memory = 16 << 20;
        } else if !is_long() {
            // The default, which is a quarter of the machine's, takes a minute to fill.
            config.limits.memory = 96 << 20;
        }
        // An emulated machine on a busy host is slow.
        config.liveness.connect_ms = 60_000;
        config
    }

    async fn client(self) -> farcall::Result<VictimClient> {
        let channel = Channel::builder().config(self.config());
        let channel = channel.connect(&format!("farcall://{}", self.address())).await?;
        let transport = channel.transport().await?;
        assert_eq!(transport.name, "rdma", "{transport}");
        Ok(VictimClient::new(channel))
    }
}

/// The server's process: says its budget and listens until it is killed.
#[tokio::test]
async fn serve_for_attackers() {
    let Some(told) = process::told() else { return };
    let (port, has_little) = told.split_once(' ').unwrap();
    let attacked = Attacked { port: port.parse().unwrap(), has_little: has_little == "true", calls: 0 };
    let server = Server::builder().add(VictimServer::new(Patient)).config(attacked.config());
    let server = server.bind(&attacked.address()).await.unwrap();
    process::say(&server.handle().stats().memory_limit.to_string());
    server.serve().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_fills_memory_by_rdma_is_refused_and_harms_nobody_else() {
    withstands(Attacked { port: 7511, has_little: true, calls: 800 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_fills_the_memory_of_default_limits_by_rdma_harms_nobody_else() {
    withstands(Attacked { port: 7521, has_little: false, calls: 2000 }).await;
}

#[expect(clippy::print_stdout, reason = "the figures of a run")]
async fn withstands(attacked: Attacked) {
    let meeting = attacked.port - 1;
    if !is_server() {
        return together_with(meeting, Config::default(), async |_| attack(attacked).await).await;
    }
    let mut server =
        Process::start("serve_for_attackers", &format!("{} {}", attacked.port, attacked.has_little));
    let limit: usize = server.said().parse().unwrap();
    let honest = attacked.client().await.unwrap();
    let (mut most, mut calls) = (0, 0);
    let mut attack = std::pin::pin!(together_with(meeting, Config::default(), async |_| {}));
    loop {
        tokio::select! {
            () = &mut attack => break,
            () = call_honestly(&honest) => calls += 1,
        }
        most = most.max(process::resident(server.id()));
    }
    call_honestly(&honest).await;
    println!("{calls} honest calls; {} MiB resident at most, the budget is {} MiB", most / MIB, limit / MIB);
    // The attackers' host sees that its calls are refused for the budget.
    assert!(
        most <= limit + attacked.config().rdma.most_memory() as usize + BESIDES,
        "{most} bytes are resident at most, the budget is {limit}"
    );
}

async fn call_honestly(honest: &VictimClient) {
    let content = Bytes::from(vec![9; 10_000]);
    let answer = tokio::time::timeout(PATIENCE, honest.echo(content.clone())).await;
    assert_eq!(answer.expect("an honest call hangs").expect("an honest call fails"), content);
}

/// Calls that never end, with arguments that are sent and ones that are read by the device, and streams that nobody reads. Goes on until
/// the server has refused enough of them, or closed the connection, for the memory that they take.
async fn attack(attacked: Attacked) {
    let (rounds, enough) = if is_long() { (5, 20) } else { (1, 2) };
    for _ in 0..rounds {
        let mut ends = JoinSet::new();
        let mut refused = 0;
        while refused < enough {
            if ends.len() < attacked.calls {
                // The server may want no other connection yet.
                match attacked.client().await {
                    Ok(client) => begin(&client, &mut ends),
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
            let ended = match ends.len() < attacked.calls {
                true => ends.try_join_next(),
                false => tokio::time::timeout(PATIENCE, ends.join_next()).await.expect("nothing is refused"),
            };
            let Some(ended) = ended else { continue };
            let status: Status = ended.unwrap();
            if status.code() == Code::ResourceExhausted {
                assert_eq!(status.executed(), Executed::No, "{status}");
            }
            // A host that does much else may not go on with a message for so long that it is closed for that.
            let limits = ["limits.memory", "limits.stall_ms"];
            assert!(limits.iter().any(|limit| status.message().contains(limit)), "{status}");
            refused += usize::from(status.message().contains(limits[0]));
        }
    }
}

/// Begins calls on a connection. `ends` tells how each of them fails.
fn begin(client: &VictimClient, ends: &mut JoinSet<Status>) {
    for len in [2_000, 100_000, 1 << 20] {
        let content = Bytes::from(vec![1; len]);
        for _ in 0..60 {
            let hanging = client.hang(content.clone());
            ends.spawn(async move { hanging.await.expect_err("it hangs") });
        }
    }
    let item = Bytes::from(vec![2; 20_000]);
    for _ in 0..20 {
        let items = stream::iter(std::iter::repeat_n(item.clone(), 1000));
        let ignored = client.ignore(items);
        ends.spawn(async move { ignored.await.expect_err("it hangs") });
    }
}
