//! Methods with streams: what the macro makes of them, in process, over TCP and through a client that is served again.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod crowd;
mod drain;
mod ends;
#[path = "../flow/mod.rs"]
mod flow;
mod forms;
mod metadata;
mod turns;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use farcall::{
    Blame, Bytes, Channel, Code, Context, EndReason, Executed, Result, Server, Status, Stream, Streaming,
    stream,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Why there is no stream, or no more of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum LogError {
    NoFile(String),
    Call(Status),
}

impl From<Status> for LogError {
    fn from(status: Status) -> Self {
        Self::Call(status)
    }
}

/// Why a stream is cut short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Torn {
    at: u64,
}

impl From<Status> for Torn {
    fn from(_: Status) -> Self {
        Self { at: u64::MAX }
    }
}

#[farcall::service(package = "log.v1")]
trait Log {
    /// Begins at once.
    fn lines(&self, prefix: String) -> impl Stream<Item = Result<String>>;

    /// Ends with an error of its own.
    fn tear(&self, cx: &Context, at: u64) -> impl Stream<Item = std::result::Result<u64, Torn>>;

    /// May refuse, with another error than the stream ends with.
    async fn tail(
        &self,
        file: String,
    ) -> std::result::Result<impl Stream<Item = std::result::Result<Bytes, Torn>>, LogError>;

    /// Has a stream with a name.
    #[rpc(name = "stored-numbers")]
    async fn stored(&self, cx: &Context) -> Result<Streaming<u64>>;

    /// Takes a stream.
    async fn sum(
        &self,
        #[rpc(default)] start: u64,
        rows: Streaming<u64>,
    ) -> std::result::Result<u64, LogError>;

    /// Both at once.
    fn double(&self, rows: Streaming<u64>) -> impl Stream<Item = Result<u64>>;

    /// Both, and may refuse.
    async fn join(
        &self,
        cx: &Context,
        rows: Streaming<String>,
        with: String,
    ) -> std::result::Result<impl Stream<Item = Result<String>>, LogError>;

    /// Never ends.
    fn forever(&self) -> impl Stream<Item = Result<u64>>;

    /// Has a body, which implementations need not repeat.
    fn two(&self) -> impl Stream<Item = Result<u64>> {
        stream::iter([Ok(1), Ok(2)])
    }

    /// Has a body, too, and may refuse the stream.
    async fn three(&self, refuse: bool) -> Result<impl Stream<Item = Result<u64>>> {
        if refuse {
            return Err(Status::new(Code::PermissionDenied, "not for you"));
        }
        Ok(stream::iter([Ok(1), Ok(2), Ok(3)]))
    }
}

#[derive(Default)]
struct Store {
    lines: Vec<String>,
    dropped: Arc<Notify>,
}

fn store() -> Store {
    Store { lines: ["a1", "b1", "a2"].map(String::from).to_vec(), dropped: Arc::default() }
}

/// A stream of what a function makes of the items of another.
struct Map<S, F>(S, F);

