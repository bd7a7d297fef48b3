//! What a caller learns of a failure over TCP: the details that the handler has given its status.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use farcall::details::{ErrorInfo, Help, HelpLink};
use farcall::{Channel, Code, Config, Server, Status, Stream, stream};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum ShopError {
    Closed,
    Call(Status),
}

impl From<Status> for ShopError {
    fn from(status: Status) -> Self {
        Self::Call(status)
    }
}

#[farcall::service(package = "test")]
trait Shop {
    /// Fails, with an explanation of so many bytes.
    async fn buy(&self, explained: u32) -> farcall::Result<()>;
    /// Fails with a status inside of an error of its own.
    async fn order(&self) -> Result<(), ShopError>;
    /// Fails after an item.
    fn browse(&self) -> impl Stream<Item = farcall::Result<u32>>;
}

struct Counter;

fn sold_out() -> Status {
    let info = ErrorInfo { reason: "SOLD_OUT".into(), domain: "shop.example".into(), ..ErrorInfo::default() };
    Status::new(Code::FailedPrecondition, "sold out").with_detail(&info)
}

fn reason(status: &Status) -> String {
    status.detail::<ErrorInfo>().unwrap().reason
}

impl Shop for Counter {
    async fn buy(&self, explained: u32) -> farcall::Result<()> {
        let link = HelpLink { description: "x".repeat(explained as usize), ..HelpLink::default() };
        Err(sold_out().with_detail(&Help { links: vec![link] }))
    }

    async fn order(&self) -> Result<(), ShopError> {
        Err(ShopError::Call(sold_out()))
    }

    fn browse(&self) -> impl Stream<Item = farcall::Result<u32>> {
        stream::iter([Ok(1), Err(sold_out())])
    }
}

async fn serve(config: Config) -> String {
    let server = Server::builder().add(ShopServer::new(Counter)).config(config);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    address
}

async fn shop() -> ShopClient {
    ShopClient::new(Channel::connect(&serve(Config::default()).await).await.unwrap())
}

#[tokio::test]
async fn details_reach_the_caller() {
    let shop = shop().await;
    let error = shop.buy(9).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::FailedPrecondition, "sold out"));
    assert_eq!(reason(&error), "SOLD_OUT");
    assert_eq!(error.detail::<Help>().unwrap().links[0].description, "x".repeat(9));
    assert_eq!(error.to_rpc().details.len(), 2);

    let mut goods = shop.browse().await.unwrap();
    assert_eq!(goods.message().await.unwrap(), Some(1));
    assert_eq!(reason(&goods.message().await.unwrap_err()), "SOLD_OUT");
}

#[tokio::test]
async fn details_reach_the_caller_inside_of_another_error() {
    let ShopError::Call(status) = shop().await.order().await.unwrap_err() else {
        panic!("another error");
    };
    assert_eq!(reason(&status), "SOLD_OUT");
}

#[tokio::test]
async fn details_too_long_for_the_caller_are_left_out() {
    let address = serve(Config::default()).await;
    let channel = Channel::connect(&format!("{address}?limits.max_message=2000")).await.unwrap();
    let shop = ShopClient::new(channel);
    assert_eq!(reason(&shop.buy(1000).await.unwrap_err()), "SOLD_OUT");
    let error = shop.buy(2000).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::FailedPrecondition, "sold out"));
    assert_eq!(error.detail::<ErrorInfo>(), None);
}
