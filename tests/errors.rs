//! The facts that a caller learns of a failure over TCP: the details that the handler has given its status, and its causes.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::error::Error;
use std::fmt;

use farcall::details::{ErrorInfo, Help, HelpLink};
use farcall::{Channel, Code, Config, Metadata, Server, Status, Stream, stream};
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
    /// Fails for a reason that has a reason, with metadata of so many bytes.
    async fn write(&self, bytes: u32) -> farcall::Result<()>;
    /// Fails for the same reason after an item.
    fn writes(&self) -> impl Stream<Item = farcall::Result<u32>>;
}

struct Counter;

/// An I/O error, and what was tried.
#[derive(Debug)]
struct JournalError(std::io::Error);

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the journal can't be written")
    }
}

impl Error for JournalError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

fn not_written() -> Status {
    let error = JournalError(std::io::Error::other("no space left on device"));
    Status::new(Code::Unavailable, "the order is lost").with_source(error)
}

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

    async fn write(&self, bytes: u32) -> farcall::Result<()> {
        let mut metadata = Metadata::new();
        if bytes > 0 {
            // Three, and two of the key.
            metadata.insert("kk", "v".repeat(bytes as usize - 5))?;
        }
        Err(not_written().with_metadata(metadata))
    }

    fn writes(&self) -> impl Stream<Item = farcall::Result<u32>> {
        stream::iter([Ok(1), Err(not_written())])
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

/// Returns the lines that a log would have.
fn causes(status: &Status) -> Vec<String> {
    let first = status.source();
    std::iter::successors(first, |&cause| cause.source()).map(ToString::to_string).collect()
}

const CAUSES: [&str; 2] = ["the journal can't be written", "no space left on device"];

#[tokio::test]
async fn causes_reach_the_callers_log() {
    let shop = shop().await;
    let error = shop.write(0).await.unwrap_err();
    assert_eq!(causes(&error), CAUSES);
    assert_eq!(
        format!("{error:#}"),
        "UNAVAILABLE: the order is lost: the journal can't be written: no space left on device"
    );
    assert!(error.metadata().is_empty(), "they are not metadata to who looks: {error:?}");
    let error = shop.write(100).await.unwrap_err();
    assert_eq!((causes(&error).len(), error.metadata().size()), (2, 100));

    let mut written = shop.writes().await.unwrap();
    assert_eq!(written.message().await.unwrap(), Some(1));
    assert_eq!(causes(&written.message().await.unwrap_err()), CAUSES);
    assert!(written.trailers().is_empty());
}

#[tokio::test]
async fn causes_of_three_services_stay_in_order() {
    #[farcall::service(package = "test")]
    trait Desk {
        /// Adds to the error that it failed with, or passes that on as it is.
        async fn order(&self, says_more: bool) -> farcall::Result<()>;
    }

    struct Office(ShopClient);

    impl Desk for Office {
        async fn order(&self, says_more: bool) -> farcall::Result<()> {
            let order = self.0.write(0).await;
            if says_more {
                return order.map_err(|e| Status::new(Code::Internal, "no order").with_source(e));
            }
            order
        }
    }

    struct Front(DeskClient);

    impl Desk for Front {
        async fn order(&self, says_more: bool) -> farcall::Result<()> {
            let order = self.0.order(says_more).await;
            order.map_err(|e| Status::new(Code::Aborted, "try later").with_source(e))
        }
    }

    let office = DeskClient::in_process(Office(shop().await));
    let front = DeskClient::in_process(Front(office));
    let error = front.order(true).await.unwrap_err();
    assert_eq!(
        format!("{error:#}"),
        "ABORTED: try later: INTERNAL: no order: UNAVAILABLE: the order is lost: \
         the journal can't be written: no space left on device"
    );
    // None is added twice.
    let error = front.order(false).await.unwrap_err();
    assert_eq!(causes(&error), ["UNAVAILABLE: the order is lost", CAUSES[0], CAUSES[1]]);
}

#[tokio::test]
async fn causes_can_be_kept_back() {
    let address = serve(Config::from_toml("[calls]\ncauses = false").unwrap()).await;
    let shop = ShopClient::new(Channel::connect(&address).await.unwrap());
    let error = shop.write(0).await.unwrap_err();
    assert_eq!((error.message(), causes(&error).len()), ("the order is lost", 0));
}

#[tokio::test]
async fn causes_are_left_out_where_the_answer_would_fail_with_them() {
    let address = serve(Config::default()).await;
    let channel = Channel::connect(&format!("{address}?limits.max_metadata=150")).await.unwrap();
    let shop = ShopClient::new(channel);
    for (bytes, count) in [(0, 2), (58, 2), (59, 1), (101, 1), (102, 0), (149, 0)] {
        let error = shop.write(bytes).await.unwrap_err();
        assert_eq!(causes(&error), CAUSES[..count], "{bytes}: {error}");
        assert_eq!((error.code(), error.metadata().size()), (Code::Unavailable, bytes as usize));
    }
    assert_eq!(shop.write(150).await.unwrap_err().code(), Code::ResourceExhausted);

    // And where the message would be too long, before anything else is.
    let channel = Channel::connect(&format!("{address}?limits.max_message=1024")).await.unwrap();
    let shop = ShopClient::new(channel);
    for (bytes, count) in [(0, 2), (860, 2), (900, 1), (950, 0), (970, 0)] {
        let error = shop.write(bytes).await.unwrap_err();
        assert_eq!(causes(&error), CAUSES[..count], "{bytes}: {error}");
        assert_eq!((error.code(), error.metadata().size()), (Code::Unavailable, bytes as usize));
    }
}

/// A service whose methods fail with a type of another crate.
mod foreign {
    use std::net::IpAddr;
    use std::time::Duration;

    use farcall::{CallError, Channel, Code, Server, Status, Stream, Streaming, in_process, stream};

    type Taken = CallError<IpAddr>;

    #[farcall::service(package = "test")]
    trait Leases {
        async fn lease(&self, address: IpAddr) -> Result<u32, CallError<IpAddr>>;
        async fn by_alias(&self, address: IpAddr) -> Result<u32, Taken>;
        async fn wait(&self) -> Result<(), Taken>;
        fn all(&self, up_to: u32) -> impl Stream<Item = Result<u32, Taken>>;
        async fn sum(&self, numbers: Streaming<u32>) -> Result<u32, Taken>;
        async fn open(&self) -> Result<impl Stream<Item = farcall::Result<u32>>, Taken>;
    }

    struct Pool;

    fn taken() -> IpAddr {
        [10, 0, 0, 1].into()
    }

    fn closed() -> Status {
        Status::failed_precondition("the pool is closed")
    }

    impl Leases for Pool {
        async fn lease(&self, address: IpAddr) -> Result<u32, CallError<IpAddr>> {
            match address {
                address if address == taken() => Err(CallError::App(address)),
                IpAddr::V4(_) => Ok(7),
                IpAddr::V6(_) => Err(closed())?,
            }
        }

        async fn by_alias(&self, address: IpAddr) -> Result<u32, Taken> {
            self.lease(address).await
        }

        async fn wait(&self) -> Result<(), Taken> {
            std::future::pending().await
        }

        fn all(&self, up_to: u32) -> impl Stream<Item = Result<u32, Taken>> {
            let end = if up_to > 1 { CallError::App(taken()) } else { closed().into() };
            stream::iter((0..up_to).map(Ok).chain([Err(end)]))
        }

        async fn sum(&self, mut numbers: Streaming<u32>) -> Result<u32, Taken> {
            let first = numbers.message().await?;
            first.ok_or(CallError::App(taken()))
        }

        async fn open(&self) -> Result<impl Stream<Item = farcall::Result<u32>>, Taken> {
            match false {
                true => Ok(stream::iter([Ok(1)])),
                false => Err(CallError::App(taken())),
            }
        }
    }

    #[tokio::test]
    async fn an_error_of_another_crate_is_the_error_of_a_method() {
        let server = Server::builder().add(LeasesServer::new(Pool)).bind("127.0.0.1:0").await.unwrap();
        let address = format!("farcall://{}", server.local_addr());
        tokio::spawn(server.serve());
        let over_network = LeasesClient::new(Channel::connect(&address).await.unwrap());
        // The client implements the trait: so this one passes answers on.
        let through_another = LeasesClient::new(in_process(LeasesServer::new(over_network.clone())));
        for leases in [over_network, through_another] {
            assert_eq!(leases.lease([10, 0, 0, 2].into()).await, Ok(7));
            assert_eq!(leases.lease(taken()).await, Err(CallError::App(taken())));
            assert_eq!(leases.by_alias(taken()).await, Err(CallError::App(taken())));
            let v6 = leases.lease([0; 8].into()).await.unwrap_err();
            assert_eq!(v6.status().unwrap().message(), closed().message());
            assert_eq!(v6.status().unwrap().code(), Code::FailedPrecondition);
            assert_eq!(v6.to_string(), "FAILED_PRECONDITION: the pool is closed");

            let late = leases.wait().timeout(Duration::from_millis(5)).await.unwrap_err();
            assert_eq!(late.status().unwrap().code(), Code::DeadlineExceeded);

            let mut all = leases.all(2).await.unwrap();
            assert_eq!((all.message().await, all.message().await), (Ok(Some(0)), Ok(Some(1))));
            assert_eq!(all.message().await, Err(CallError::App(taken())));
            let mut all = leases.all(1).await.unwrap();
            assert_eq!(all.message().await, Ok(Some(0)));
            let end = all.message().await.unwrap_err();
            assert_eq!(end.status().unwrap().code(), Code::FailedPrecondition);

            assert_eq!(leases.sum(stream::iter([4, 5])).await, Ok(4));
            assert_eq!(leases.sum(stream::iter::<[u32; 0]>([])).await, Err(CallError::App(taken())));
            assert_eq!(leases.open().await.unwrap_err(), CallError::App(taken()));
        }
    }
}
