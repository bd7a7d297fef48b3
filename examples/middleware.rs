//! Work that is done for many calls alike: a token that a client's interceptor adds and a server's layer checks, and two
//! layers of `tower`.
//!
//! Run it with `cargo run --example middleware --features tower`.

#![expect(clippy::print_stdout, reason = "it is what the example does")]

use std::future::ready;
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use farcall::middleware::{Next, Request, Response};
use farcall::{Channel, Code, Context, Server, Status};
use tower::{Layer, Service, ServiceBuilder};

#[farcall::service]
trait Desk {
    async fn whoami(&self, cx: &Context) -> farcall::Result<String>;
    async fn sleep(&self, time: Duration) -> farcall::Result<()>;
}

struct Office;

impl Desk for Office {
    async fn whoami(&self, cx: &Context) -> farcall::Result<String> {
        let user = cx.extension::<User>().ok_or_else(|| Status::new(Code::Internal, "there is no check"))?;
        Ok(user.0.clone())
    }

    async fn sleep(&self, time: Duration) -> farcall::Result<()> {
        tokio::time::sleep(time).await;
        Ok(())
    }
}

/// The user that the server's layer has found out, for the handlers.
#[derive(Clone)]
struct User(String);

/// A layer for servers: who has no such token is not served.
struct RequireToken(&'static str);

impl Layer<Next> for RequireToken {
    type Service = CheckToken;

    fn layer(&self, next: Next) -> CheckToken {
        CheckToken { token: self.0, next }
    }
}

struct CheckToken {
    token: &'static str,
    next: Next,
}

impl Service<Request> for CheckToken {
    type Response = Response;
    type Error = Status;
    type Future = <Next as Service<Request>>::Future;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Status>> {
        self.next.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        if request.metadata().get("token") != Some(self.token) {
            let status = Status::new(Code::Unauthenticated, "a call needs a token");
            return Box::pin(ready(Err(status)));
        }
        request.extensions_mut().insert(User("ali".into()));
        self.next.call(request)
    }
}

/// An interceptor, for clients, which could be a layer as well.
async fn with_token(mut request: Request, next: Next) -> farcall::Result<Response> {
    request.metadata_mut().insert("token", "open sesame")?;
    next.run(request).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder().add(DeskServer::new(Office)).layer(RequireToken("open sesame"));
    let server = server.bind("127.0.0.1:0").await?;
    let address = format!("farcall://{}", server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::connect(&address).await?;

    let stranger = DeskClient::new(&channel);
    println!("without a token: {}", stranger.whoami().await.expect_err("it must fail"));

    let channel = channel.intercept(with_token);
    println!("with a token: {}", DeskClient::new(&channel).whoami().await?);

    // Two calls in a quarter of a second, and none longer than a tenth. Channels with layers are of the same type.
    let quarter = Duration::from_millis(250);
    let layers = ServiceBuilder::new().rate_limit(2, quarter).timeout(Duration::from_millis(100));
    let desk = DeskClient::new(channel.layer(layers));
    let start = Instant::now();
    for _ in 0..3 {
        desk.whoami().await?;
    }
    println!("the third call had to wait: {}", start.elapsed() >= quarter);
    println!(
        "a long one ends: {}",
        desk.sleep(Duration::from_secs(60)).await.expect_err("it must fail").code()
    );
    Ok(())
}
