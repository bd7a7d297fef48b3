//! Three services in a row, each a client of the next: deadlines and cancellation go all the way down. Over TCP here, and
//! over RDMA as `vm_depth`.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::sync::Arc;
use std::time::Duration;

use farcall::{
    Channel, Code, Config, Context, EndReason, Executed, Result, Server, Status, Stream, Streaming, stream,
};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

/// How the first handler makes its calls.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum How {
    /// It awaits one.
    Awaited,
    /// A task does that it has spawned, in its context.
    Scoped,
    /// The handler makes the call, and a task awaits it in its context.
    ScopedLater,
    /// A task makes the call in its context.
    Given,
    /// A task makes it outside of every context.
    Detached,
}

#[farcall::service(package = "test")]
trait Hop {
    /// How long the caller of each still waits, in microseconds, the first one's first.
    async fn patience(&self, cx: &Context) -> Result<Vec<u64>>;
    /// Waits at the last one, until it is told to go on.
    async fn wait(&self, cx: &Context, how: How) -> Result<()>;
    /// As `wait`, but the first is done at once.
    async fn leave(&self, cx: &Context, how: How) -> Result<()>;
    /// So many numbers, from the last one, and then it waits.
    fn count(&self, to: u64) -> impl Stream<Item = Result<u64>>;
    /// Counts to `to` in a stream that a task reads in the context of the first handler, which waits.
    async fn counted(&self, cx: &Context, to: u64) -> Result<()>;
    /// The sum of numbers, from the last one.
    async fn sum(&self, numbers: Streaming<u64>) -> Result<u64>;
}

/// Events at the last service, and in tasks of the first.
struct Seen {
    started: Notify,
    dropped: Notify,
    go: Notify,
    /// The ends of calls and streams that tasks have made.
    ends: mpsc::UnboundedSender<Result<()>>,
    /// A task has seen that its call has ended.
    ended: Notify,
}

/// Tells that it was dropped, unless it was told not to.
struct Guard(Option<Arc<Seen>>);

impl Guard {
    fn new(seen: &Arc<Seen>) -> Self {
        seen.started.notify_one();
        Self(Some(seen.clone()))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(seen) = &self.0 {
            seen.dropped.notify_one();
        }
    }
}

struct Node {
    next: Option<HopClient>,
    seen: Arc<Seen>,
}

impl Node {
    /// Makes the call in a task.
    fn spawn(&self, cx: &Context, next: HopClient, how: How) {
        let call = next.wait(How::Awaited);
        let seen = self.seen.clone();
        match how {
            How::Given => drop(tokio::spawn(report(seen, call.context(cx), next, Some(cx.clone())))),
            How::Detached => drop(tokio::spawn(report(seen, call.detached(), next, None))),
            // The call begins here, or there.
            How::ScopedLater => {
                let call = report(seen, call.into_future(), next, Some(cx.clone()));
                tokio::spawn(cx.scope(call));
            }
            _ => drop(tokio::spawn(cx.scope(report(seen, call, next, Some(cx.clone()))))),
        }
        let (seen, ended) = (self.seen.clone(), cx.ended());
        tokio::spawn(async move {
            ended.await;
            seen.ended.notify_one();
        });
    }

    async fn wait_here(&self) -> Result<()> {
        let mut guard = Guard::new(&self.seen);
        self.seen.go.notified().await;
        guard.0 = None;
        Ok(())
    }
}

/// Tells what a call has ended with, and if that was with the one that this is the context of, another call.
async fn report(
    seen: Arc<Seen>,
    call: impl IntoFuture<Output = Result<()>>,
    next: HopClient,
    context: Option<Context>,
) {
    seen.ends.send(call.await).unwrap();
    if let Some(context) = context.filter(Context::is_ended) {
        let again = next.wait(How::Awaited).context(&context).await;
        seen.ends.send(again).unwrap();
    }
}

impl Hop for Node {
    async fn patience(&self, cx: &Context) -> Result<Vec<u64>> {
        let mut all = vec![cx.remaining().unwrap().as_micros() as u64];
        if let Some(next) = &self.next {
            // The next call has less time by this.
            tokio::time::sleep(Duration::from_millis(2)).await;
            all.extend(next.patience().await?);
        }
        Ok(all)
    }

    async fn wait(&self, cx: &Context, how: How) -> Result<()> {
        match &self.next {
            None => self.wait_here().await,
            Some(next) if how == How::Awaited => next.wait(how).await,
            Some(next) => {
                self.spawn(cx, next.clone(), how);
                std::future::pending().await
            }
        }
    }

    async fn leave(&self, cx: &Context, how: How) -> Result<()> {
        self.spawn(cx, self.next.clone().unwrap(), how);
        Ok(())
    }

