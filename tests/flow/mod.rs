//! Parts that tests of streams share: a service with streams of all kinds, which writes down how each of them went, and
//! callers that look at every item.

#![expect(dead_code, reason = "each test uses a part of it")]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

pub(crate) mod storm;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use farcall::{Bytes, Code, EndReason, Result, Status, Stream, Streaming, stream};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

/// An item made of a stream's id and the item's number, in its body or beside it by turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Item {
    number: u64,
    inside: String,
    #[serde(with = "farcall::attachment")]
    beside: Bytes,
}

/// The id of a stream, and the length of its items.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) id: u64,
    pub(crate) len: u32,
    pub(crate) count: u64,
}

impl Plan {
    pub(crate) fn item(self, number: u64) -> Item {
        // A period of 251 bytes, so that a piece in a wrong place shows.
        let seed = self.id.wrapping_mul(31).wrapping_add(number) as u8;
        let period: Vec<u8> = (0..251_u8).map(|i| i.wrapping_mul(13).wrapping_add(seed) & 0x7f).collect();
        let mut content = period.repeat(self.len as usize / period.len() + 1);
        content.truncate(self.len as usize);
        if number.is_multiple_of(2) {
            Item { number, inside: String::new(), beside: content.into() }
        } else {
            Item { number, inside: String::from_utf8(content).unwrap(), beside: Bytes::new() }
        }
    }

    pub(crate) fn items(self) -> Items {
        Items { plan: self, next: 0, rests: false }
    }

    /// How many bytes its items have.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.len) * self.count
    }
}

/// The items of a plan. Now and then there is none for a moment, so that others have their turn.
pub(crate) struct Items {
    plan: Plan,
    next: u64,
    rests: bool,
}

impl Stream for Items {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Item>> {
        self.rests = !self.rests && self.next % 16 == 15;
        if self.rests {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let number = self.next;
        self.next += 1;
        Poll::Ready((number < self.plan.count).then(|| self.plan.item(number)))
    }
}

/// A stream without an end.
pub(crate) const ENDLESS: u64 = u64::MAX;

#[farcall::service(package = "test")]
pub(crate) trait Flow {
    /// All items.
    fn watch(&self, plan: Plan) -> impl Stream<Item = Result<Item>>;
    /// So many items, and then an error.
    fn fail(&self, plan: Plan) -> impl Stream<Item = Result<Item>>;
    /// How many items there were.
    async fn load(&self, plan: Plan, items: Streaming<Item>) -> Result<u64>;
    /// Takes only so many items as it says, and answers when it is [told](Log::go_on) to.
    async fn taste(&self, plan: Plan, items: Streaming<Item>) -> Result<()>;
    /// Each item as it comes.
    fn back(&self, plan: Plan, items: Streaming<Item>) -> impl Stream<Item = Result<Item>>;
    /// All items, when all have come.
    async fn later(&self, plan: Plan, items: Streaming<Item>) -> Result<impl Stream<Item = Result<Item>>>;
    async fn echo(&self, content: Bytes) -> Result<Bytes>;
    /// Whether each of these ran once, and had the whole of its client's stream.
    async fn were_whole(&self, plans: Vec<Plan>) -> Result<bool>;
}

/// The server's part.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Seen>);

#[derive(Default)]
struct Seen {
    running: AtomicUsize,
    most: AtomicUsize,
    /// By id.
    streams: Mutex<HashMap<u64, Went>>,
    go_on: tokio::sync::Notify,
}

/// How it went with a stream's handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Went {
    /// How often it ran.
    pub(crate) runs: u32,
    /// It has seen the end of the client's stream, and took that for a whole one.
    pub(crate) whole: bool,
    /// It has seen that the client's stream was cut short, or was dropped.
    pub(crate) cut: bool,
}

/// A handler, or what it streams.
struct Running(Log, u64);

impl Log {
    fn enter(&self, plan: Plan) -> Running {
        let running = 1 + self.0.running.fetch_add(1, Ordering::Relaxed);
        self.0.most.fetch_max(running, Ordering::Relaxed);
        self.note(plan.id, |went| went.runs += 1);
        Running(self.clone(), plan.id)
    }

