//! Servers whose handlers are stuck say that they do not serve.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod clock;

use std::sync::Arc;
use std::time::Duration;

use farcall::health::{HealthClient, Reporter, Serving};
use farcall::middleware::{Next, Request, ServiceExt};
use farcall::{Channel, Code, Config, Server, Status, Stream, stream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::advance;

use clock::still;

#[farcall::service(package = "test")]
trait Work {
    async fn echo(&self, text: String) -> farcall::Result<String>;
    /// Returns when it gets a lock.
    async fn lock(&self) -> farcall::Result<()>;
    /// Returns when there is an event.
    async fn event(&self) -> farcall::Result<()>;
    fn events(&self) -> impl Stream<Item = farcall::Result<u32>>;
}

#[derive(Clone)]
struct Worker {
    locked: Arc<Semaphore>,
    event: Arc<Notify>,
    /// The number of handlers that have begun to wait.
    waiting: Arc<Semaphore>,
}

impl Work for Worker {
    async fn echo(&self, text: String) -> farcall::Result<String> {
        Ok(text)
    }

    async fn lock(&self) -> farcall::Result<()> {
        self.waiting.add_permits(1);
        self.locked.acquire().await.unwrap().forget();
        Ok(())
    }

    async fn event(&self) -> farcall::Result<()> {
        self.waiting.add_permits(1);
        self.event.notified().await;
        Ok(())
    }

    fn events(&self) -> impl Stream<Item = farcall::Result<u32>> {
        stream::generate(async |items| {
            items.send(1).await;
            std::future::pending().await
        })
    }
}

struct Setup {
    work: WorkClient,
    asked: HealthClient,
    worker: Worker,
}

/// A server whose handlers are stuck when they have not answered for 10 s.
async fn setup() -> Setup {
    still();
    let empty = || Arc::new(Semaphore::new(0));
    let worker = Worker { locked: empty(), event: Arc::default(), waiting: empty() };
    let health = Reporter::new();
    health.set("test.Work", Serving::Serving);
    health.set("test.Other", Serving::Serving);
    health.takes_long("test.Work/event");
    let config = Config::from_toml("[server]\nstuck_ms = 10_000").unwrap();
    let refusing = |token: &'static str| {
        move |request: Request, next: Next| async move {
            match request.metadata().get("token") {
                Some(given) if given == token => Err(Status::permission_denied("it is of no use")),
                _ => next.run(request).await,
            }
        }
    };
    // In front of the service, and of all services.
    let work = WorkServer::new(worker.clone()).intercept(refusing("late"));
    let server =
        Server::builder().add(work).with_health(&health).config(config).intercept(refusing("forged"));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::connect(&address).await.unwrap();
    Setup { work: WorkClient::new(&channel), asked: HealthClient::new(&channel), worker }
}

impl Setup {
    async fn is_serving(&self, service: &str) -> bool {
        self.asked.check(service).await.unwrap() == Serving::Serving
    }

    /// Makes a call, and returns when its handler waits.
    async fn begin(
        &self,
        call: impl Future<Output = farcall::Result<()>> + Send + 'static,
    ) -> JoinHandle<farcall::Result<()>> {
        let call = tokio::spawn(call);
        self.worker.waiting.acquire().await.unwrap().forget();
        call
    }
}

async fn seconds(n: u32) {
    for _ in 0..n {
        advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_handlers_are_stuck_does_not_serve_until_one_answers() {
    let t = setup().await;
    let mut watched = t.asked.watch("").await.unwrap();
    assert_eq!(watched.message().await.unwrap(), Some(Serving::Serving));
    t.begin(t.work.lock().into_future()).await;
    seconds(9).await;
    // Other methods work.
    assert_eq!(t.work.echo("x").await.unwrap(), "x");
    assert!(t.is_serving("").await && t.is_serving("test.Work").await);

    seconds(4).await;
    assert_eq!(watched.message().await.unwrap(), Some(Serving::NotServing));
    assert!(!t.is_serving("test.Work").await && t.is_serving("test.Other").await);

    t.worker.locked.add_permits(1);
    t.work.echo("the answer was sent before this").await.unwrap();
    seconds(3).await;
    assert_eq!(watched.message().await.unwrap(), Some(Serving::Serving));
    assert!(t.is_serving("test.Work").await);
}

#[tokio::test(start_paused = true)]
async fn callers_that_give_up_do_not_hide_it() {
    let t = setup().await;
    for _ in 0..2 {
        let given_up = t.begin(t.work.lock().timeout(Duration::from_secs(5)).into_future()).await;
        seconds(5).await;
        assert_eq!(given_up.await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
        t.work.echo("the server has heard of it").await.unwrap();
        assert!(t.is_serving("").await);
    }
    t.begin(t.work.lock().into_future()).await;
    seconds(3).await;
    assert!(!t.is_serving("").await);
}

#[tokio::test(start_paused = true)]
async fn refusals_by_middleware_do_not_hide_it() {
    let t = setup().await;
    t.begin(t.work.lock().into_future()).await;
    for _ in 0..12 {
        for token in ["forged", "late"] {
            let refused = t.work.lock().metadata("token", token).await.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied);
        }
        seconds(1).await;
    }
    assert!(!t.is_serving("").await);
}

#[tokio::test(start_paused = true)]
async fn streams_and_long_polls_are_not_stuck() {
    let t = setup().await;
    let mut events = t.work.events().await.unwrap();
    assert_eq!(events.message().await.unwrap(), Some(1));
    t.begin(t.work.event().into_future()).await;
    seconds(100).await;
    assert!(t.is_serving("").await && t.is_serving("test.Work").await);
}
