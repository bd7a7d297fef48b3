//! Limits, deadlines and what errors say.

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farcall::details::{BadRequest, FieldViolation, RetryInfo};
use farcall::{Blame, Config, EndReason, Executed};
use tokio::task::JoinSet;

use super::*;

#[farcall::service(package = "interop")]
trait Limited {
    /// Returns the bytes, or `answer` bytes if those are more.
    async fn echo(&self, cx: &Context, body: Bytes, answer: u32) -> Result<Bytes>;
    /// How many others were in it.
    async fn alone(&self) -> Result<u32>;
    async fn sleep(&self, time: Duration) -> Result<()>;
    /// Trailers of so many bytes.
    async fn trailers(&self, cx: &Context, key: String, bytes: u32) -> Result<()>;
    async fn refuse(&self) -> Result<()>;
    /// Numbers, and then nothing.
    fn count_and_stay(&self, to: u32) -> impl Stream<Item = Result<u32>>;
    /// One item of so many bytes.
    fn item(&self, bytes: u32) -> impl Stream<Item = Result<Bytes>>;
    async fn lengths(&self, items: Streaming<Bytes>) -> Result<Vec<u32>>;
}

#[derive(Default)]
struct Strict {
    running: AtomicU32,
    stay: std::sync::Mutex<Vec<stream::Sender<u32>>>,
}

impl Limited for Strict {
    async fn echo(&self, _cx: &Context, body: Bytes, answer: u32) -> Result<Bytes> {
        Ok(if answer > 0 { Bytes::from(vec![0; answer as usize]) } else { body })
    }

    async fn alone(&self) -> Result<u32> {
        let others = self.running.fetch_add(1, Ordering::SeqCst);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
        Ok(others)
    }

    async fn sleep(&self, time: Duration) -> Result<()> {
        tokio::time::sleep(time).await;
        Ok(())
    }

    async fn trailers(&self, cx: &Context, key: String, bytes: u32) -> Result<()> {
        cx.reply_trailers(|trailers| trailers.insert(&key, "v".repeat(bytes as usize)))?;
        Ok(())
    }

    async fn refuse(&self) -> Result<()> {
        let violation = FieldViolation {
            field: "age".into(),
            description: "is more than 150".into(),
            ..FieldViolation::default()
        };
        let cause = std::io::Error::other("the table was read only");
        Err(Status::new(Code::InvalidArgument, "nobody is that old")
            .with_detail(&BadRequest { field_violations: vec![violation] })
            .with_detail(&RetryInfo::after(Duration::from_secs(60)))
            .with_source(Status::new(Code::Internal, "the register failed").with_source(cause)))
    }

    fn count_and_stay(&self, to: u32) -> impl Stream<Item = Result<u32>> {
        let (sender, numbers) = stream::channel(to as usize);
        (0..to).for_each(|n| sender.try_send(n).unwrap());
        self.stay.lock().unwrap().push(sender);
        numbers
    }

    fn item(&self, bytes: u32) -> impl Stream<Item = Result<Bytes>> {
        stream::iter([Ok(Bytes::from(vec![0; bytes as usize]))])
    }

    async fn lengths(&self, mut items: Streaming<Bytes>) -> Result<Vec<u32>> {
        let mut lengths = Vec::new();
        while let Some(item) = items.message().await? {
            lengths.push(item.len() as u32);
        }
        Ok(lengths)
    }
}

/// A client of a server with these limits, which has none but `settings` itself.
async fn client(config: Config, settings: &str) -> LimitedClient {
    let server = Server::builder().config(config).add(LimitedServer::new(Strict::default()));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = over::address(server.local_addr()) + settings;
    tokio::spawn(server.serve());
    LimitedClient::new(Channel::connect(&address).await.unwrap())
}

#[tokio::test]
async fn max_streams() {
    let mut config = over::config();
    config.limits.concurrent_calls = 1;
    let client = client(config, "").await;
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        calls.spawn(client.alone().into_future());
    }
    assert_eq!(calls.join_all().await, vec![Ok(0); 50], "they wait for each other, and none fails");

    let _holds_the_place = client.count_and_stay(1).await.unwrap();
    let status = client.alone().timeout(Duration::from_millis(10)).await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::DeadlineExceeded, Executed::No), "{status}");
    assert!(status.message().contains("concurrent_calls"), "{status}");
}

/// gRPC's requirement of pings: a call longer than the silence that is borne, and a connection idle for as long, outlast
/// it.
#[tokio::test(start_paused = true)]
async fn ping() {
    let client = LimitedClient::in_process(Strict::default());
    let minute = Duration::from_secs(60);
    let first = client.sleep(minute).with_response().await.unwrap();
    tokio::time::sleep(minute).await;
    let second = client.sleep(minute).with_response().await.unwrap();
    assert!(Arc::ptr_eq(&first.connection, &second.connection));
}

