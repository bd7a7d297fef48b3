//! Regions that are read and written by RDMA while the owner's process is stopped, and when it is killed.
//!
//! Runs in the VM, as `cargo xtask test vm` does it.

mod process;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use farcall::rdma::MappedWords;
use farcall::region::{Region, RemoteRegion, Rights};
use farcall::{Channel, Code, Config, Policy, Result, Server};
use tokio::sync::Mutex;

use process::{Process, say, told};

const LEN: usize = 1 << 20;
/// One after the other: accesses are counted for the whole process.
static ALONE: Mutex<()> = Mutex::const_new(());

const PATIENCE: Duration = Duration::from_secs(60);

#[farcall::service(package = "test")]
trait Owner {
    async fn region(&self) -> Result<RemoteRegion>;
}

struct Pages(Region);

impl Owner for Pages {
    async fn region(&self) -> Result<RemoteRegion> {
        Ok(self.0.remote())
    }
}

fn config() -> Config {
    let mut config = Config::default();
    config.transport = Some(Policy::Rdma);
    config.liveness.connect_ms = 30_000;
    config
}

/// The byte at a place of the region.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

/// Not a test by itself: the owner, in a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_owner() {
    if told().is_some() {
        let memory = Arc::new(MappedWords::zeroed(LEN).unwrap());
        let region = Region::export(memory, Rights::READ | Rights::WRITE);
        region.write(0, &(0..LEN).map(byte).collect::<Vec<_>>()).unwrap();
        let server = Server::builder().add(OwnerServer::new(Pages(region))).config(config());
        let server = server.bind("127.0.0.1:0").await.unwrap();
        say(&format!("farcall://{}", server.local_addr()));
        tokio::spawn(server.serve());
        pending::<()>().await;
    }
}

fn region_accesses() -> u64 {
    farcall::rdma::stats().iter().map(|stats| stats.region_accesses).sum()
}

#[tokio::test]
async fn a_region_is_used_while_its_owner_is_stopped_and_not_when_it_is_killed() {
    let _alone = ALONE.lock().await;
    let begin = region_accesses();
    let mut owner = Process::start("part_owner", "");
    let channel = Channel::builder().config(config()).connect(&owner.said()).await.unwrap();
    let region = OwnerClient::new(&channel).region().await.unwrap().on(&channel);
    let direct = async {
        while region_accesses() == begin {
            region.read(..8).await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, direct).await.expect("no read is direct");

    owner.signal("STOP");
    let (before, mut random) = (region_accesses(), fastrand::Rng::with_seed(1));
    for i in 0..200 {
        let at = random.usize(..LEN);
        let len = random.usize(..=(LEN - at).min(if i % 10 == 0 { LEN } else { 500 }));
        let read =
            tokio::time::timeout(PATIENCE, region.read(at..at + len)).await.expect("the owner must run");
        assert!(read.unwrap().iter().copied().eq((at..at + len).map(byte)), "{len} bytes at {at}");
    }
    // A read of no bytes needs no READ.
    assert!(region_accesses() >= before + 190);
    let mut expected = region.read(..).await.unwrap().to_vec();
    for i in 0..200 {
        let at = random.usize(..LEN);
        let len = random.usize(..=(LEN - at).min(if i % 10 == 0 { LEN } else { 500 }));
        random.fill(&mut expected[at..at + len]);
        let written = tokio::time::timeout(PATIENCE, region.write(at, expected[at..at + len].to_vec())).await;
        written.expect("the owner must run").unwrap();
    }
    assert!(region.read(..).await.unwrap() == expected);
    owner.signal("CONT");
    assert!(region.read(..).await.unwrap() == expected);

    owner.kill().await;
    let status = tokio::time::timeout(PATIENCE, region.read(..)).await.expect("it hangs").unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

#[tokio::test]
async fn a_region_in_a_file_is_used_and_the_file_has_what_was_written() {
    let _alone = ALONE.lock().await;
    let path = std::env::temp_dir().join("farcall-region");
    std::fs::write(&path, vec![3; LEN]).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let memory = Arc::new(MappedWords::of_file(&file).unwrap());
    let region = Region::export(memory.clone(), Rights::READ | Rights::WRITE);
    let server = Server::builder().add(OwnerServer::new(Pages(region))).config(config());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("farcall://{}", server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::builder().config(config()).connect(&address).await.unwrap();
    let region = OwnerClient::new(&channel).region().await.unwrap().on(&channel);
    let mut expected = vec![3; LEN];
    let mut random = fastrand::Rng::with_seed(2);
    for _ in 0..100 {
        let at = random.usize(..LEN);
        let len = random.usize(..=(LEN - at).min(20_000));
        random.fill(&mut expected[at..at + len]);
        region.write(at, expected[at..at + len].to_vec()).await.unwrap();
    }
    assert!(region.read(..).await.unwrap() == expected);
    memory.sync().unwrap();
    assert!(std::fs::read(&path).unwrap() == expected);
    std::fs::remove_file(&path).unwrap();
}
