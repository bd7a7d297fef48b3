//! Lent memory that the server's device reads and writes by itself, while the lender's process is stopped.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod process;

use std::time::Duration;

use farcall::bulk::{BulkRead, BulkWrite};
use farcall::region::{Region, Rights};
use farcall::{Buf, Bytes, Channel, Code, Config, Policy, Result, Server};
use tokio::sync::{Mutex, mpsc, oneshot};

use process::{Process, say, told};

const LEN: usize = 1 << 17;

const PATIENCE: Duration = Duration::from_secs(60);

/// One after the other: accesses are counted for the whole process.
static ALONE: Mutex<()> = Mutex::const_new(());

#[farcall::service(package = "test")]
trait Borrower {
    /// Returns whether the server has used the memory by itself.
    async fn borrow(&self, from: BulkRead, into: BulkWrite) -> Result<bool>;
}

/// The memory that a call lends, and the way to answer the call.
type Arrived = (BulkRead, BulkWrite, oneshot::Sender<bool>);

struct Desk(mpsc::UnboundedSender<Arrived>);

impl Borrower for Desk {
    async fn borrow(&self, from: BulkRead, into: BulkWrite) -> Result<bool> {
        let (answer, answered) = oneshot::channel();
        self.0.send((from, into, answer)).unwrap();
        Ok(answered.await.unwrap())
    }
}

fn config() -> Config {
    let mut config = Config::default();
    config.transport = Some(Policy::Rdma);
    config.liveness.connect_ms = 30_000;
    config
}

async fn served() -> (String, mpsc::UnboundedReceiver<Arrived>) {
    let (sender, arrivals) = mpsc::unbounded_channel();
    let server = Server::builder().add(BorrowerServer::new(Desk(sender))).config(config());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("farcall://{}", server.local_addr());
    tokio::spawn(server.serve());
    (address, arrivals)
}

async fn connected(address: &str) -> BorrowerClient {
    BorrowerClient::new(Channel::builder().config(config()).connect(address).await.unwrap())
}

fn pattern(seed: usize) -> impl Iterator<Item = u8> {
    (0..LEN).map(move |at| ((at + seed) % 251) as u8)
}

fn buffer(content: impl Iterator<Item = u8>) -> Buf {
    let mut buf = farcall::buf(LEN);
    buf.resize(LEN);
    buf.iter_mut().zip(content).for_each(|(byte, value)| *byte = value);
    buf
}

fn direct_accesses() -> u64 {
    farcall::rdma::stats().iter().map(|stats| stats.direct_accesses).sum()
}

/// Whether the server uses the memory by itself. Both accesses are so short that they take no READ otherwise.
async fn is_direct(from: &BulkRead, into: &BulkWrite) -> bool {
    let before = direct_accesses();
    assert!(from.read(3..11).await.unwrap().iter().copied().eq(pattern(0).skip(3).take(8)));
    into.write(0, vec![1; 8]).await.unwrap();
    direct_accesses() == before + 2
}

/// Not a test by itself: the lender, in a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_lender() {
    let Some(address) = told() else { return };
    let client = connected(&address).await;
    loop {
        let (from, _loan) = BulkRead::lend(buffer(pattern(0)).freeze());
        let (into, loan) = BulkWrite::lend(buffer(std::iter::repeat(0)));
        let was_direct = client.borrow(from, into).await.unwrap();
        let buf = loan.reclaim().await;
        if was_direct {
            return say(if buf.iter().copied().eq(pattern(7)) { "as written" } else { "other bytes" });
        }
    }
}

/// Not a test by itself: a lender in a process of its own, whose memory lies in several pieces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_lender_of_pieces() {
    const SPLIT: usize = 40_001;
    let Some(address) = told() else { return };
    let client = connected(&address).await;
    loop {
        let mut first = buffer(pattern(0)).freeze();
        let mut last = buffer(pattern(0)).freeze();
        let pieces = vec![first.split_to(SPLIT), Bytes::new(), last.split_off(SPLIT)];
        let (from, _loan) = BulkRead::lend(pieces);
        let [mut head, mut tail] = [(); 2].map(|()| buffer(std::iter::repeat(0)));
        head.truncate(SPLIT);
        tail.truncate(LEN - SPLIT);
        let (into, loan) = BulkWrite::lend(vec![head, tail]);
        let was_direct = client.borrow(from, into).await.unwrap();
        let bufs = loan.reclaim().await;
        if was_direct {
            let written = bufs.iter().flat_map(|buf| buf.iter().copied());
            return say(if written.eq(pattern(7)) { "as written" } else { "other bytes" });
        }
    }
}