impl<S, F, T, U> Stream for Map<S, F>
where
    S: Stream<Item = T> + Unpin,
    F: FnMut(T) -> U + Unpin,
{
    type Item = U;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Option<U>> {
        let Self(stream, map) = &mut *self;
        Pin::new(stream).poll_next(cx).map(|item| item.map(map))
    }
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Log for Store {
    /// It borrows the store.
    fn lines(&self, prefix: String) -> impl Stream<Item = Result<String>> {
        stream::iter(self.lines.iter().filter(move |line| line.starts_with(&prefix)).cloned().map(Ok))
    }

    fn tear(&self, _cx: &Context, at: u64) -> impl Stream<Item = std::result::Result<u64, Torn>> {
        stream::iter((0..at).map(Ok).chain([Err(Torn { at }), Ok(u64::MAX)]))
    }

    async fn tail(
        &self,
        file: String,
    ) -> std::result::Result<impl Stream<Item = std::result::Result<Bytes, Torn>>, LogError> {
        match file.as_str() {
            "log" => Ok(stream::iter(
                [0, 10, 200_000]
                    .map(|len| Ok(Bytes::from(vec![len as u8; len])))
                    .into_iter()
                    .chain([Err(Torn { at: 3 })]),
            )),
            "status" => Err(Status::new(Code::PermissionDenied, "not for you").into()),
            _ => Err(LogError::NoFile(file)),
        }
    }

    async fn stored(&self, cx: &Context) -> Result<Streaming<u64>> {
        let waits = cx.remaining().map(|left| Ok(left.as_secs()));
        Ok(Streaming::new(stream::iter(waits)))
    }

    async fn sum(&self, start: u64, mut rows: Streaming<u64>) -> std::result::Result<u64, LogError> {
        let mut sum = start;
        while let Some(row) = rows.message().await? {
            sum += row;
            if sum > 1_000_000 {
                // Before the end of the rows, and without a word on them.
                return Err(LogError::NoFile("too large".into()));
            }
        }
        assert_eq!(rows.end_reason(), Some(EndReason::Completed));
        Ok(sum)
    }

    fn double(&self, rows: Streaming<u64>) -> impl Stream<Item = Result<u64>> {
        Map(rows, |row: Result<u64>| row.map(|n| 2 * n))
    }

    async fn join(
        &self,
        _cx: &Context,
        mut rows: Streaming<String>,
        with: String,
    ) -> std::result::Result<impl Stream<Item = Result<String>>, LogError> {
        if with.is_empty() {
            return Err(LogError::NoFile(with));
        }
        let (sender, joined) = stream::channel(1);
        tokio::spawn(async move {
            while let Some(row) = rows.message().await.transpose() {
                if sender.pass_on(row.map(|row| row + &with)).await.is_err() {
                    break;
                }
            }
        });
        Ok(joined)
    }

    fn forever(&self) -> impl Stream<Item = Result<u64>> {
        let dropped = NotifyOnDrop(self.dropped.clone());
        stream::iter((0..).map(move |n| {
            let _ = &dropped;
            Ok(n)
        }))
    }
}

async fn next<S: Stream>(stream: &mut Pin<&mut S>) -> Option<S::Item> {
    poll_fn(|cx| stream.as_mut().poll_next(cx)).await
}

/// All of a stream, and the error that it ended with.
async fn all<T, E>(stream: impl Stream<Item = std::result::Result<T, E>>) -> (Vec<T>, Option<E>) {
    let mut stream = pin!(stream);
    let mut items = Vec::new();
    loop {
        match next(&mut stream).await {
            Some(Ok(item)) => items.push(item),
            Some(Err(error)) => break (items, Some(error)),
            None => break (items, None),
        }
    }
}

fn numbers(numbers: std::ops::Range<u64>) -> impl Stream<Item = u64> + Send + 'static {
    stream::iter(numbers)
}

/// Makes the stream that a handler takes, for callers of the trait.
fn given<T: Send + 'static>(items: impl Stream<Item = T> + Unpin + Send + 'static) -> Streaming<T> {
    Streaming::new(Map(items, Ok))
}

/// Every form, called by code that does not know what is behind the trait.
async fn assert_streams(log: &impl Log) {
    let cx = Context::background().with_timeout(Duration::from_secs(3600));

    assert_eq!(all(log.lines("a".into())).await, (vec!["a1".to_owned(), "a2".into()], None));
    assert_eq!(all(log.lines("c".into())).await, (vec![], None));
    assert_eq!(all(log.tear(&cx, 3)).await, (vec![0, 1, 2], Some(Torn { at: 3 })));

    let (parts, error) = all(log.tail("log".into()).await.unwrap()).await;
    assert_eq!(
        (parts.iter().map(Bytes::len).collect::<Vec<_>>(), error),
        (vec![0, 10, 200_000], Some(Torn { at: 3 }))
    );
    assert_eq!(log.tail("x".into()).await.err(), Some(LogError::NoFile("x".into())));
    let Some(LogError::Call(status)) = log.tail("status".into()).await.err() else { panic!("no status") };
    assert_eq!(status.code(), Code::PermissionDenied);

    let left = all(log.stored(&cx).await.unwrap()).await.0;
    assert!(left.len() == 1 && left[0] <= 3600, "{left:?}");

    assert_eq!(log.sum(5, given(stream::iter(0..1000))).await.unwrap(), 499_505);
    let endless = given(stream::iter(0..));
    assert_eq!(log.sum(0, endless).await, Err(LogError::NoFile("too large".into())));

    assert_eq!(
        all(log.double(given(stream::iter(0..500)))).await.0,
        (0..500).map(|n| 2 * n).collect::<Vec<_>>()
    );
    let rows = || given(stream::iter(["a", "b"].map(String::from)));
    let joined = log.join(&cx, rows(), "!".into()).await.unwrap();
    assert_eq!(all(joined).await, (vec!["a!".to_owned(), "b!".into()], None));
    assert_eq!(log.join(&cx, rows(), String::new()).await.err(), Some(LogError::NoFile(String::new())));

    assert_eq!(all(log.two()).await.0, [1, 2]);
    assert_eq!(all(log.three(false).await.unwrap()).await.0, [1, 2, 3]);
    assert_eq!(log.three(true).await.err().unwrap().code(), Code::PermissionDenied);
}

/// A client of a server of its own.
async fn over_tcp(log: impl Log) -> LogClient {
    let server = Server::builder().add(LogServer::new(log)).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    LogClient::new(Channel::connect(&address).await.unwrap())
}