    fn count(&self, to: u64) -> impl Stream<Item = Result<u64>> {
        let (sender, numbers) = stream::channel(1);
        let (next, seen) = (self.next.clone(), self.seen.clone());
        let cx = Context::current().unwrap();
        let ended = cx.ended();
        let work = async move {
            let Some(next) = next else {
                let _guard = Guard::new(&seen);
                for n in 0..to {
                    if sender.send(n).await.is_err() {
                        break;
                    }
                }
                ended.await;
                return Ok(());
            };
            // When these are all, only its call's end ends it.
            let mut numbers = next.count(to).await?;
            while let Some(n) = numbers.message().await? {
                if sender.send(n).await.is_err() {
                    break;
                }
            }
            Ok::<_, Status>(())
        };
        tokio::spawn(cx.scope(work));
        numbers
    }

    async fn counted(&self, cx: &Context, to: u64) -> Result<()> {
        let (next, seen, ended) = (self.next.clone().unwrap(), self.seen.clone(), cx.ended());
        tokio::spawn(cx.scope(async move {
            let mut numbers = next.count(to).await.unwrap();
            if to > 0 {
                numbers.message().await.unwrap();
            }
            seen.ends.send(Ok(())).unwrap();
            if to > 0 {
                // More have come by then, and are not read.
                ended.await;
            }
            let end = numbers.message().await.map(drop);
            assert_eq!(numbers.end_reason(), Some(EndReason::Cancelled));
            seen.ends.send(end).unwrap();
        }));
        std::future::pending().await
    }

    async fn sum(&self, mut numbers: Streaming<u64>) -> Result<u64> {
        let Some(next) = &self.next else {
            let _guard = Guard::new(&self.seen);
            let mut sum = 0;
            while let Some(n) = numbers.message().await? {
                sum += n;
            }
            return Ok(sum);
        };
        let (sender, passed_on) = stream::channel(1);
        let pass_on = async move {
            while let Ok(Some(n)) = numbers.message().await {
                if sender.send(n).await.is_err() {
                    break;
                }
            }
        };
        tokio::join!(next.sum(passed_on).into_future(), pass_on).0
    }
}

/// A client of the first of three.
struct Row {
    first: HopClient,
    address: String,
    seen: Arc<Seen>,
    ends: mpsc::UnboundedReceiver<Result<()>>,
}

/// Those that end with the call that they are made for.
const SPAWNED: [How; 3] = [How::Scoped, How::ScopedLater, How::Given];

/// By RDMA where there must be some, as in `vm_depth`.
fn scheme() -> &'static str {
    if std::env::var("FARCALL_RDMA").is_ok_and(|value| value == "required") { "rdma" } else { "tcp" }
}

/// Long enough for calls to reach the last.
const SOON: Duration = Duration::from_secs(1);

async fn row() -> Row {
    row_behind(false).await
}

/// Makes a row of services, with middleware around each server and client if asked.
async fn row_behind(middleware: bool) -> Row {
    let (sender, ends) = mpsc::unbounded_channel();
    let seen = Arc::new(Seen {
        started: Notify::new(),
        dropped: Notify::new(),
        go: Notify::new(),
        ends: sender,
        ended: Notify::new(),
    });
    // An emulated machine on a busy host is slow.
    let patient = Config::from_toml("[liveness]\nconnect_ms = 60_000").unwrap();
    let (mut next, mut address) = (None, String::new());
    for _ in 0..3 {
        let node = Node { next: next.take(), seen: seen.clone() };
        let mut server = Server::builder().add(HopServer::new(node)).config(patient.clone());
        if middleware {
            server = server.intercept(|request, next| async move { next.run(request).await });
        }
        let server = server.bind("127.0.0.1:0").await.unwrap();
        address = server.local_addr().to_string();
        tokio::spawn(server.serve());
        let channel = Channel::builder().config(patient.clone());
        let mut channel = channel.connect(&format!("{}://{address}", scheme())).await.unwrap();
        if middleware {
            channel = channel.intercept(|request, next| async move { next.run(request).await });
        }
        next = Some(HopClient::new(channel));
    }
    Row { first: next.unwrap(), address, seen, ends }
}

impl Row {
    /// A call that waits at the last one, and has begun to.
    async fn waiting(&self, how: How) -> JoinHandle<Result<()>> {
        let call = tokio::spawn(self.first.wait(how).into_future());
        self.seen.started.notified().await;
        call
    }

    async fn end(&mut self) -> Result<()> {
        self.ends.recv().await.unwrap()
    }
}

#[tokio::test]
async fn a_deadline_shrinks_through_three_services() {
    let row = row().await;
    let minute = Duration::from_secs(60);
    let left = row.first.patience().timeout(minute).await.unwrap();
    assert_eq!(left.len(), 3);
    assert!(left[0] <= 60_000_000 && left.windows(2).all(|two| two[1] + 2000 <= two[0]), "{left:?}");
}

#[tokio::test]
async fn dropping_the_first_call_drops_the_third_handler() {
    let row = row().await;
    let call = row.waiting(How::Awaited).await;
    call.abort();
    row.seen.dropped.notified().await;
}

