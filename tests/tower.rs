//! Layers of `tower` around clients, services and servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farcall::middleware::{Next, Request, Response, ServiceExt};
use farcall::{Channel, Code, Endpoint, Executed, Result, Server, Status, Stream, in_process, stream};
use tokio::sync::Notify;
use tokio::time::Instant;
use tower::discover::Change;
use tower::retry::Policy;
use tower::{Service, ServiceBuilder, ServiceExt as _};

const SECOND: Duration = Duration::from_secs(1);

#[farcall::service(package = "test")]
trait Counter {
    async fn next(&self) -> Result<u32>;
    /// Fails until it was called so often.
    async fn flaky(&self, times: u32) -> Result<u32>;
    async fn wait(&self) -> Result<()>;
    fn to(&self, end: u32) -> impl Stream<Item = Result<u32>>;
}

#[derive(Clone, Default)]
struct Tally {
    count: Arc<AtomicU32>,
    waits: Arc<Notify>,
    go: Arc<Notify>,
}

impl Counter for Tally {
    async fn next(&self) -> Result<u32> {
        Ok(self.count.fetch_add(1, Ordering::Relaxed))
    }

    async fn flaky(&self, times: u32) -> Result<u32> {
        match self.count.fetch_add(1, Ordering::Relaxed) {
            count if count < times => Err(Status::new(Code::Aborted, "not yet")),
            count => Ok(count),
        }
    }

    async fn wait(&self) -> Result<()> {
        self.waits.notify_one();
        self.go.notified().await;
        Ok(())
    }

    fn to(&self, end: u32) -> impl Stream<Item = Result<u32>> {
        stream::iter((0..end).map(Ok))
    }
}

fn counter() -> CounterServer<Tally> {
    CounterServer::new(Tally::default())
}

/// Its service is not `Clone`, and is one for all clones of the client.
#[tokio::test(start_paused = true)]
async fn a_rate_limit_is_one_for_all_clones() {
    let client = CounterClient::new(in_process(counter()).layer(ServiceBuilder::new().rate_limit(2, SECOND)));
    let (start, other) = (Instant::now(), client.clone());
    for _ in 0..2 {
        client.next().await.unwrap();
        other.next().await.unwrap();
    }
    assert_eq!(start.elapsed().as_secs(), 1);
    // A call that waits for its turn has its deadline all the same.
    client.next().await.unwrap();
    client.next().await.unwrap();
    let error = client.next().timeout(SECOND / 2).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert_eq!(other.next().await.unwrap(), 6);
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_a_layer_is_a_deadline() {
    let tally = Tally::default();
    let client = CounterClient::new(
        in_process(CounterServer::new(tally.clone())).layer(ServiceBuilder::new().timeout(SECOND)),
    );
    let error = client.wait().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::DeadlineExceeded, Executed::Maybe), "{error}");

    let layered = CounterServer::new(tally).layer(ServiceBuilder::new().timeout(SECOND));
    let error = CounterClient::new(in_process(layered)).wait().await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
}

#[tokio::test]
async fn a_call_that_is_shed_is_exhausted() {
    let tally = Tally::default();
    let stack = ServiceBuilder::new().load_shed().concurrency_limit(1);
    let server = Server::builder().add(CounterServer::new(tally.clone())).layer(stack);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let client = CounterClient::new(Channel::connect(&address).await.unwrap());
    let waits = tokio::spawn(client.wait().into_future());
    tally.waits.notified().await;
    let error = client.next().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::ResourceExhausted, Executed::No), "{error}");
    tally.go.notify_one();
    waits.await.unwrap().unwrap();
    assert_eq!(client.next().await.unwrap(), 0);
}

#[tokio::test]
async fn a_limit_of_a_server_holds_for_all_clients_and_streams() {
    let tally = Tally::default();
    let server = Server::builder().add(CounterServer::new(tally.clone()));
    let server = server.layer(ServiceBuilder::new().concurrency_limit(1)).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let one = CounterClient::new(Channel::connect(&address).await.unwrap());
    let two = CounterClient::new(Channel::connect(&address).await.unwrap());

    let mut endless = one.to(u32::MAX).await.unwrap();
    endless.message().await.unwrap();
    let next = tokio::spawn(two.next().into_future());
    endless.message().await.unwrap();
    assert_eq!(tally.count.load(Ordering::Relaxed), 0, "the stream has the one place");
    drop(endless);
    assert_eq!(next.await.unwrap().unwrap(), 0);
}

#[derive(Clone)]
struct Again(u32);

impl Policy<Request, Response, Status> for Again {
    type Future = std::future::Ready<()>;

    fn retry(
        &mut self,
        _: &mut Request,
        result: &mut std::result::Result<Response, Status>,
    ) -> Option<Self::Future> {
        let again = result.as_ref().is_err_and(|status| status.code() == Code::Aborted) && self.0 > 0;
        self.0 -= u32::from(again);
        again.then(|| std::future::ready(()))
    }

    fn clone_request(&mut self, request: &Request) -> Option<Request> {
        request.try_clone()
    }
}