    fn note(&self, id: u64, edit: impl FnOnce(&mut Went)) {
        edit(self.0.streams.lock().unwrap().entry(id).or_default());
    }

    /// How it went with a stream.
    pub(crate) fn went(&self, id: u64) -> Went {
        self.0.streams.lock().unwrap().get(&id).copied().unwrap_or_default()
    }

    /// Whether the handler of such a [`whole`](stream_whole) stream ran once, and had the whole of what its client streamed.
    pub(crate) fn was_whole(&self, plan: Plan) -> bool {
        let Went { runs, whole, .. } = self.went(plan.id);
        runs == 1 && (whole || plan.id % 4 == WATCH)
    }

    /// How many handlers and streams of theirs there are.
    pub(crate) fn running(&self) -> usize {
        self.0.running.load(Ordering::Relaxed)
    }

    /// The most that there were at once.
    pub(crate) fn most(&self) -> usize {
        self.0.most.load(Ordering::Relaxed)
    }

    /// Forgets how it went with streams.
    pub(crate) fn forget(&self) {
        self.0.streams.lock().unwrap().clear();
    }

    /// Lets one [`taste`](Flow::taste) answer.
    pub(crate) fn go_on(&self) {
        self.0.go_on.notify_one();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.note(self.1, |went| went.cut |= !went.whole);
        self.0.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Running {
    /// The next item of a client's stream, which is the one that it must be.
    fn check(&self, plan: Plan, number: u64, next: Result<Option<Item>>) -> Result<Option<Item>> {
        match &next {
            Ok(Some(item)) if *item != plan.item(number) => {
                return Err(Status::new(Code::DataLoss, format!("item {number} of {plan:?} is another")));
            }
            Ok(None) => self.0.note(self.1, |went| went.whole = true),
            Ok(Some(_)) | Err(_) => {}
        }
        next
    }
}

impl Flow for Log {
    fn watch(&self, plan: Plan) -> impl Stream<Item = Result<Item>> {
        let running = self.enter(plan);
        Map(plan.items(), move |item: Option<Item>| {
            let _ = &running;
            item.map(Ok)
        })
    }

    fn fail(&self, plan: Plan) -> impl Stream<Item = Result<Item>> {
        let running = self.enter(plan);
        stream::iter((0..=plan.count).map(move |n| {
            let _ = &running;
            if n < plan.count {
                Ok(plan.item(n))
            } else {
                Err(Status::new(Code::DataLoss, "as it was told to"))
            }
        }))
    }

    async fn load(&self, plan: Plan, mut items: Streaming<Item>) -> Result<u64> {
        let running = self.enter(plan);
        let mut count = 0;
        while running.check(plan, count, items.message().await)?.is_some() {
            count += 1;
        }
        assert_eq!(items.end_reason(), Some(EndReason::Completed));
        Ok(count)
    }

    async fn taste(&self, plan: Plan, mut items: Streaming<Item>) -> Result<()> {
        let running = self.enter(plan);
        for number in 0..plan.count {
            running.check(plan, number, items.message().await)?;
        }
        drop(items);
        self.0.go_on.notified().await;
        Ok(())
    }

    fn back(&self, plan: Plan, items: Streaming<Item>) -> impl Stream<Item = Result<Item>> {
        let (running, mut number) = (self.enter(plan), 0);
        Map(items, move |next: Option<Result<Item>>| {
            number += 1;
            running.check(plan, number - 1, next.transpose()).transpose()
        })
    }

    async fn later(
        &self,
        plan: Plan,
        mut items: Streaming<Item>,
    ) -> Result<impl Stream<Item = Result<Item>>> {
        let running = self.enter(plan);
        let mut all = Vec::new();
        while let Some(item) = running.check(plan, all.len() as u64, items.message().await)? {
            all.push(item);
        }
        Ok(stream::iter(all.into_iter().map(move |item| {
            let _ = &running;
            Ok(item)
        })))
    }

    async fn echo(&self, content: Bytes) -> Result<Bytes> {
        Ok(content)
    }

    async fn were_whole(&self, plans: Vec<Plan>) -> Result<bool> {
        Ok(plans.into_iter().all(|plan| self.was_whole(plan)))
    }
}

/// A stream of what a function makes of each answer of another, its end included.
pub(crate) struct Map<S, F>(pub(crate) S, pub(crate) F);

impl<S, F, U> Stream for Map<S, F>
where
    S: Stream + Unpin,
    F: FnMut(Option<S::Item>) -> Option<U> + Unpin,
{
    type Item = U;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<U>> {
        let Self(stream, map) = &mut *self;
        Pin::new(stream).poll_next(cx).map(map)
    }
}

/// Reads a stream to its end: each item once, in order, and all of them.
pub(crate) async fn read(plan: Plan, mut stream: Streaming<Item>) -> Result<()> {
    take(plan, plan.count, &mut stream).await?;
    assert_eq!(stream.message().await?, None, "{plan:?} goes on");
    assert_eq!(stream.end_reason(), Some(EndReason::Completed), "{plan:?}");
    Ok(())
}

/// Reads the first so many items of a stream.
pub(crate) async fn take(plan: Plan, count: u64, stream: &mut Streaming<Item>) -> Result<()> {
    for number in 0..count {
        let item = stream.message().await?;
        let item = item.unwrap_or_else(|| panic!("{plan:?} has ended after {number} items"));
        assert!(item == plan.item(number), "item {number} of {plan:?} is another");
    }
    Ok(())
}

/// Reads the items from this one on until a stream ends, which it must not do as if it were whole.
pub(crate) async fn cut_short(plan: Plan, first: u64, stream: &mut Streaming<Item>) -> Status {
    for number in first.. {
        match stream.message().await {
            Ok(Some(item)) => assert!(item == plan.item(number), "item {number} of {plan:?} is another"),
            Ok(None) => panic!("{plan:?} was taken for a whole one after {number} items"),
            Err(status) => return status,
        }
    }
    unreachable!()
}

/// One of four ids: a stream to the client alone.
const WATCH: u64 = 0;

/// A call with a stream of the kind that its id says, from its beginning to its end, and each item looked at.
pub(crate) async fn stream_whole(flow: &FlowClient, plan: Plan) -> Result<()> {
    match plan.id % 4 {
        WATCH => read(plan, flow.watch(plan).await?).await,
        1 => flow.load(plan, plan.items()).await.map(|count| assert_eq!(count, plan.count, "{plan:?}")),
        2 => read(plan, flow.back(plan, plan.items()).await?).await,
        _ => read(plan, flow.later(plan, plan.items()).await?).await,
    }
}

/// Callers that have streams of all kinds one after the other, until they are told to stop.
pub(crate) struct Load {
    over: Arc<AtomicBool>,
    ended: Arc<AtomicU64>,
    callers: Vec<JoinHandle<Vec<Plan>>>,
}

/// How long items are, and how many of them.
const SIZES: [(u32, u64); 6] =
    [(10, 5000), (700, 500), (6000, 100), (30_000, 40), (150_000, 15), (600_000, 6)];

impl Load {
    /// Each begins with another kind.
    pub(crate) fn start(flow: &FlowClient, callers: u64) -> Self {
        let (over, ended) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let caller = |first: u64| {
            let (flow, over, ended) = (flow.clone(), over.clone(), ended.clone());
            tokio::spawn(async move {
                let mut plans = Vec::new();
                for n in 0.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let (len, count) = SIZES[(first + n) as usize % SIZES.len()];
                    let plan = Plan { id: first << 32 | (first + n), len, count };
                    stream_whole(&flow, plan).await.unwrap_or_else(|status| panic!("{plan:?}: {status}"));
                    plans.push(plan);
                    ended.fetch_add(1, Ordering::Relaxed);
                }
                plans
            })
        };
        let callers = (0..callers).map(caller).collect();
        Self { over, ended, callers }
    }

    /// How many streams have come whole.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Lets each caller finish its stream; gives what streams there were.
    pub(crate) async fn stop(self, patience: Duration) -> Vec<Plan> {
        self.over.store(true, Ordering::Relaxed);
        let mut plans = Vec::new();
        for caller in self.callers {
            plans.extend(
                tokio::time::timeout(patience, caller).await.expect("every stream must end").unwrap(),
            );
        }
        plans
    }
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, patience: Duration, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(patience, waiting).await.unwrap_or_else(|_| panic!("in vain: {what}"));
}
