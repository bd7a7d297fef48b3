//! A service with streams of all kinds, written by hand.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Poll};

use bytes::Bytes;
use farcall_core::__private::{self as private, Items, StreamCall, Streamed, Streaming};
use farcall_core::client::{RawChannel, Stub};
use farcall_core::codec::Raw;
use farcall_core::config::Limits;
use farcall_core::payload::Payload;
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Kind, Method, Reply, Service, ServiceInfo};
use farcall_core::settings::Settings;
use farcall_core::status::{Code, Result, Status};
use farcall_core::stream::{EndReason, Stream, Streams};
use tokio::sync::Notify;

use super::{Near, bytes, plain, text};

pub(crate) const COUNT: usize = 0;
pub(crate) const SUM: usize = 1;
pub(crate) const CHAT: usize = 2;
pub(crate) const FAIL: usize = 3;
pub(crate) const REFUSE: usize = 4;
pub(crate) const FOREVER: usize = 5;
pub(crate) const FIRST: usize = 6;
pub(crate) const PANIC: usize = 7;
pub(crate) const ECHO: usize = 8;
pub(crate) const WAIT: usize = 9;

/// A service with these methods:
///
/// - count("N LEN") streams N items of LEN bytes.
/// - sum(stream) returns the number of items and their bytes.
/// - chat(stream) returns each item.
/// - fail(N) streams N items and then an error.
/// - refuse() has no stream.
/// - forever() streams until it is dropped.
/// - first(stream) answers with the first item.
/// - panic(N) streams N items and panics.
/// - echo(x) returns x.
/// - wait(x) returns x when it is told to.
pub(crate) struct Test {
    info: Arc<ServiceInfo>,
    seen: Arc<Seen>,
}

#[derive(Default)]
pub(crate) struct Seen {
    runs: AtomicUsize,
    running: AtomicUsize,
    ended: Notify,
    go: Notify,
}

impl Seen {
    /// Returns how many handlers there have been.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }

    /// Lets one waiting handler go on.
    pub(crate) fn go(&self) {
        self.go.notify_one();
    }

    /// Returns how many handlers, or streams of theirs, exist.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }
}

/// A handler, or a stream of one, that exists.
pub(crate) struct Running(Arc<Seen>);

impl Running {
    fn new(seen: &Arc<Seen>) -> Self {
        seen.runs.fetch_add(1, Ordering::Relaxed);
        seen.running.fetch_add(1, Ordering::Relaxed);
        Self(seen.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
        self.0.ended.notify_one();
    }
}

pub(crate) fn info() -> Arc<ServiceInfo> {
    use Kind::{BidiStreaming, ClientStreaming, ServerStreaming, Unary};
    let methods = [
        ("count", ServerStreaming),
        ("sum", ClientStreaming),
        ("chat", BidiStreaming),
        ("fail", ServerStreaming),
        ("refuse", ServerStreaming),
        ("forever", ServerStreaming),
        ("first", ClientStreaming),
        ("panic", ServerStreaming),
        ("echo", Unary),
        ("wait", Unary),
    ];
    let methods = methods.map(|(name, kind)| Method::new(name, kind, name)).to_vec();
    Arc::new(ServiceInfo { name: "test".into(), codec: "raw".into(), methods })
}

/// A stream of what a function returns.
pub(crate) struct FromFn<F>(pub(crate) F);

impl<F: FnMut(&mut TaskContext<'_>) -> Poll<Option<T>> + Unpin, T> Stream for FromFn<F> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<T>> {
        (self.0)(cx)
    }
}

pub(crate) fn items(
    count: usize,
    len: usize,
    then: Option<Status>,
) -> impl Stream<Item = Result<Bytes>> + Send {
    let (mut sent, mut then) = (0, then);
    FromFn(move |_: &mut TaskContext<'_>| {
        if sent == count {
            return Poll::Ready(then.take().map(Err));
        }
        sent += 1;
        Poll::Ready(Some(Ok(bytes(len, sent - 1))))
    })
}

pub(crate) fn numbers(payload: &Payload) -> Vec<usize> {
    let text = text(payload);
    let words = std::str::from_utf8(&text).unwrap().split_whitespace();
    words.map(|word| word.parse().unwrap()).collect()
}

pub(crate) async fn answer(
    streams: Option<Streams>,
    info: &ServiceInfo,
    stream: impl Stream<Item = Result<Bytes>> + Send,
) -> Reply {
    private::answer(streams, info, COUNT, stream, streamed()).await
}

pub(crate) fn streamed() -> Streamed<Result<Bytes>, Bytes, Status, Status> {
    private::streamed::<Result<Bytes>, Raw, Raw, Status, Raw, Status>().0
}

fn requests(streams: Option<&Streams>, info: &ServiceInfo) -> Streaming<Bytes> {
    private::requests(streams, info, COUNT, private::argument::<Raw, Bytes>()).unwrap()
}