#[tokio::test]
async fn calls_are_made_again_as_a_policy_says() {
    let stack = ServiceBuilder::new().retry(Again(5));
    let client = CounterClient::new(in_process(counter()).layer(stack.clone()));
    assert_eq!(client.flaky(3).await.unwrap(), 3);
    assert_eq!(client.flaky(20).await.unwrap_err().code(), Code::Aborted);
    // Streams are there once.
    let mut stream = client.to(2).await.unwrap();
    assert_eq!(stream.message().await.unwrap(), Some(0));
}

#[tokio::test]
async fn requests_may_wait_in_a_buffer() {
    let tally = Tally::default();
    let layered = CounterServer::new(tally.clone()).layer(ServiceBuilder::new().buffer(16));
    let client = CounterClient::new(in_process(layered).layer(ServiceBuilder::new().buffer(16)));
    assert_eq!(client.next().timeout(60 * SECOND).await.unwrap(), 0);
    let mut stream = client.to(2).await.unwrap();
    assert_eq!((stream.message().await.unwrap(), stream.message().await.unwrap()), (Some(0), Some(1)));
    assert_eq!(stream.message().await.unwrap(), None);
}

/// A channel and what is next are services themselves, which own middleware can be made of.
#[tokio::test]
async fn a_channel_is_a_service() {
    struct Both<S>(S, Channel);

    impl<S> Service<Request> for Both<S>
    where
        S: Service<Request, Response = Response, Error = Status>,
        S::Future: Send + 'static,
    {
        type Response = Response;
        type Error = Status;
        type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response>> + Send>>;

        fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<()>> {
            self.0.poll_ready(cx)
        }

        fn call(&mut self, request: Request) -> Self::Future {
            let (again, other) = (request.try_clone().unwrap(), self.1.clone());
            let first = self.0.call(request);
            Box::pin(async move {
                first.await?;
                other.oneshot(again).await
            })
        }
    }

    async fn channel(tally: Tally) -> Channel {
        let server = Server::builder().add(CounterServer::new(tally)).bind("127.0.0.1:0").await.unwrap();
        let address = format!("tcp://{}", server.local_addr());
        tokio::spawn(server.serve());
        Channel::connect(&address).await.unwrap()
    }

    let (a, b) = (Tally::default(), Tally::default());
    b.count.store(10, Ordering::Relaxed);
    let other = channel(b.clone()).await;
    let layer = tower::layer::layer_fn(move |next: Next| Both(next, other.clone()));
    let client = CounterClient::new(channel(a.clone()).await.layer(layer));
    assert_eq!(client.next().await.unwrap(), 10);
    assert_eq!((a.count.load(Ordering::Relaxed), b.count.load(Ordering::Relaxed)), (1, 11));
}

#[tokio::test]
async fn other_errors_of_a_layer_are_unknown_and_keep_their_cause() {
    let filter = tower::layer::layer_fn(|next: Next| {
        next.map_err(|_| -> Box<dyn std::error::Error + Send + Sync> { "a cause of its own".into() })
    });
    let client = CounterClient::new(in_process(counter()).layer(filter));
    let error = client.flaky(u32::MAX).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unknown, Executed::Maybe));
    assert!(error.message().contains("a cause of its own"), "{error}");
}

#[tokio::test]
async fn a_source_of_changes_tells_a_channel_its_servers() {
    async fn start(text: &'static str) -> (String, farcall::Handle) {
        let server = Server::builder().add(FixedServer::new(Says(text))).bind("127.0.0.1:0").await.unwrap();
        let (address, handle) = (server.local_addr().to_string(), server.handle());
        tokio::spawn(server.serve());
        (address, handle)
    }
    let ((a, _a), (b, _b)) = tokio::join!(start("a"), start("b"));
    let (registry, changes) = stream::channel(4);
    let channel = Channel::builder().discover_changes("texts", changes).unwrap();
    let client = FixedClient::new(&channel);
    let insert = |key: &'static str, at: &str| Change::Insert(key, Endpoint::new(at));

    registry.send(insert("one", &a)).await.unwrap();
    assert_eq!(client.text().await.unwrap(), "a");
    registry.send(insert("two", &b)).await.unwrap();
    registry.send(Change::Remove("one")).await.unwrap();
    let mut states = channel.endpoints().unwrap();
    states.wait_for(|states| states.len() == 1 && *states[0].name == *b).await.unwrap();
    assert_eq!(client.text().await.unwrap(), "b");
    // Another server with a key that there is already replaces its server.
    registry.send(insert("two", &a)).await.unwrap();
    states.wait_for(|states| states.len() == 1 && *states[0].name == *a).await.unwrap();
    assert_eq!(client.text().await.unwrap(), "a");
    registry.send(Change::Remove("two")).await.unwrap();
    states.wait_for(|states| states.is_empty()).await.unwrap();
    registry.fail(Status::unavailable("the registry is gone")).await;
    registry.closed().await;
    assert!(client.text().await.unwrap_err().message().contains("the registry is gone"));
}

#[farcall::service]
trait Fixed {
    async fn text(&self) -> Result<String>;
}

struct Says(&'static str);

impl Fixed for Says {
    async fn text(&self) -> Result<String> {
        Ok(self.0.to_owned())
    }
}
