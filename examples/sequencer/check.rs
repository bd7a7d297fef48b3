//! The check: many tasks draw tickets, add to a record under a lock, and take over a lock that was left behind.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farcall::{Bytes, Channel, Handle};

use crate::locks::Lock;
use crate::numbers::Numbers;
use crate::service::{IDS, NEXT_SLOT, SLOTS, SequencerClient, Slot};
use crate::tickets::Tickets;

const CHANNELS: usize = 3;
const TASKS: usize = 9;
/// Tickets that each task draws.
const TICKETS: usize = 400;

/// Additions of each task.
const ADDITIONS: u64 = 30;

/// Far longer than anybody holds a lock here, so that nobody loses one.
const LEASE: Duration = Duration::from_secs(30);

type Failure = Box<dyn Error + Send + Sync>;

/// Checks the server at an address. Closes the servers meanwhile: the address must have one more.
pub async fn run(address: &str, to_close: Vec<Handle>) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    // Each of them is a connection, as if it were another client.
    let mut clients = Vec::new();
    for _ in 0..CHANNELS {
        let channel = Channel::builder().with_env().connect(address).await?;
        let table = SequencerClient::new(&channel).table().await?;
        clients.push(Numbers::new(table.on(&channel)));
        if clients.len() == 1 {
            writeln!(out, "{TASKS} tasks on {CHANNELS} connections by {}", channel.transport().await?.name)?;
        }
    }
    let slot = new_slot(&clients[0]).await?;

    writeln!(out, "{}", draw(&clients, slot).await?)?;
    writeln!(out, "{}", add(&clients, slot, to_close).await?)?;
    writeln!(out, "{}", take_over(&clients).await?)?;
    Ok(())
}

/// Draws a number that may be void.
async fn once(numbers: &Numbers, at: usize) -> Result<u64, Failure> {
    Ok(Tickets::new(numbers.clone(), at).draw().await?)
}

/// Returns a slot that nobody has used.
async fn new_slot(numbers: &Numbers) -> Result<Slot, Failure> {
    match once(numbers, NEXT_SLOT).await? {
        number @ ..SLOTS => Ok(Slot::new(number)),
        _ => Err("all slots are used; start the server again".into()),
    }
}

async fn new_owner(numbers: &Numbers) -> Result<u32, Failure> {
    // 0 is nobody.
    Ok(u32::try_from(once(numbers, IDS).await? + 1)?)
}

/// Draws tickets by many tasks: they are distinct, and none is missing.
async fn draw(clients: &[Numbers], slot: Slot) -> Result<String, Failure> {
    let start = Instant::now();
    let drawing = (0..TASKS).map(|task| {
        let mut tickets = Tickets::new(clients[task % CHANNELS].clone(), slot.sequence);
        tokio::spawn(async move {
            let mut drawn = Vec::new();
            for _ in 0..TICKETS {
                drawn.push(tickets.draw().await?);
            }
            // Each task's own come in order.
            if !drawn.is_sorted() {
                return Err("a ticket is less than one that was drawn before".into());
            }
            Ok::<_, Failure>((drawn, tickets.voided()))
        })
    });
    let (mut all, mut void) = (Vec::new(), 0);
    for drawing in drawing.collect::<Vec<_>>() {
        let (drawn, voided) = drawing.await??;
        all.extend(drawn);
        void += voided;
    }
    let took = start.elapsed();
    all.sort_unstable();
    if all.windows(2).any(|two| two[0] == two[1]) {
        return Err("a ticket was drawn twice".into());
    }
    let missing = all[all.len() - 1] - all[0] + 1 - all.len() as u64;
    if missing > void {
        return Err(format!("{missing} tickets are missing, and {void} are void").into());
    }
    let per_second = all.len() as f64 / took.as_secs_f64();
    Ok(format!("{} tickets, all distinct, {missing} missing, {per_second:.0} tickets/s", all.len()))
}