#[tokio::test]
async fn the_same_code_runs_with_an_implementation_and_with_clients() {
    assert_streams(&store()).await;
    assert_streams(&LogClient::in_process(store())).await;
    assert_streams(&over_tcp(store()).await).await;
}

/// A proxy is a client served again: each leg has a window of its own.
#[tokio::test]
async fn a_client_served_again_streams() {
    assert_streams(&LogClient::in_process(LogClient::in_process(store()))).await;
    assert_streams(&over_tcp(over_tcp(store()).await).await).await;
}

#[tokio::test]
async fn the_clients_own_methods_give_the_stream_and_take_options() {
    for log in [LogClient::in_process(store()), over_tcp(store()).await] {
        let mut lines = log.lines("b").await.unwrap();
        assert_eq!(lines.end_reason(), None);
        assert_eq!(lines.message().await.unwrap().as_deref(), Some("b1"));
        assert_eq!(lines.message().await.unwrap(), None);
        assert_eq!(lines.end_reason(), Some(EndReason::Completed));

        let cx = Context::background().with_timeout(Duration::from_secs(60));
        let mut torn = log.tear(1).context(&cx).await.unwrap();
        assert_eq!(torn.message().await, Ok(Some(0)));
        assert_eq!(torn.message().await, Err(Torn { at: 1 }));
        assert_eq!((torn.end_reason(), torn.message().await), (Some(EndReason::Status), Ok(None)));

        let left = log.stored().timeout(Duration::from_secs(60)).await.unwrap().message().await.unwrap();
        assert!(left.unwrap() <= 60);
        assert_eq!(log.stored().await.unwrap().message().await.unwrap(), None);

        assert_eq!(log.sum(1, numbers(0..4)).await.unwrap(), 7);
        let (say, rows) = stream::channel(1);
        let mut doubled = log.double(rows).await.unwrap();
        for n in 0..10 {
            say.send(n).await.unwrap();
            assert_eq!(doubled.message().await.unwrap(), Some(2 * n));
        }
        drop(say);
        assert_eq!(doubled.message().await.unwrap(), None);
    }
}

#[tokio::test]
async fn an_error_in_a_clients_stream_cancels_its_call_which_ends_with_it() {
    for log in [LogClient::in_process(store()), over_tcp(store()).await] {
        let (say, rows) = stream::channel(1);
        let mut doubled = log.double(rows).await.unwrap();
        say.send(4).await.unwrap();
        assert_eq!(doubled.message().await.unwrap(), Some(8));
        say.fail(Status::new(Code::DataLoss, "the disk is gone")).await;
        let error = doubled.message().await.unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::DataLoss, "the disk is gone"));

        let (say, rows) = stream::channel(1);
        let sum = tokio::spawn(log.sum(1, rows).into_future());
        say.send(1).await.unwrap();
        let panics = tokio::spawn(async move {
            let _say = say;
            panic!("on purpose");
        });
        assert!(panics.await.is_err());
        let LogError::Call(status) = sum.await.unwrap().unwrap_err() else { panic!("it is no status") };
        assert_eq!((status.code(), status.blame()), (Code::Internal, Blame::Caller));
        assert_eq!(status.executed(), Executed::Maybe);
    }
}

#[tokio::test]
async fn dropping_a_stream_stops_it_through_a_proxy() {
    let store = store();
    let dropped = store.dropped.clone();
    let log = over_tcp(over_tcp(store).await).await;
    let mut numbers = log.forever().await.unwrap();
    for n in 0..1000 {
        assert_eq!(numbers.message().await.unwrap(), Some(n));
    }
    drop(numbers);
    dropped.notified().await;
}

#[tokio::test]
async fn a_deadline_ends_a_stream_through_a_proxy() {
    let store = store();
    let dropped = store.dropped.clone();
    let log = over_tcp(over_tcp(store).await).await;
    let mut numbers = log.forever().timeout(Duration::from_millis(50)).await.unwrap();
    let error = loop {
        match numbers.message().await {
            Ok(number) => assert!(number.is_some(), "a short stream was taken for a whole one"),
            Err(error) => break error,
        }
    };
    assert_eq!((error.code(), error.executed()), (Code::DeadlineExceeded, Executed::Maybe));
    assert_eq!(numbers.end_reason(), Some(EndReason::Deadline));
    dropped.notified().await;
}

/// A stream that a proxy passes on may fail: then its call is not complete, and not taken for it.
#[tokio::test]
async fn a_stream_of_arguments_that_fails_is_not_taken_for_a_whole_one() {
    let log = LogClient::in_process(store());
    let failed = Status::new(Code::Aborted, "no more of this");
    let rows = Streaming::new(stream::iter([Ok(1), Err(failed)]));
    let Err(LogError::Call(status)) = Log::sum(&log, 0, rows).await else {
        panic!("it was taken for a whole one")
    };
    assert_eq!((status.code(), status.message()), (Code::Aborted, "no more of this"));
}