#[tokio::test]
async fn a_deadline_ends_all_of_them() {
    let row = row().await;
    let call = row.first.wait(How::Awaited).timeout(SOON);
    let error = call.await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::DeadlineExceeded, Executed::Maybe));
    row.seen.dropped.notified().await;
}

#[tokio::test]
async fn a_lost_connection_cancels_what_is_below() {
    for how in [How::Awaited, How::Scoped] {
        let mut row = row().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let between = format!("tcp://{}", listener.local_addr().unwrap());
        let address = row.address.clone();
        let wire = tokio::spawn(async move {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = TcpStream::connect(address).await.unwrap();
            tokio::io::copy_bidirectional(&mut near, &mut far).await
        });
        row.first = HopClient::new(Channel::connect(&between).await.unwrap());
        let call = row.waiting(how).await;
        wire.abort();
        row.seen.dropped.notified().await;
        let error = call.await.unwrap().unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::Maybe), "{error}");
    }
}

#[tokio::test]
async fn spawned_calls_end_with_the_one_that_they_are_made_for() {
    for (how, middleware) in SPAWNED.into_iter().flat_map(|how| [(how, false), (how, true)]) {
        let mut row = row_behind(middleware).await;
        let call = row.waiting(how).await;
        call.abort();
        row.seen.dropped.notified().await;
        row.seen.ended.notified().await;
        let error = row.end().await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::Cancelled, Executed::Maybe), "{how:?}: {error}");
        assert!(error.message().starts_with("test.Hop/wait: parent call has ended"), "{error}");
        // None is made any more.
        let error = row.end().await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::Cancelled, Executed::No), "{how:?}: {error}");
    }
}

#[tokio::test]
async fn a_deadline_ends_spawned_calls() {
    for how in SPAWNED {
        let mut row = row().await;
        let call = row.first.wait(how).timeout(SOON);
        assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
        row.seen.dropped.notified().await;
        row.seen.ended.notified().await;
        let error = row.end().await.unwrap_err();
        // The caller's cancellation may arrive before the deadline has passed here, too.
        let codes = [Code::DeadlineExceeded, Code::Cancelled];
        assert!(codes.contains(&error.code()), "{how:?}: {error}");
    }
}

#[tokio::test]
async fn detached_calls_do_not_end_with_another() {
    let mut row = row().await;
    let call = row.waiting(How::Detached).await;
    call.abort();
    row.seen.ended.notified().await;
    row.seen.go.notify_one();
    row.end().await.unwrap();
}

#[tokio::test]
async fn spawned_calls_go_on_when_the_handler_is_done() {
    for (how, middleware) in
        [(How::Scoped, false), (How::Given, false), (How::Detached, false), (How::Scoped, true)]
    {
        let mut row = row_behind(middleware).await;
        row.first.leave(how).await.unwrap();
        row.seen.started.notified().await;
        row.seen.go.notify_one();
        row.end().await.unwrap();
    }
}

#[tokio::test]
async fn dropping_the_first_stream_drops_the_third() {
    let row = row().await;
    for to in [1000, u64::MAX] {
        let mut numbers = row.first.count(to).await.unwrap();
        for n in 0..1000 {
            assert_eq!(numbers.message().await.unwrap(), Some(n));
        }
        drop(numbers);
        row.seen.dropped.notified().await;
    }
}

#[tokio::test]
async fn a_deadline_ends_all_streams() {
    let row = row().await;
    for to in [10, u64::MAX] {
        let mut numbers = row.first.count(to).timeout(SOON).await.unwrap();
        let error = loop {
            if let Err(error) = numbers.message().await {
                break error;
            }
        };
        assert_eq!((error.code(), numbers.end_reason()), (Code::DeadlineExceeded, Some(EndReason::Deadline)));
        row.seen.dropped.notified().await;
    }
}

#[tokio::test]
async fn spawned_streams_end_with_the_call_that_they_are_made_for() {
    for (to, middleware) in [(0, false), (u64::MAX, false), (0, true), (u64::MAX, true)] {
        let mut row = row_behind(middleware).await;
        let call = tokio::spawn(row.first.counted(to).into_future());
        row.end().await.unwrap();
        call.abort();
        row.seen.dropped.notified().await;
        let error = row.end().await.unwrap_err();
        assert_eq!(error.code(), Code::Cancelled, "{error}");
    }
}

#[tokio::test]
async fn a_stream_of_arguments_that_is_dropped_drops_the_third_handler() {
    let row = row().await;
    assert_eq!(row.first.sum(stream::iter(0..1000)).await.unwrap(), 499_500);
    row.seen.dropped.notified().await;
    row.seen.started.notified().await;

    let (sender, numbers) = stream::channel(1);
    let call = tokio::spawn(row.first.sum(numbers).into_future());
    sender.send(1).await.unwrap();
    row.seen.started.notified().await;
    call.abort();
    row.seen.dropped.notified().await;
}
