//! Deadlines and cancellation through three services: what the first caller allows is all that those behind have, and when it
//! gives up, all of them stop.
//!
//! Run it with `cargo run --example deadlines`.

#![expect(clippy::print_stdout, reason = "it is what the example does")]

use std::time::Duration;

use farcall::{Channel, Code, Context, Server};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

#[farcall::service]
trait Stage {
    /// Works for so long, if there is no stage behind it, and else passes the call on.
    async fn work(&self, cx: &Context, time: Duration) -> farcall::Result<String>;
}

/// One of the three.
struct Worker {
    name: &'static str,
    next: Option<StageClient>,
    dropped: UnboundedSender<&'static str>,
}

/// Prints when a handler ends without a result.
struct Guard<'a>(&'a Worker, bool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.1 {
            let _ = self.0.dropped.send(self.0.name);
        }
    }
}

impl Stage for Worker {
    async fn work(&self, cx: &Context, time: Duration) -> farcall::Result<String> {
        let mut guard = Guard(self, false);
        println!("{}: at most {:?} left", self.name, cx.remaining());
        let result = match &self.next {
            // No deadline is given here: a call that a handler makes has its caller's.
            Some(next) => next.work(time).await,
            None => {
                tokio::time::sleep(time).await;
                Ok(format!("done by the {}", self.name))
            }
        };
        guard.1 = result.is_ok();
        result
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (dropped, mut drops) = unbounded_channel();
    let mut next = None;
    for name in ["third", "second", "first"] {
        let worker = Worker { name, next: next.take(), dropped: dropped.clone() };
        let server = Server::builder().add(StageServer::new(worker)).bind("127.0.0.1:0").await?;
        let address = format!("farcall://{}", server.local_addr());
        tokio::spawn(server.serve());
        next = Some(StageClient::new(Channel::connect(&address).await?));
    }
    let first = next.ok_or("there are three")?;

    println!("{}", first.work(Duration::from_millis(1)).timeout(Duration::from_secs(10)).await?);

    // Too short for the third: all three end, the last as well as the first.
    let hour = Duration::from_secs(3600);
    let late = first.work(hour).timeout(Duration::from_millis(200)).await.expect_err("an hour is too long");
    assert_eq!(late.code(), Code::DeadlineExceeded);
    println!("{late}");
    wait_for_three(&mut drops).await;

    // Whoever drops a call cancels it.
    let call = first.work(hour);
    tokio::select! {
        result = call => println!("not now: {result:?}"),
        () = tokio::time::sleep(Duration::from_millis(200)) => println!("given up"),
    }
    wait_for_three(&mut drops).await;
    Ok(())
}

async fn wait_for_three(drops: &mut tokio::sync::mpsc::UnboundedReceiver<&'static str>) {
    let mut all = Vec::new();
    while all.len() < 3 {
        all.extend(drops.recv().await);
    }
    all.sort_unstable();
    println!("stopped: {all:?}");
}