/// Whatever came before the deadline is there, and then an error.
#[tokio::test]
async fn a_deadline_in_the_middle_of_a_stream() {
    let client = client(over::config(), "").await;
    let call = client.count_and_stay(3).timeout(Duration::from_millis(100));
    let mut numbers = match call.await {
        Ok(numbers) => numbers,
        Err(before) => return assert_eq!(before.code(), Code::DeadlineExceeded),
    };
    let mut expected = 0..3;
    let status = loop {
        match numbers.message().await {
            Ok(Some(number)) => assert_eq!(Some(number), expected.next()),
            Ok(None) => panic!("it looks complete"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(numbers.end_reason(), Some(EndReason::Deadline));
}

#[tokio::test]
async fn status_details_and_causes() {
    let client = client(over::config(), "").await;
    let status = client.refuse().await.unwrap_err();
    assert_eq!((status.code(), status.blame()), (Code::InvalidArgument, Blame::Application));
    assert_eq!(status.executed(), Executed::Yes);
    assert_eq!(status.detail::<BadRequest>().unwrap().field_violations[0].field, "age");
    assert_eq!(status.detail::<RetryInfo>().unwrap().delay(), Duration::from_secs(60));
    assert_eq!(status.to_rpc().details.len(), 2);

    let mut causes = Vec::new();
    let mut cause = status.source();
    while let Some(this) = cause {
        causes.push(this.to_string());
        cause = this.source();
    }
    assert_eq!(causes, ["INTERNAL: the register failed", "the table was read only"]);
}

#[tokio::test]
async fn wait_for_ready() {
    // An address of which no other test is given ports.
    let free = std::net::TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap();
    let channel = Channel::connect_lazy(&over::address(free)).unwrap();
    let client = LimitedClient::new(&channel);
    let status = client.alone().await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::No), "{status}");

    let late = client.alone().wait_for_ready(true).timeout(Duration::from_millis(10)).await.unwrap_err();
    assert_eq!((late.code(), late.executed()), (Code::DeadlineExceeded, Executed::No), "{late}");
    assert!(late.source().is_some(), "why there was no connection");

    let waits = tokio::spawn(client.alone().wait_for_ready(true).into_future());
    let server = Server::builder().config(over::config()).add(LimitedServer::new(Strict::default()));
    tokio::spawn(server.bind(&free.to_string()).await.unwrap().serve());
    assert_eq!(waits.await.unwrap(), Ok(0));
}

/// Whether a status names the limit.
fn is_over_limit<T: std::fmt::Debug>(result: Result<T>, setting: &str, executed: Executed) {
    let status = result.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::ResourceExhausted, executed), "{status}");
    assert!(status.message().contains(setting), "{status}");
}

#[tokio::test]
async fn metadata_over_the_limit() {
    let mut config = over::config();
    config.limits.max_metadata = 1000;
    let client = client(config, "&limits.max_metadata=2000").await;
    let echo = |bytes: usize| client.echo("", 0).metadata("key", "v".repeat(bytes));
    assert!(echo(900).await.is_ok());
    is_over_limit(echo(1500).await, "limits.max_metadata", Executed::No);

    assert!(client.trailers("key", 1500).await.is_ok());
    is_over_limit(client.trailers("key", 3000).await, "limits.max_metadata", Executed::Yes);
    assert!(client.alone().await.is_ok(), "the connection stays");
}

#[tokio::test]
async fn message_over_the_limit() {
    let mut config = over::config();
    config.limits.max_message = 100_000;
    let client = client(config, "&limits.max_message=200000").await;
    let body = |len| Bytes::from(vec![0; len]);
    assert!(client.echo(body(90_000), 190_000).await.is_ok());
    is_over_limit(client.echo(body(150_000), 0).await, "limits.max_message", Executed::No);
    is_over_limit(client.echo("", 300_000).await, "limits.max_message", Executed::Yes);

    let mut items = client.item(300_000).await.unwrap();
    is_over_limit(items.message().await, "limits.max_message", Executed::Yes);
    let too_long = client.lengths(stream::iter([body(10), body(150_000)])).await;
    is_over_limit(too_long, "limits.max_message", Executed::Maybe);
    assert!(client.alone().await.is_ok(), "the connection stays");
}

#[tokio::test]
async fn wrong_metadata_keys() {
    let client = client(over::config(), "").await;
    for (key, value) in
        [("two words", ""), ("", ""), ("key-bin", "text"), ("key", "line\n"), ("farcall-x", "")]
    {
        let status = client.alone().metadata(key, value).await.unwrap_err();
        assert_eq!((status.code(), status.executed()), (Code::InvalidArgument, Executed::No), "{status}");
        assert_eq!(status.blame(), Blame::Caller, "{status}");
    }
    let status = client.alone().metadata_bin("key", "bytes").await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");

    let status = client.trailers("two words", 1).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal, "the handler's program is wrong: {status}");
}