/// The record that the lock protects: a total, and the fencing number of the holder that wrote it.
struct Record {
    total: u64,
    fence: u64,
}

impl Record {
    async fn read(numbers: &Numbers, at: usize) -> Result<Self, Failure> {
        let bytes = numbers.read(at, 16).await?;
        let (total, fence) = bytes.split_first_chunk().ok_or("a record has 16 bytes")?;
        Ok(Self { total: u64::from_le_bytes(*total), fence: u64::from_le_bytes(fence.try_into()?) })
    }

    fn encode(&self) -> Bytes {
        [self.total.to_le_bytes(), self.fence.to_le_bytes()].concat().into()
    }
}

/// Adds to a record by many tasks, which read and write it under a lock. Servers close meanwhile.
async fn add(clients: &[Numbers], slot: Slot, to_close: Vec<Handle>) -> Result<String, Failure> {
    let added = Arc::new(AtomicU64::new(0));
    let mut adding = Vec::new();
    for task in 0..TASKS {
        let (numbers, added) = (clients[task % CHANNELS].clone(), added.clone());
        let lock = Lock::new(numbers.clone(), slot.lock, new_owner(&numbers).await?, LEASE);
        adding.push(tokio::spawn(async move {
            for _ in 0..ADDITIONS {
                add_one(&numbers, &lock, slot.record).await?;
                added.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, Failure>(())
        }));
    }
    let expected = TASKS as u64 * ADDITIONS;
    let closed = to_close.len();
    let closing = tokio::spawn(async move {
        for (i, server) in (1..).zip(to_close) {
            while added.load(Ordering::Relaxed) < i * expected / (closed as u64 + 1) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            server.close();
        }
    });
    for adding in adding {
        adding.await??;
    }
    closing.await?;
    let total = Record::read(&clients[0], slot.record).await?.total;
    if total != expected {
        return Err(format!("the total is {total}, after {expected} additions of one").into());
    }
    let unknown: u64 = clients.iter().map(Numbers::unknown).sum();
    Ok(format!(
        "total {total} after {expected} additions; {closed} servers closed, {unknown} accesses of unknown outcome"
    ))
}

async fn add_one(numbers: &Numbers, lock: &Lock, at: usize) -> Result<(), Failure> {
    let held = lock.acquire().await?;
    let mut record = Record::read(numbers, at).await?;
    // The holder before has written it, and nobody since.
    if record.fence != u64::from(held.fence()).saturating_sub(2) {
        return Err(format!("{} has the lock after {}", held.fence(), record.fence).into());
    }
    record = Record { total: record.total + 1, fence: held.fence().into() };
    numbers.write(at, record.encode()).await?;
    if !held.release().await? {
        return Err("the lock was taken over within its lease".into());
    }
    Ok(())
}

/// Takes a lock over from an owner that has forgotten it.
async fn take_over(clients: &[Numbers]) -> Result<String, Failure> {
    let lease = Duration::from_millis(100);
    let slot = new_slot(&clients[0]).await?;
    let (first, second) = (&clients[0], &clients[1]);
    let first = Lock::new(first.clone(), slot.lock, new_owner(first).await?, lease);
    let second = Lock::new(second.clone(), slot.lock, new_owner(second).await?, lease);

    let forgotten = first.acquire().await?;
    let start = Instant::now();
    let taken = second.acquire().await?;
    let took = start.elapsed();
    if taken.fence() <= forgotten.fence() || forgotten.is_valid() {
        return Err("a lock was taken over, and its first holder does not know".into());
    }
    let fences = (forgotten.fence(), taken.fence());
    if forgotten.release().await? {
        return Err("a lock was released by an owner that had lost it".into());
    }
    if !taken.release().await? {
        return Err("a lock was lost that nobody else takes".into());
    }
    Ok(format!(
        "a lock left behind was taken over after {took:.0?}: fencing number {} after {}",
        fences.1, fences.0
    ))
}
