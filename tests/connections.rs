//! Connections that either side ends, one at a time, and the ways to make them.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::future::pending;
use std::sync::Arc;

use farcall::{Channel, Code, Connection, Context, Executed, Handle, Server, Status, stream};
use tokio::sync::{Notify, Semaphore};

#[farcall::service(package = "test")]
trait Desk {
    async fn echo(&self, text: String) -> farcall::Result<String>;
    async fn hang(&self) -> farcall::Result<()>;
    /// Answers when there is a permit.
    async fn wait(&self) -> farcall::Result<()>;
    /// Ends the connection of its own call: at once, or after it was suspended.
    async fn end(&self, cx: &Context, at_once: bool) -> farcall::Result<()>;
    /// Lets the connection of its own call finish.
    async fn leave(&self, cx: &Context) -> farcall::Result<String>;
    fn numbers(&self) -> impl farcall::Stream<Item = farcall::Result<u32>>;
}

#[derive(Clone)]
struct Office {
    begun: Arc<Notify>,
    ended: Arc<Notify>,
    permits: Arc<Semaphore>,
}

impl Office {
    fn new() -> Self {
        Self { begun: Arc::default(), ended: Arc::default(), permits: Arc::new(Semaphore::new(0)) }
    }
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Desk for Office {
    async fn echo(&self, text: String) -> farcall::Result<String> {
        Ok(text)
    }

    async fn hang(&self) -> farcall::Result<()> {
        let _guard = NotifyOnDrop(self.ended.clone());
        self.begun.notify_one();
        pending().await
    }

    async fn wait(&self) -> farcall::Result<()> {
        self.begun.notify_one();
        self.permits.acquire().await.unwrap().forget();
        Ok(())
    }

    async fn end(&self, cx: &Context, at_once: bool) -> farcall::Result<()> {
        let _guard = NotifyOnDrop(self.ended.clone());
        if !at_once {
            tokio::task::yield_now().await;
        }
        cx.connection().unwrap().close("you asked for it");
        pending().await
    }

    async fn leave(&self, cx: &Context) -> farcall::Result<String> {
        let connection = cx.connection().unwrap();
        tokio::spawn(async move { connection.drain("the shop closes").await });
        Ok("good bye".into())
    }

    fn numbers(&self) -> impl farcall::Stream<Item = farcall::Result<u32>> {
        let begun = self.begun.clone();
        stream::generate(async move |numbers| {
            numbers.send(1).await;
            begun.notify_one();
            pending().await
        })
    }
}

async fn serve(office: &Office) -> (String, Handle) {
    let server = Server::builder().add(DeskServer::new(office.clone())).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    let handle = server.handle();
    tokio::spawn(server.serve());
    (address, handle)
}

async fn desk(address: &str) -> (DeskClient, Arc<Connection>) {
    let channel = Channel::connect(address).await.unwrap();
    let connection = channel.connection().await.unwrap();
    (DeskClient::new(channel), connection)
}

/// The server's end of the only connection.
fn far_end(server: &Handle) -> Arc<Connection> {
    match &server.connections()[..] {
        [one] => one.clone(),
        all => panic!("the server has {} connections", all.len()),
    }
}

fn is_closed(status: &Status, words: &str, executed: Executed) {
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, executed), "{status}");
    assert!(status.message().ends_with(words), "{status}");
}

#[tokio::test]
async fn a_server_closes_one_connection_and_its_calls_learn_why() {
    let office = Office::new();
    let (address, server) = serve(&office).await;
    let (first, near) = desk(&address).await;
    let call = tokio::spawn(first.hang().into_future());
    office.begun.notified().await;
    let mut numbers = first.numbers().await.unwrap();
    assert_eq!(numbers.message().await.unwrap(), Some(1));
    let far = far_end(&server);
    let (second, _) = desk(&address).await;

    far.close("the account is closed");
    let words = "closed by the peer, which says: the account is closed";
    is_closed(&call.await.unwrap().unwrap_err(), words, Executed::Maybe);
    is_closed(&numbers.message().await.unwrap_err(), words, Executed::Maybe);
    is_closed(&near.closed().await, words, Executed::Maybe);
    assert!(far.closed().await.message().ends_with("closed by this side: the account is closed"));
    office.ended.notified().await;
    // The others are served, and the client may come back.
    assert_eq!(second.echo("a").await.unwrap(), "a");
    assert_eq!(first.echo("b").await.unwrap(), "b");
}

#[tokio::test]
async fn a_client_closes_its_connection_and_the_handlers_end() {
    let office = Office::new();
    let (address, server) = serve(&office).await;
    let (client, near) = desk(&address).await;
    let call = tokio::spawn(client.hang().into_future());
    office.begun.notified().await;
    let far = far_end(&server);
    near.close("enough");
    is_closed(&call.await.unwrap().unwrap_err(), "closed by this side: enough", Executed::Maybe);
    office.ended.notified().await;
    is_closed(&far.closed().await, "closed by the peer, which says: enough", Executed::Maybe);
    assert_eq!(client.echo("b").await.unwrap(), "b");
}

#[tokio::test]
async fn a_handler_closes_the_connection_of_its_own_call() {
    let office = Office::new();
    let (address, _server) = serve(&office).await;
    let (client, _) = desk(&address).await;
    for at_once in [true, false] {
        let status = client.end(at_once).await.unwrap_err();
        is_closed(&status, "closed by the peer, which says: you asked for it", Executed::Maybe);
        office.ended.notified().await;
    }
    assert!(Context::background().connection().is_none());
}

#[tokio::test]
async fn a_connection_that_drains_answers_its_calls_and_takes_no_more() {
    let office = Office::new();
    let (address, server) = serve(&office).await;
    for by_server in [true, false] {
        let (client, near) = desk(&address).await;
        let call = tokio::spawn(client.wait().into_future());
        office.begun.notified().await;
        let draining = if by_server { far_end(&server) } else { near.clone() };
        // The draining goes on when nobody waits for it.
        let drained = draining.drain("another server is nearer");
        assert!(tokio::time::timeout(std::time::Duration::ZERO, drained).await.is_err());
        // By another connection, as soon as the client has heard of it.
        while server.connections().len() < 2 {
            assert_eq!(client.echo("a").await.unwrap(), "a");
        }
        office.permits.add_permits(1);
        call.await.unwrap().unwrap();
        near.closed().await;
        drop(client);
        server.connections().iter().for_each(|rest| rest.close("the test goes on"));
        while !server.connections().is_empty() {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_handler_lets_the_connection_of_its_own_call_finish() {
    let office = Office::new();
    let (address, _server) = serve(&office).await;
    let (client, near) = desk(&address).await;
    assert_eq!(client.leave().await.unwrap(), "good bye");
    near.closed().await;
    assert_eq!(client.echo("b").await.unwrap(), "b");
}

#[tokio::test]
async fn a_reason_of_any_length_can_be_given() {
    let office = Office::new();
    let (address, server) = serve(&office).await;
    let (_client, near) = desk(&address).await;
    far_end(&server).close(&"é".repeat(10_000));
    let status = near.closed().await;
    assert!(status.message().contains("ééé") && status.message().len() < 1000, "{status}");
}
