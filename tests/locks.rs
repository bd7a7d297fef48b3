//! Locks in a region, whose holders are killed: at each time one of them has the lock.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]
#![expect(unreachable_pub, reason = "in an application a service is a library of its own")]

mod over;
mod process;

#[path = "../examples/sequencer/locks.rs"]
mod lock;
#[path = "../examples/sequencer/numbers.rs"]
#[expect(dead_code, reason = "the example uses all of it")]
mod numbers;
#[path = "../examples/sequencer/service.rs"]
#[expect(dead_code, reason = "the example uses all of it")]
mod service;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use farcall::{Channel, Server};

use lock::Lock;
use numbers::{Atomic, Numbers};
use process::{Process, say, told};
use service::{IDS, SequencerClient, SequencerServer, Slot, Table};

/// How long a dead holder has the lock. No living one holds it for so long, unless its machine stands still.
const LEASE: Duration = Duration::from_secs(2);

const HOLDERS: usize = 4;

/// How many holders are killed that have the lock.
const KILLED: usize = 3;

async fn numbers(address: &str) -> Numbers {
    let channel = Channel::connect(address).await.unwrap();
    Numbers::new(SequencerClient::new(&channel).table().await.unwrap().on(&channel))
}

/// Reads the record: a total, and the fencing number of the holder that wrote it.
async fn record(numbers: &Numbers, at: usize) -> (u64, u64) {
    let bytes = numbers.read(at, 16).await.unwrap();
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    (number(0), number(8))
}

/// Not a test by itself: takes the lock, adds one to the record, releases the lock, and says what it has written; again and again.
#[tokio::test]
async fn part_holder() {
    let Some(address) = told() else { return };
    let (numbers, slot) = (numbers(&address).await, Slot::new(0));
    let Atomic::Done(id) = numbers.fetch_add(IDS, 1).await.unwrap() else { panic!("the connection is lost") };
    let lock = Lock::new(numbers.clone(), slot.lock, id as u32 + 1, LEASE);
    loop {
        let held = lock.acquire().await.unwrap();
        let fence = u64::from(held.fence());
        let (total, _) = record(&numbers, slot.record).await;
        // Somebody has the lock most of the time. So many that are killed have it.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let written = [(total + 1).to_le_bytes(), fence.to_le_bytes()].concat();
        numbers.write(slot.record, written.into()).await.unwrap();
        let was_alone = held.is_valid() && held.release().await.unwrap();
        say(&format!("{fence} {} {was_alone}", total + 1));
    }
}

/// Returns how many had the lock and were killed before they could say so. Each acquisition adds two to the fencing number.
fn killed_with_lock(history: &[(u64, u64)]) -> usize {
    let mut fences: Vec<_> = history.iter().map(|(fence, _)| fence).collect();
    fences.sort_unstable();
    fences.windows(2).filter(|two| two[1] - two[0] > 2).count()
}

/// A process that takes the lock, and the thread that writes down what it says.
struct Holder(Process, JoinHandle<()>);

impl Holder {
    fn start(address: &str, history: &Arc<Mutex<Vec<(u64, u64)>>>) -> Self {
        // The test's name within its program, which may have other suites.
        let (_, part) = concat!(module_path!(), "::part_holder").split_once("::").unwrap();
        let mut process = Process::start(part, address);
        let (said, history) = (process.words(), history.clone());
        let writing = std::thread::spawn(move || {
            for line in said {
                let [fence, total, was_alone] = line.split(' ').collect::<Vec<_>>()[..] else {
                    panic!("{line}")
                };
                assert_eq!(was_alone, "true", "a holder had the lock for longer than {LEASE:?}");
                history.lock().unwrap().push((fence.parse().unwrap(), total.parse().unwrap()));
            }
        });
        Self(process, writing)
    }

    async fn kill(self) {
        self.0.kill().await;
        self.1.join().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_at_a_time_has_a_lock_whose_holders_are_killed() {
    let server = Server::builder().config(over::config()).add(SequencerServer::new(Table::new()));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = over::address(server.local_addr());
    tokio::spawn(server.serve());
    let history = Arc::<Mutex<Vec<_>>>::default();
    let mut holders: Vec<_> = (0..HOLDERS).map(|_| Holder::start(&address, &history)).collect();
    let mut random = fastrand::Rng::with_seed(1);
    while killed_with_lock(&history.lock().unwrap()) < KILLED {
        let before = history.lock().unwrap().len();
        let enough = async {
            // Each time the others must get the lock, whoever had it.
            while history.lock().unwrap().len() < before + 20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), enough).await.expect("nobody gets the lock");
        holders.swap_remove(random.usize(..HOLDERS)).kill().await;
        holders.push(Holder::start(&address, &history));
    }
    for holder in holders {
        holder.kill().await;
    }
    let mut history = history.lock().unwrap().clone();
    history.sort_unstable();
    for two in history.windows(2) {
        let [(fence, total), (next_fence, next_total)] = two else { unreachable!("of two") };
        // The writes of a holder that was killed before it could report them are missing here.
        assert!(fence < next_fence && total < next_total, "{two:?}: two had the lock at once");
        let unseen = (next_fence - fence) / 2 - 1;
        assert!(next_total - total <= unseen + 1, "{two:?}: a total was skipped");
    }
    let (total, fence) = record(&numbers(&address).await, Slot::new(0).record).await;
    let (last_fence, last_total) = *history.last().unwrap();
    assert!(total >= last_total && fence >= last_fence, "an addition is lost");
}
