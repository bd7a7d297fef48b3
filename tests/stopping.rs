//! Servers that are told to stop: what they say of themselves, whom they still serve, and when they end.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod clock;
#[cfg(unix)]
mod process;

use std::time::Duration;

use farcall::health::{HealthClient, Reporter, Serving};
use farcall::{Channel, Code, Config, Context, Handle, Server};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::advance;

use clock::{still, until};

#[farcall::service(package = "test")]
trait Work {
    async fn echo(&self, text: String) -> farcall::Result<String>;
    /// Returns when the server drains.
    async fn last(&self, cx: &Context) -> farcall::Result<()>;
    async fn hang(&self) -> farcall::Result<()>;
}

struct Worker;

impl Work for Worker {
    async fn echo(&self, text: String) -> farcall::Result<String> {
        Ok(text)
    }

    async fn last(&self, cx: &Context) -> farcall::Result<()> {
        cx.draining().await;
        Ok(())
    }

    async fn hang(&self) -> farcall::Result<()> {
        std::future::pending().await
    }
}

/// A server that `stop` tells to stop. It has a delay of 5 s and a grace of 20 s.
struct Stopping {
    address: String,
    handle: Handle,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
    health: Reporter,
}

async fn serving() -> Stopping {
    let health = Reporter::new();
    health.set("test.Work", Serving::Serving);
    let config = Config::from_toml("[server]\ndrain_delay_ms = 5000\ndrain_grace_ms = 20_000").unwrap();
    let server = Server::builder().add(WorkServer::new(Worker)).with_health(&health).config(config);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let (stop, told) = oneshot::channel();
    let (address, handle) = (format!("tcp://{}", server.local_addr()), server.handle());
    Stopping { address, handle, stop, served: tokio::spawn(server.serve_until(told)), health }
}

async fn connect(address: &str) -> (WorkClient, HealthClient) {
    let channel = Channel::connect(address).await.unwrap();
    (WorkClient::new(&channel), HealthClient::new(&channel))
}

#[tokio::test(start_paused = true)]
async fn calls_and_connections_still_come_while_the_others_hear_of_the_stop() {
    still();
    let Stopping { address, handle, stop, served, health } = serving().await;
    let (work, asked) = connect(&address).await;
    assert_eq!(asked.check("").await.unwrap(), Serving::Serving);
    let mut watched = asked.watch("test.Work").await.unwrap();
    assert_eq!(watched.message().await.unwrap(), Some(Serving::Serving));
    let last = tokio::spawn(work.last().into_future());

    stop.send(()).unwrap();
    assert_eq!(watched.message().await.unwrap(), Some(Serving::NotServing));
    // A check of the application's own that goes on does not bring clients back.
    health.set_all(Serving::Serving);
    assert_eq!(asked.check("").await.unwrap(), Serving::NotServing);
    advance(Duration::from_millis(4900)).await;
    assert_eq!(work.echo("old").await.unwrap(), "old");
    let (late, _) = connect(&address).await;
    assert_eq!(late.echo("new").await.unwrap(), "new");
    assert!(!last.is_finished() && !served.is_finished());

    advance(Duration::from_millis(200)).await;
    last.await.unwrap().unwrap();
    assert_eq!(watched.message().await.unwrap(), None);
    served.await.unwrap();
    assert!(handle.connections().is_empty());
    assert_eq!(late.echo("too late").await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn calls_that_do_not_finish_are_cut_off_after_the_grace() {
    still();
    let Stopping { address, stop, served, .. } = serving().await;
    let (work, asked) = connect(&address).await;
    let hanging = tokio::spawn(work.hang().into_future());
    work.echo("the call before has arrived").await.unwrap();
    stop.send(()).unwrap();
    until(async || asked.check("").await.unwrap() == Serving::NotServing).await;
    advance(Duration::from_secs(5)).await;
    until(async || work.echo("elsewhere").await.is_err()).await;
    advance(Duration::from_millis(19_900)).await;
    assert!(!hanging.is_finished() && !served.is_finished());
    advance(Duration::from_millis(200)).await;
    assert_eq!(hanging.await.unwrap().unwrap_err().code(), Code::Unavailable);
    served.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_handle_ends_the_delay() {
    still();
    let Stopping { address, handle, stop, served, .. } = serving().await;
    let (work, asked) = connect(&address).await;
    let hanging = tokio::spawn(work.hang().into_future());
    stop.send(()).unwrap();
    until(async || asked.check("").await.unwrap() == Serving::NotServing).await;
    handle.close();
    served.await.unwrap();
    assert_eq!(hanging.await.unwrap().unwrap_err().code(), Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_signal_counts_while_a_handle_drains() {
    still();
    let Stopping { address, handle, stop, served, .. } = serving().await;
    let (work, _) = connect(&address).await;
    let hanging = tokio::spawn(work.hang().into_future());
    work.echo("the call before has arrived").await.unwrap();
    tokio::spawn(async move { handle.drain(Duration::from_secs(3600)).await });
    until(async || work.echo("elsewhere").await.is_err()).await;
    advance(Duration::from_secs(60)).await;
    assert!(!hanging.is_finished() && !served.is_finished());
    stop.send(()).unwrap();
    until(async || {
        advance(Duration::from_secs(1)).await;
        served.is_finished()
    })
    .await;
    assert_eq!(hanging.await.unwrap().unwrap_err().code(), Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn handlers_learn_that_only_their_connection_drains() {
    still();
    let config = Config::from_toml("limits.max_connection_age_ms = 10_000").unwrap();
    let server = Server::builder().add(WorkServer::new(Worker)).config(config);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (format!("tcp://{}", server.local_addr()), server.handle());
    tokio::spawn(server.serve());
    let (work, _) = connect(&address).await;
    let last = tokio::spawn(work.last().into_future());
    work.echo("the call before has arrived").await.unwrap();
    advance(Duration::from_secs(11)).await;
    last.await.unwrap().unwrap();
    until(async || handle.connections().is_empty()).await;
    assert_eq!(work.echo("again").await.unwrap(), "again");
}

/// Not a test by itself: a server in a process of its own.
#[cfg(unix)]
#[tokio::test]
async fn served() {
    if process::told().is_none() {
        return;
    }
    let config = Config::from_toml("[server]\ndrain_delay_ms = 3_600_000").unwrap();
    let server = Server::builder().add(WorkServer::new(Worker)).with_health(&Reporter::new()).config(config);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    process::say(&format!("tcp://{}", server.local_addr()));
    server.serve_until_stopped().await.unwrap();
    process::say("stopped");
}

#[cfg(unix)]
#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let mut server = process::Process::start("served", "");
    let address = server.said();
    let (work, asked) = connect(&address).await;
    let hanging = tokio::spawn(work.hang().into_future());
    until(async || asked.check("").await.is_ok()).await;
    server.signal("TERM");
    until(async || asked.check("").await.unwrap() == Serving::NotServing).await;
    assert_eq!(work.echo("still").await.unwrap(), "still");
    server.signal("INT");
    assert_eq!(hanging.await.unwrap().unwrap_err().code(), Code::Unavailable);
    assert_eq!(server.said(), "stopped");
}