impl Service for Test {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        let (info, seen) = (self.info.clone(), self.seen.clone());
        Box::pin(async move {
            let running = Running::new(&seen);
            let streams = request.streams;
            match method {
                COUNT => {
                    let n = numbers(&request.payload);
                    answer(streams, &info, items(n[0], n[1], None)).await
                }
                FAIL => {
                    let n = numbers(&request.payload);
                    let error = Status::new(Code::DataLoss, "as it was told to");
                    answer(streams, &info, items(n[0], 10, Some(error))).await
                }
                REFUSE => Reply::Status(Status::new(Code::PermissionDenied, "not for you")),
                FOREVER => {
                    let stream = FromFn(move |_: &mut TaskContext<'_>| {
                        let _ = &running;
                        Poll::Ready(Some(Ok(bytes(100, 1))))
                    });
                    answer(streams, &info, stream).await
                }
                PANIC => {
                    let mut left = numbers(&request.payload)[0];
                    let stream = FromFn(move |cx: &mut TaskContext<'_>| {
                        if left == 0 {
                            panic!("as it was told to");
                        }
                        left -= 1;
                        cx.waker().wake_by_ref();
                        Poll::Ready(Some(Ok(bytes(10, 0))))
                    });
                    answer(streams, &info, stream).await
                }
                SUM => {
                    let mut rows = requests(streams.as_ref(), &info);
                    let (mut count, mut sum) = (0_u64, 0);
                    loop {
                        match rows.message().await {
                            Ok(Some(row)) => {
                                assert_eq!(row, bytes(row.len(), count as usize));
                                count += 1;
                                sum += row.len();
                            }
                            Ok(None) => break Reply::Ok(Payload::from_body(format!("{count} {sum}").into())),
                            Err(status) => break Reply::Status(status),
                        }
                    }
                }
                FIRST => {
                    let mut rows = requests(streams.as_ref(), &info);
                    let first = rows.message().await.unwrap().unwrap();
                    drop(rows);
                    Reply::Ok(Payload::from_body(first))
                }
                WAIT => {
                    seen.go.notified().await;
                    Reply::Ok(request.payload)
                }
                CHAT => {
                    let rows = requests(streams.as_ref(), &info);
                    answer(streams, &info, rows).await
                }
                _ => Reply::Ok(request.payload),
            }
        })
    }
}

pub(crate) struct Setup {
    pub(crate) stub: Stub,
    pub(crate) host: Arc<ServerCore>,
    pub(crate) seen: Arc<Seen>,
    pub(crate) near: Near,
}

pub(crate) fn host(settings: Settings) -> (Arc<ServerCore>, Arc<Seen>) {
    let seen = Arc::<Seen>::default();
    let service = Test { info: info(), seen: seen.clone() };
    (ServerCore::new(vec![Arc::new(service)], settings).unwrap(), seen)
}

pub(crate) fn setup(client: Limits, server: Limits) -> Setup {
    setup_with(plain(client), plain(server))
}

pub(crate) fn setup_with(client: Settings, server: Settings) -> Setup {
    let (host, seen) = host(server);
    let near = Near { hosts: Arc::new(std::sync::Mutex::new(vec![host.clone()])), taps: Arc::default() };
    let caller = RawChannel::new(near.clone(), client);
    Setup { stub: Stub::new(caller, info()), host, seen, near }
}

pub(crate) fn default() -> Setup {
    setup(Limits::default(), Limits::default())
}

pub(crate) type Answer = StreamCall<Result<Streaming<Bytes>>>;

impl Setup {
    pub(crate) fn watch(&self, method: usize, arguments: impl Into<Bytes>) -> Answer {
        let arguments = Ok(Payload::from_body(arguments.into()));
        private::call_for_stream(&self.stub, method, arguments, None, streamed())
    }

    pub(crate) fn items(
        &self,
        method: usize,
        items: impl Stream<Item = Result<Bytes>> + Send + 'static,
    ) -> Items {
        Items::of(self.stub.service(), method, items, private::argument::<Raw, Bytes>())
    }

    pub(crate) fn load(
        &self,
        method: usize,
        items: impl Stream<Item = Result<Bytes>> + Send + 'static,
    ) -> StreamCall<Result<Bytes>> {
        let items = self.items(method, items);
        let returned = private::returned::<Result<Bytes>, Raw, Raw, Status>().0;
        private::call_with_stream(&self.stub, method, Ok(Payload::default()), items, returned)
    }

    pub(crate) fn chat(&self, items: impl Stream<Item = Result<Bytes>> + Send + 'static) -> Answer {
        let items = self.items(CHAT, items);
        let arguments = Ok(Payload::default());
        private::call_for_stream(&self.stub, CHAT, arguments, Some(items), streamed())
    }

    pub(crate) async fn echo(&self, text: &'static str) {
        let call = self.stub.call::<Result<Bytes>, Raw>(ECHO, Ok(Payload::from_body(text.into())));
        assert_eq!(call.await.unwrap(), text);
    }

    /// Waits until no handler is left.
    pub(crate) async fn idle(&self) {
        while self.seen.running() > 0 {
            self.seen.ended.notified().await;
        }
    }
}

/// Returns all items of a stream, which must be complete.
pub(crate) async fn all(mut stream: Streaming<Bytes>) -> Vec<Bytes> {
    let mut items = Vec::new();
    while let Some(item) = stream.message().await.unwrap() {
        items.push(item);
    }
    assert_eq!(stream.end_reason(), Some(EndReason::Completed));
    assert_eq!(stream.message().await.unwrap(), None, "it stays complete");
    items
}
