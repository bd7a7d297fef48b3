//! A closed loop: so many callers, each of which calls again as soon as it has its answer.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::args::{Args, Method};
use crate::report::{Moment, Report};
use crate::{Contestant, Result};

/// A handle of a connection. Each caller has a clone.
pub(crate) trait Caller: Clone + Send + 'static {
    /// Makes one call; how many bytes of payload it moved.
    fn call(&mut self, payload: &Bytes) -> impl Future<Output = Result<usize>> + Send;

    /// Asks for a stream of so many items, and reads it; `item` is told the length of each.
    fn stream(
        &mut self,
        count: u64,
        size: usize,
        item: &mut (dyn FnMut(usize) + Send),
    ) -> impl Future<Output = Result<()>> + Send {
        let _ = (count, size, item);
        async { Err("has no streams".into()) }
    }

    /// Returns the bytes that callers send.
    fn payload(&self, size: usize) -> Bytes {
        pattern(size).collect::<Vec<u8>>().into()
    }
}

/// Bytes that no two neighbours of which are the same.
pub(crate) fn pattern(size: usize) -> impl Iterator<Item = u8> {
    (0..size).map(|i| (i * 31 % 251) as u8)
}

/// A timed call reads the clock twice, 50 ns: nothing for one that waits for its answer alone or moves as much as this,
/// else much. Then one in eight is timed.
const TIMED: usize = 16 << 10;

/// Returns the number of calls of which one is timed.
pub(crate) fn timed_of(args: &Args) -> u32 {
    if args.concurrency == 1 || args.size >= TIMED { 1 } else { 8 }
}

const WARMUP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// State that the callers share.
struct Shared {
    phase: AtomicU8,
    size: usize,
    payload: Bytes,
    /// How many items a stream has; else these are calls.
    items: Option<u64>,
    /// How many of so many calls are timed.
    timed_of: u32,
    pause: Duration,
    done: AtomicU64,
    /// Calls that may still be begun.
    left: Option<AtomicU64>,
}

/// Makes the calls and says what they took.
pub(crate) async fn run<C: Contestant>(args: Args) -> Result<Report> {
    let mut clients = Vec::new();
    for _ in 0..args.connections {
        clients.push(C::connect(args.clone()).await?);
    }
    let payload = clients.first().ok_or("no connections")?.payload(args.size);
    let shared = Arc::new(Shared {
        phase: AtomicU8::new(if args.calls.is_some() { MEASURE } else { WARMUP }),
        size: args.size,
        payload,
        items: (args.method == Method::Stream).then(|| items(args.size)),
        timed_of: timed_of(&args),
        pause: args.pause,
        done: AtomicU64::new(0),
        left: args.calls.map(AtomicU64::new),
    });
    let now = || Moment::now(shared.done.load(Ordering::Relaxed), &args);
    let (mut from, mut began) = (now(), Instant::now());
    let mut callers = JoinSet::new();
    for i in 0..args.concurrency {
        // Where there are more connections than callers, each has several, and goes round.
        let first = i % clients.len();
        let own = clients.iter().skip(first).step_by(args.concurrency).cloned().collect();
        match shared.items {
            Some(items) => callers.spawn(reader(shared.clone(), own, items)),
            None => callers.spawn(caller(shared.clone(), own)),
        };
    }
    if args.calls.is_none() {
        tokio::time::sleep(Duration::from_secs_f64(args.warmup)).await;
        shared.phase.store(MEASURE, Ordering::Relaxed);
        (from, began) = (now(), Instant::now());
        tokio::time::sleep(Duration::from_secs_f64(args.seconds)).await;
    } else {
        ended(&mut callers).await?;
    }
    let (took, to) = (began.elapsed(), now());
    shared.phase.store(STOP, Ordering::Relaxed);
    ended(&mut callers).await?;
    if to.calls == from.calls {
        return Err("no call has ended in time".into());
    }
    Ok(Report::new(args, from, to, took, &times()))
}

async fn ended(callers: &mut JoinSet<Result<()>>) -> Result<()> {
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(())
}

async fn caller<C: Caller>(shared: Arc<Shared>, mut clients: Vec<C>) -> Result<()> {
    let (mut untimed, mut next) = (0, 0);
    loop {
        let phase = shared.phase.load(Ordering::Relaxed);
        if phase == STOP || !shared.may_begin() {
            return Ok(());
        }
        let client = &mut clients[next];
        untimed += 1;
        let moved = if phase == MEASURE && untimed >= shared.timed_of {
            untimed = 0;
            let began = Instant::now();
            let moved = client.call(&shared.payload).await?;
            record(began.elapsed());
            moved
        } else {
            client.call(&shared.payload).await?
        };
        if moved != shared.size {
            return Err(format!("a call moved {moved} bytes, not {}", shared.size).into());
        }
        shared.done.fetch_add(1, Ordering::Relaxed);
        next = if next + 1 == clients.len() { 0 } else { next + 1 };
        if !shared.pause.is_zero() {
            tokio::time::sleep(shared.pause).await;
        }
    }
}

/// A stream has so many items: 32 MiB of long ones.
fn items(size: usize) -> u64 {
    ((32 << 20) / size.max(1) as u64).clamp(16, 20_000)
}

/// So many items are counted together.
const COUNTED: u64 = 64;

/// Reads streams, each item of which counts as a call.
async fn reader<C: Caller>(shared: Arc<Shared>, mut clients: Vec<C>, items: u64) -> Result<()> {
    let client = clients.first_mut().ok_or("no connection")?;
    while shared.phase.load(Ordering::Relaxed) != STOP && shared.may_begin() {
        let (mut read, mut wrong) = (0, false);
        let mut item = |len: usize| {
            read += 1;
            wrong |= len != shared.size;
            if read % COUNTED == 0 {
                shared.done.fetch_add(COUNTED, Ordering::Relaxed);
            }
        };
        let began = Instant::now();
        client.stream(items, shared.size, &mut item).await?;
        if shared.phase.load(Ordering::Relaxed) == MEASURE {
            record(began.elapsed());
        }
        shared.done.fetch_add(read % COUNTED, Ordering::Relaxed);
        if read != items || wrong {
            return Err(format!("a stream had {read} items of {items}, or of another length").into());
        }
    }
    Ok(())
}

impl Shared {
    fn may_begin(&self) -> bool {
        let Some(left) = &self.left else { return true };
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

/// Bytes that moved beside the calls.
static BESIDE: AtomicU64 = AtomicU64::new(0);

/// Counts bytes of the load.
pub(crate) fn moved_beside(bytes: usize) {
    BESIDE.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Returns the bytes of the load so far.
pub(crate) fn beside() -> u64 {
    BESIDE.load(Ordering::Relaxed)
}

type Times = Arc<Mutex<Histogram<u64>>>;

/// One for each thread, so that they do not disturb each other.
static TIMES: Mutex<Vec<Times>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: Times = {
        let mine = Times::new(Mutex::new(empty()));
        TIMES.lock().unwrap_or_else(PoisonError::into_inner).push(mine.clone());
        mine
    };
}

/// From 100 ns to 100 s, to three digits.
pub(crate) fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(100, 100_000_000_000, 3).expect("these bounds are right")
}

fn record(time: Duration) {
    MINE.with(|mine| {
        mine.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(time.as_nanos() as u64);
    });
}

fn times() -> Histogram<u64> {
    let mut all = empty();
    for part in TIMES.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        all.add(&*part.lock().unwrap_or_else(PoisonError::into_inner)).expect("all have the same bounds");
    }
    all
}
