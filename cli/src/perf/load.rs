//! Makes the calls of a case, and takes their times.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farcall::bulk::BulkWrite;
use farcall::region::RemoteMemory;
use farcall::{Buf, Bytes, Channel, Result, Status, stream};
use hdrhistogram::Histogram;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;

use super::case::{Case, Latency, Outcome, Pattern, STREAM};
use super::environment::processor_micros;
use super::service::{PerfClient, REGION, filled};

/// How long a case runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Length {
    /// Before anything is counted.
    pub(crate) warm_up: Duration,
    /// While calls are counted.
    pub(crate) measured: Duration,
}

/// Far enough never to be reached.
const DEADLINE: Duration = Duration::from_secs(60);

/// Latencies up to a minute, in nanoseconds, with three significant digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are valid")
}

/// The results of all workers, which can be looked at while they work.
#[derive(Debug, Default)]
pub(crate) struct Progress(std::sync::Mutex<Times>);

impl Progress {
    /// Returns the results so far.
    pub(super) fn so_far(&self) -> SoFar {
        let times = self.times();
        let at = |percent: f64| micros(times.histogram.value_at_percentile(percent));
        SoFar { calls: times.histogram.len(), p50: at(50.0), p99: at(99.0) }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Results before the end. Latencies are in microseconds.
#[derive(Debug)]
pub(super) struct SoFar {
    pub(super) calls: u64,
    pub(super) p50: f64,
    pub(super) p99: f64,
}

/// The results of all workers.
#[derive(Debug)]
struct Times {
    histogram: Histogram<u64>,
    /// Calls that ended between the end of the warm-up and the end.
    completed: u64,
    errors: u64,
    error: Option<String>,
}

impl Default for Times {
    fn default() -> Self {
        Self { histogram: histogram(), completed: 0, errors: 0, error: None }
    }
}

/// The times at which calls are due, for whichever worker is free.
struct Schedule {
    /// The end of the warm-up.
    counted_from: Instant,
    end: Instant,
    /// The calls that are due. `None`: a call begins when the worker's last has ended.
    due: Option<Mutex<Receiver<Instant>>>,
}

impl Schedule {
    /// Begins now.
    fn begin(time: Length, rate: Option<u32>) -> Self {
        let begin = Instant::now();
        let counted_from = begin + time.warm_up;
        let end = counted_from + time.measured;
        let due = rate.map(|rate| {
            // Where it is full, the schedule is behind; the times stay.
            let (sender, receiver) = channel(1 << 16);
            tokio::spawn(dispense(begin, end, Duration::from_secs(1) / rate, sender));
            Mutex::new(receiver)
        });
        Self { counted_from, end, due }
    }

    /// Waits for the next call that is due, and returns its time. `None`: there is none any more.
    ///
    /// If all workers were busy, it is a time in the past. The latency counts from there, as a user's does who waits: a stall of the
    /// server is seen by all the calls that it holds up, not by one. Calls that have not begun at the end are left.
    async fn next(&self) -> Option<Instant> {
        let due = match &self.due {
            Some(due) => due.lock().await.recv().await?,
            None => Instant::now(),
        };
        Some(due).filter(|_| Instant::now() < self.end)
    }

    /// Returns how many calls were due at this rate while calls were counted.
    fn due(&self, rate: u32) -> u64 {
        ((self.end - self.counted_from).as_secs_f64() * f64::from(rate)) as u64
    }
}

/// Says when calls are due, at these intervals, and never early.
async fn dispense(begin: Instant, end: Instant, interval: Duration, due: Sender<Instant>) {
    for number in 0_u32.. {
        let next = begin + interval.mul_f64(f64::from(number));
        if next >= end {
            return;
        }
        // The runtime's clock counts in milliseconds.
        let early = next.saturating_duration_since(Instant::now());
        if early > Duration::from_millis(3) {
            tokio::time::sleep(early - Duration::from_millis(2)).await;
        }
        while Instant::now() < next {
            tokio::task::yield_now().await;
        }
        if due.send(next).await.is_err() {
            return;
        }
    }
}

/// A case while it runs.
pub(super) struct Run {
    schedule: Schedule,
    progress: Arc<Progress>,
    time: Length,
}

impl Run {
    /// Begins now.
    pub(super) fn begin(time: Length, rate: Option<u32>, progress: &Arc<Progress>) -> Arc<Self> {
        let (schedule, progress) = (Schedule::begin(time, rate), Arc::clone(progress));
        Arc::new(Self { schedule, progress, time })
    }

    /// Returns the time when no further call begins.
    pub(super) fn end(&self) -> Instant {
        self.schedule.end
    }

    /// Counts calls, of which each was due at a time, and answered at another.
    pub(super) fn answered(&self, calls: impl IntoIterator<Item = (Instant, Instant)>) {
        let mut times = self.progress.times();
        for (due, at) in calls {
            times.completed += u64::from((self.schedule.counted_from..self.schedule.end).contains(&at));
            if due >= self.schedule.counted_from {
                times.histogram.saturating_record((at - due).as_nanos() as u64);
            }
        }
    }

    /// Counts a call that was due then, and failed.
    pub(super) fn failed(&self, due: Instant, why: String) {
        let mut times = self.progress.times();
        times.errors += u64::from(due >= self.schedule.counted_from);
        times.error.get_or_insert(why);
    }

    /// Waits for the workers, and sees meanwhile what the processors do.
    pub(super) async fn outcome(
        &self,
        case: &Case,
        transport: String,
        server: &PerfClient,
        mut workers: JoinSet<()>,
    ) -> Result<Outcome> {
        // 0 is unknown: a case goes on although its server does not answer.
        let used = async || {
            let own = processor_micros();
            let server = server.usage().timeout(Duration::from_secs(5)).await;
            (own, server.map_or(0, |usage| usage.processor_micros))
        };
        tokio::time::sleep_until(self.schedule.counted_from.into()).await;
        let before = used().await;
        tokio::time::sleep_until(self.schedule.end.into()).await;
        let after = used().await;
        while let Some(ended) = workers.join_next().await {
            ended.map_err(|error| Status::internal(error.to_string()))?;
        }
        let times = self.progress.times();
        let mut outcome = outcome(case, transport, self.time.measured.as_secs_f64(), &times);
        // Waiting for the schedule takes the processor, too, so with one nothing can be said of calls.
        let is_told = case.rate.is_none();
        // A server that was started again counts anew.
        let each = |before: u64, after: u64| {
            let micros = after.checked_sub(before).filter(|_| before > 0 && times.completed > 0)?;
            Some(micros as f64 / times.completed as f64)
        };
        outcome.client_cpu = each(before.0, after.0).filter(|_| is_told);
        outcome.server_cpu = each(before.1, after.1);
        let due = case.rate.map_or(0, |rate| self.schedule.due(rate));
        let left = due.saturating_sub(outcome.calls + outcome.errors);
        // The last calls of a schedule may be late by a moment.
        outcome.not_begun = if left > due / 1000 { left } else { 0 };
        Ok(outcome)
    }
}

/// Makes the calls of a case over these channels, one for each connection.
pub(crate) async fn run(
    case: &Case,
    channels: &[Channel],
    time: Length,
    progress: &Arc<Progress>,
) -> Result<Outcome> {
    let transport = channels[0].transport().await?.to_string();
    let first = PerfClient::new(&channels[0]);
    let is_one_sided = matches!(case.pattern, Pattern::Read | Pattern::Write | Pattern::Add);
    if is_one_sided && case.size > REGION {
        return Err(Status::invalid_argument(format!(
            "the region has {REGION} bytes, so no more can be read or written"
        )));
    }
    let payload = filled(case.size);
    let region = if is_one_sided { Some(first.region().await?) } else { None };
    let run = Run::begin(time, case.rate, progress);
    let mut workers = JoinSet::new();
    for number in 0..case.in_flight {
        let channel = &channels[number % channels.len()];
        let caller = Caller {
            client: PerfClient::new(channel),
            pattern: case.pattern,
            payload: payload.clone(),
            region: region.as_ref().map(|region| region.clone().on(channel)),
            buffer: None,
        };
        workers.spawn(work(caller, Arc::clone(&run)));
    }
    run.outcome(case, transport, &first, workers).await
}

async fn work(mut caller: Caller, run: Arc<Run>) {
    while let Some(due) = run.schedule.next().await {
        match caller.call().await {
            Ok(()) => run.answered([(due, Instant::now())]),
            Err(status) => {
                run.failed(due, status.to_string());
                // A server that refuses at once is not asked in a busy loop.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

fn outcome(case: &Case, transport: String, seconds: f64, times: &Times) -> Outcome {
    let moved = (times.completed * case.pattern.payloads()) as f64 * case.size as f64;
    Outcome {
        case: case.clone(),
        transport,
        seconds,
        calls: times.histogram.len(),
        errors: times.errors,
        not_begun: 0,
        error: times.error.clone(),
        calls_per_second: times.completed as f64 / seconds,
        megabytes_per_second: moved / seconds / 1e6,
        latency: latency(&times.histogram),
        client_cpu: None,
        server_cpu: None,
    }
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

fn latency(histogram: &Histogram<u64>) -> Latency {
    let at = |percent: f64| micros(histogram.value_at_percentile(percent));
    let shares = [0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 99.999, 100.0];
    Latency {
        mean: histogram.mean() / 1e3,
        p50: at(50.0),
        p90: at(90.0),
        p99: at(99.0),
        p999: at(99.9),
        max: micros(histogram.max()),
        distribution: shares.into_iter().map(|share| (share, at(share))).collect(),
    }
}

/// One who calls, again and again.
struct Caller {
    client: PerfClient,
    pattern: Pattern,
    payload: Bytes,
    region: Option<RemoteMemory>,
    /// The memory that is lent to be written, between two calls.
    buffer: Option<Buf>,
}

impl Caller {
    async fn call(&mut self) -> Result<()> {
        let (client, payload) = (&self.client, &self.payload);
        match self.pattern {
            Pattern::Echo => client.echo(payload.clone()).timeout(DEADLINE).await.map(drop),
            Pattern::Put => client.put(payload.clone()).timeout(DEADLINE).await.map(drop),
            Pattern::Get => client.get(payload.len() as u32).timeout(DEADLINE).await.map(drop),
            // Boxed, so that the future of the others is no longer than it must be.
            _ => Box::pin(self.long()).await,
        }
    }

    async fn long(&mut self) -> Result<()> {
        let (client, payload) = (&self.client, &self.payload);
        match self.pattern {
            Pattern::StreamDown => {
                let mut items = client.stream_down(STREAM, payload.len() as u32).timeout(DEADLINE).await?;
                while items.message().await?.is_some() {}
                Ok(())
            }
            Pattern::StreamUp => {
                let payload = payload.clone();
                let items = stream::iter((0..STREAM).map(move |_| payload.clone()));
                client.stream_up(items).timeout(DEADLINE).await.map(drop)
            }
            Pattern::Lend => client.lend(payload.clone().into()).timeout(DEADLINE).await.map(drop),
            Pattern::Fill => self.fill().await,
            Pattern::Read => self.region()?.read(..payload.len()).await.map(drop),
            Pattern::Write => self.region()?.write(0, payload.clone()).await,
            Pattern::Add => self.region()?.fetch_add(0, 1).await.map(drop),
            Pattern::Echo | Pattern::Put | Pattern::Get => Ok(()),
        }
    }

    async fn fill(&mut self) -> Result<()> {
        let size = self.payload.len();
        let buffer = self.buffer.take().unwrap_or_else(|| {
            let mut buffer = farcall::buf(size);
            buffer.resize(size);
            buffer
        });
        let (into, loan) = BulkWrite::lend(buffer);
        let filled = self.client.fill(into).timeout(DEADLINE).await;
        self.buffer = Some(loan.reclaim().await);
        filled.map(drop)
    }

    fn region(&self) -> Result<&RemoteMemory> {
        self.region.as_ref().ok_or_else(|| Status::internal("the server's region is not known"))
    }
}
