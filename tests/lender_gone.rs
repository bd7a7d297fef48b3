//! Lenders that vanish in the middle of transfers over TCP: the transfers fail, and the server goes on for others.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod process;

use std::future::pending;
use std::time::Duration;

use farcall::bulk::{BulkRead, BulkWrite};
use farcall::{Bytes, Channel, Code, Config, Policy, Result, Server, Status};
use tokio::sync::mpsc;

use process::{Process, told};

/// So much that the sockets between the processes can't hold it.
const LEN: usize = 32 << 20;

const PATIENCE: Duration = Duration::from_secs(60);

#[farcall::service(package = "test")]
trait Borrower {
    /// Keeps the loans, and never returns.
    async fn borrow(&self, from: BulkRead, into: BulkWrite) -> Result<()>;
    /// Returns the sum of the memory's bytes.
    async fn sum(&self, from: BulkRead) -> Result<u64>;
}

struct Desk(mpsc::UnboundedSender<(BulkRead, BulkWrite)>);

impl Borrower for Desk {
    async fn borrow(&self, from: BulkRead, into: BulkWrite) -> Result<()> {
        self.0.send((from, into)).unwrap();
        pending().await
    }

    async fn sum(&self, from: BulkRead) -> Result<u64> {
        Ok(from.read(..).await?.iter().copied().map(u64::from).sum())
    }
}

fn config() -> Config {
    let mut config = Config::default();
    config.transport = Some(Policy::Tcp);
    config
}

async fn connected(address: &str) -> BorrowerClient {
    BorrowerClient::new(Channel::builder().config(config()).connect(address).await.unwrap())
}

/// Not a test by itself: the lender, in a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_lender() {
    let Some(address) = told() else { return };
    let (from, _loan) = BulkRead::lend(Bytes::from(vec![7; LEN]));
    let (into, _loan) = BulkWrite::lend(vec![0; LEN]);
    connected(&address).await.borrow(from, into).await.unwrap();
}

/// Transfers until that fails. Tells of each transfer that is done.
async fn until_it_fails<T, F>(done: mpsc::UnboundedSender<()>, transfer: impl Fn() -> F) -> Status
where
    F: Future<Output = Result<T>>,
{
    loop {
        match transfer().await {
            Ok(_) => drop(done.send(())),
            Err(status) => return status,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_of_a_lender_that_is_killed_fail_and_others_are_served() {
    let (sender, mut arrivals) = mpsc::unbounded_channel();
    let server = Server::builder().add(BorrowerServer::new(Desk(sender))).config(config());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (format!("farcall://{}", server.local_addr()), server.handle());
    tokio::spawn(server.serve());
    // At first it is stopped, with what the sockets hold on its way. Then it is killed while bytes move.
    for stops in [true, false] {
        let lender = Process::start("part_lender", &address);
        let (from, into) = tokio::time::timeout(PATIENCE, arrivals.recv()).await.expect("no call").unwrap();
        let ((read, mut reads), (written, mut writes)) =
            (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let reading = tokio::spawn(until_it_fails(read, move || {
            let from = from.clone();
            async move { from.read(..).await }
        }));
        let bytes = Bytes::from(vec![9; LEN]);
        let writing = tokio::spawn(until_it_fails(written, move || {
            let (into, bytes) = (into.clone(), bytes.clone());
            async move { into.write(0, bytes).await }
        }));
        let begun = async { (reads.recv().await, writes.recv().await) };
        tokio::time::timeout(PATIENCE, begun).await.expect("nothing moves");
        if stops {
            lender.stop();
        }
        lender.kill().await;
        for transfer in [reading, writing] {
            let status = tokio::time::timeout(PATIENCE, transfer).await.expect("it hangs").unwrap();
            assert_eq!(status.code(), Code::Unavailable, "{status}");
        }
        let gone = async {
            while !handle.connections().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.expect("the connection stays");
        let other = connected(&address).await;
        assert_eq!(other.sum(Bytes::from(vec![1; LEN]).into()).await.unwrap(), LEN as u64);
        drop(other);
    }
}
