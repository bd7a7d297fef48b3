//! A table of locks in a region, whose holders are killed: at each time one of them has each lock.

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

/// How many locks of the table there are. With fewer than holders, these wait for each other.
const LOCKS: usize = 3;

/// How many holders are killed that have a lock.
const KILLED: usize = 4;

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

/// Not a test by itself: takes a lock, adds one to its record, releases it, and says what it has written; again and again.
#[tokio::test]
async fn part_holder() {
    let Some(address) = told() else { return };
    let numbers = numbers(&address).await;
    let Atomic::Done(id) = numbers.fetch_add(IDS, 1).await.unwrap() else { panic!("the connection is lost") };
    let lock_of = |slot: &Slot| Lock::new(numbers.clone(), slot.lock, id as u32 + 1, LEASE);
    let table: [_; LOCKS] =
        std::array::from_fn(|number| Slot::new(number as u64)).map(|slot| (lock_of(&slot), slot));
    loop {
        let number = fastrand::usize(..LOCKS);
        let (lock, slot) = &table[number];
        let held = lock.acquire().await.unwrap();
        let fence = u64::from(held.fence());
        let (total, _) = record(&numbers, slot.record).await;
        // A holder has a lock most of the time. So many that are killed have one.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let written = [(total + 1).to_le_bytes(), fence.to_le_bytes()].concat();
        numbers.write(slot.record, written.into()).await.unwrap();
        let was_alone = held.is_valid() && held.release().await.unwrap();
        say(&format!("{number} {fence} {} {was_alone}", total + 1));
    }
}

/// For each lock the fencing numbers of its holders, each with the total that the holder has written.
type History = [Vec<(u64, u64)>; LOCKS];

/// Returns how many had a lock and were killed before they could say so. Each acquisition adds two to the lock's fencing number.
fn killed_with_lock(history: &History) -> usize {
    let killed = |of_lock: &Vec<(u64, u64)>| {
        let mut fences: Vec<_> = of_lock.iter().map(|(fence, _)| fence).collect();
        fences.sort_unstable();
        fences.windows(2).filter(|two| two[1] - two[0] > 2).count()
    };
    history.iter().map(killed).sum()
}

fn len(history: &Mutex<History>) -> usize {
    history.lock().unwrap().iter().map(Vec::len).sum()
}

/// A process that takes locks, and the thread that writes down what it says.
struct Holder(Process, JoinHandle<()>);

impl Holder {
    fn start(address: &str, history: &Arc<Mutex<History>>) -> Self {
        // The test's name within its program, which may have other suites.
        let (_, part) = concat!(module_path!(), "::part_holder").split_once("::").unwrap();
        let mut process = Process::start(part, address);
        let (said, history) = (process.words(), history.clone());
        let writing = std::thread::spawn(move || {
            for line in said {
                let [number, fence, total, was_alone] = line.split(' ').collect::<Vec<_>>()[..] else {
                    panic!("{line}")
                };
                assert_eq!(was_alone, "true", "a holder had the lock for longer than {LEASE:?}");
                let number: usize = number.parse().unwrap();
                history.lock().unwrap()[number].push((fence.parse().unwrap(), total.parse().unwrap()));
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
async fn one_at_a_time_has_each_lock_of_a_table_whose_holders_are_killed() {
    let server = Server::builder().config(over::config()).add(SequencerServer::new(Table::new()));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = over::address(server.local_addr());
    tokio::spawn(server.serve());
    let history = Arc::<Mutex<History>>::default();
    let mut holders: Vec<_> = (0..HOLDERS).map(|_| Holder::start(&address, &history)).collect();
    let mut random = fastrand::Rng::with_seed(1);
    while killed_with_lock(&history.lock().unwrap()) < KILLED {
        let before = len(&history);
        let enough = async {
            while len(&history) < before + 20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), enough).await.expect("nobody gets a lock");
        holders.swap_remove(random.usize(..HOLDERS)).kill().await;
        holders.push(Holder::start(&address, &history));
    }
    for holder in holders {
        holder.kill().await;
    }
    let numbers = numbers(&address).await;
    let history = history.lock().unwrap().clone();
    for (number, history) in history.into_iter().enumerate() {
        check(history, record(&numbers, Slot::new(number as u64).record).await);
    }
}

/// Checks what the holders of a lock have said, and the record that they have left.
fn check(mut history: Vec<(u64, u64)>, (total, fence): (u64, u64)) {
    history.sort_unstable();
    for two in history.windows(2) {
        let [(fence, total), (next_fence, next_total)] = two else { unreachable!("of two") };
        // The writes of a holder that was killed before it could report them are missing here.
        assert!(fence < next_fence && total < next_total, "{two:?}: two had the lock at once");
        let unseen = (next_fence - fence) / 2 - 1;
        assert!(next_total - total <= unseen + 1, "{two:?}: a total was skipped");
    }
    let (last_fence, last_total) = *history.last().unwrap();
    assert!(total >= last_total && fence >= last_fence, "an addition is lost");
}