/// Not a test by itself: a lender in a process of its own, which lends parts of regions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_lender_of_regions() {
    let Some(address) = told() else { return };
    let client = connected(&address).await;
    let own = Region::zeroed(3 * LEN, Rights::NONE);
    own.write(5, &pattern(0).collect::<Vec<_>>()).unwrap();
    loop {
        let (from, _loan) = BulkRead::of_region(&own, 5..LEN + 5).unwrap();
        let (into, loan) = BulkWrite::of_region(&own, LEN + 8..2 * LEN + 8).unwrap();
        let was_direct = client.borrow(from, into).await.unwrap();
        loan.reclaim().await;
        if was_direct {
            let all = own.read(..).unwrap();
            let is_written = all[LEN + 8..2 * LEN + 8].iter().copied().eq(pattern(7));
            let is_alone = all[2 * LEN + 8..].iter().all(|&byte| byte == 0);
            // No device keeps the memory.
            own.revoke().await;
            return say(if is_written && is_alone { "as written" } else { "other bytes" });
        }
    }
}

/// Takes what is lent, until the server uses it by itself.
async fn taken(arrivals: &mut mpsc::UnboundedReceiver<Arrived>) -> Arrived {
    loop {
        let arrived = tokio::time::timeout(PATIENCE, arrivals.recv()).await.expect("no call comes");
        let (from, into, answer) = arrived.unwrap();
        if is_direct(&from, &into).await {
            return (from, into, answer);
        }
        answer.send(false).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lender_that_is_killed_fails_what_is_under_way() {
    let _alone = ALONE.lock().await;
    let (address, mut arrivals) = served().await;
    let lender = Process::start("part_lender", &address);
    let (from, into, _answer) = taken(&mut arrivals).await;
    let transfers = tokio::spawn(async move {
        loop {
            let (read, written) = tokio::join!(from.read(..), into.write(0, vec![9; LEN]));
            if let (Err(read), Err(written)) = (read, written) {
                return [read, written];
            }
        }
    });
    lender.kill().await;
    let failed = tokio::time::timeout(PATIENCE, transfers).await.expect("they hang").unwrap();
    for status in failed {
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lent_memory_is_used_while_its_lender_is_stopped() {
    for lender in ["part_lender", "part_lender_of_pieces", "part_lender_of_regions"] {
        is_used_while_stopped(lender).await;
    }
}

async fn is_used_while_stopped(lender: &str) {
    let _alone = ALONE.lock().await;
    let (address, mut arrivals) = served().await;
    let mut lender = Process::start(lender, &address);
    let (from, into, answer) = taken(&mut arrivals).await;
    lender.stop();
    let mut random = fastrand::Rng::with_seed(1);
    let content: Vec<u8> = pattern(7).collect();
    for i in 0..200 {
        let at = random.usize(..LEN);
        let len = random.usize(..=(LEN - at).min(if i % 10 == 0 { LEN } else { 500 }));
        let read =
            tokio::time::timeout(PATIENCE, from.read(at..at + len)).await.expect("the lender must run");
        assert!(read.unwrap().iter().copied().eq(pattern(0).skip(at).take(len)), "{len} bytes at {at}");
        let written = into.write(at, content[at..at + len].to_vec());
        tokio::time::timeout(PATIENCE, written).await.expect("the lender must run").unwrap();
    }
    let written = into.write(0, content);
    tokio::time::timeout(PATIENCE, written).await.expect("the lender must run").unwrap();
    lender.signal("CONT");
    answer.send(true).unwrap();
    assert_eq!(lender.said(), "as written");
}

/// Nothing goes by messages, which the lender would have to answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_the_server_are_filled_and_emptied_while_their_lender_is_stopped() {
    let _alone = ALONE.lock().await;
    let (address, mut arrivals) = served().await;
    let mut lender = Process::start("part_lender", &address);
    let (from, into, answer) = taken(&mut arrivals).await;
    lender.stop();
    let pages = Region::zeroed(LEN + 13, Rights::NONE);
    let mut random = fastrand::Rng::with_seed(2);
    for i in 0..100 {
        let start = random.usize(..LEN);
        let len = random.usize(1..=(LEN - start).min(if i % 10 == 0 { LEN } else { 500 }));
        let at = random.usize(..=pages.len() - len);
        pages.write(0, &vec![0xee; pages.len()]).unwrap();
        let read = from.read_into(start..start + len, &pages, at);
        tokio::time::timeout(PATIENCE, read).await.expect("the lender must run").unwrap();
        let all = pages.read(..).unwrap();
        assert!(
            all[at..at + len].iter().copied().eq(pattern(0).skip(start).take(len)),
            "{len} bytes at {at}"
        );
        assert!(all[..at].iter().chain(&all[at + len..]).all(|&byte| byte == 0xee), "{len} bytes at {at}");
        tokio::time::timeout(PATIENCE, pages.settled(..)).await.expect("all is settled").unwrap();
    }
    pages.write(5, &pattern(7).collect::<Vec<_>>()).unwrap();
    for half in [LEN / 2 - 3..LEN, 0..LEN / 2 - 3] {
        let written = into.write_from(half.start, &pages, half.start + 5..half.end + 5);
        tokio::time::timeout(PATIENCE, written).await.expect("the lender must run").unwrap();
    }
    // The device lets go of the region.
    tokio::time::timeout(PATIENCE, pages.revoke()).await.expect("nothing uses it");
    lender.signal("CONT");
    answer.send(true).unwrap();
    assert_eq!(lender.said(), "as written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_buffer_that_the_server_has_filled_by_itself_is_the_same_memory() {
    let _alone = ALONE.lock().await;
    let (address, mut arrivals) = served().await;
    let client = connected(&address).await;
    let mut direct = 0;
    while direct < 20 {
        let (from, _loan) = BulkRead::lend(buffer(pattern(0)).freeze());
        let buf = buffer(std::iter::repeat(0));
        let memory = buf.as_ptr() as usize;
        let (into, loan) = BulkWrite::lend(buf);
        let call = tokio::spawn(client.borrow(from, into));
        let (from, into, answer) = arrivals.recv().await.unwrap();
        let is_direct = is_direct(&from, &into).await;
        let filled = into.write(0, pattern(direct).collect::<Vec<_>>());
        tokio::time::timeout(PATIENCE, filled).await.expect("it takes too long").unwrap();
        drop((from, into));
        answer.send(is_direct).unwrap();
        call.await.unwrap().unwrap();
        let mut buf = tokio::time::timeout(PATIENCE, loan.reclaim()).await.expect("it does not come back");
        assert!(buf.iter().copied().eq(pattern(direct)));
        assert!(!is_direct || buf.as_ptr() as usize == memory, "it was copied");
        // It is an ordinary buffer again.
        buf.truncate(8);
        buf.copy_from_slice(b"my bytes");
        assert_eq!(buf.freeze(), b"my bytes"[..]);
        direct += usize::from(is_direct);
    }
}

/// The first fills of a buffer go by messages, whose memory the buffer takes over.
#[tokio::test]
async fn buffers_that_are_lent_again_and_again_are_filled_by_the_server_itself() {
    const TASKS: u64 = 4;
    const TIMES: u64 = 50;
    let _alone = ALONE.lock().await;
    let (address, mut arrivals) = served().await;
    tokio::spawn(async move {
        while let Some((from, into, answer)) = arrivals.recv().await {
            tokio::spawn(async move {
                let byte = from.read(..).await.unwrap()[0];
                into.write(0, vec![byte; LEN]).await.unwrap();
                drop((from, into));
                answer.send(true).unwrap();
            });
        }
    });
    let (client, begin) = (connected(&address).await, direct_accesses());
    let tasks = (0..TASKS).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut buf = buffer(std::iter::repeat(0));
            for i in 0..TIMES as u8 {
                let (from, _loan) = BulkRead::lend(Bytes::from(vec![i]));
                let (into, loan) = BulkWrite::lend(buf);
                client.borrow(from, into).await.unwrap();
                buf = tokio::time::timeout(PATIENCE, loan.reclaim()).await.expect("it does not come back");
                assert!(buf.iter().all(|&byte| byte == i));
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let direct = direct_accesses() - begin;
    assert!(direct >= TASKS * (TIMES - 10), "{direct} of {}", TASKS * TIMES);
}
