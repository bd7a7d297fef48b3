//! Interceptors on both sides, in process and over the network.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod over;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use farcall::middleware::{Kind, Next, Request, Response, ServiceExt};
use farcall::{
    Channel, Code, Context, EndReason, Executed, Result, Server, Status, Stream, Streaming, TrafficClass,
    in_process, stream,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

#[derive(Clone, Debug, PartialEq)]
struct User(String);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum OutOfStock {
    Gone(u32),
    Call(String),
}

impl From<Status> for OutOfStock {
    fn from(status: Status) -> Self {
        Self::Call(status.to_string())
    }
}

#[farcall::service(package = "test")]
trait Shop {
    async fn whoami(&self, cx: &Context) -> Result<Option<String>>;
    async fn buy(&self, item: u32) -> std::result::Result<u32, OutOfStock>;
    async fn refuse(&self, cx: &Context) -> Result<()>;
    /// Waits until it is dropped.
    async fn wait(&self) -> Result<()>;
    async fn remaining(&self, cx: &Context) -> Result<Duration>;
    fn list(&self, cx: &Context, items: u32) -> impl Stream<Item = Result<u32>>;
    async fn sum(&self, items: Streaming<u32>) -> Result<u32>;
    fn double(&self, items: Streaming<u32>) -> impl Stream<Item = Result<u32>>;
}

#[derive(Clone, Default)]
struct Corner {
    waits: Arc<Notify>,
    dropped: Arc<Notify>,
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Shop for Corner {
    async fn whoami(&self, cx: &Context) -> Result<Option<String>> {
        cx.reply_metadata(|metadata| metadata.insert("by", "handler"))?;
        cx.reply_trailers(|trailers| trailers.insert("by", "handler"))?;
        Ok(cx.extension::<User>().map(|user| user.0.clone()))
    }

    async fn buy(&self, item: u32) -> std::result::Result<u32, OutOfStock> {
        if item == 0 { Err(OutOfStock::Gone(item)) } else { Ok(item) }
    }

    async fn refuse(&self, cx: &Context) -> Result<()> {
        cx.reply_metadata(|metadata| metadata.insert("by", "handler"))?;
        cx.reply_trailers(|trailers| trailers.insert("by", "handler"))?;
        Err(Status::new(Code::NotFound, "no such thing"))
    }

    async fn wait(&self) -> Result<()> {
        let _dropped = NotifyOnDrop(self.dropped.clone());
        self.waits.notify_one();
        std::future::pending().await
    }

    async fn remaining(&self, cx: &Context) -> Result<Duration> {
        Ok(cx.remaining().unwrap_or(Duration::MAX))
    }

    fn list(&self, cx: &Context, items: u32) -> impl Stream<Item = Result<u32>> {
        cx.reply_metadata(|metadata| metadata.insert("by", "handler")).unwrap();
        cx.reply_trailers(|trailers| trailers.insert("by", "handler")).unwrap();
        let dropped = NotifyOnDrop(self.dropped.clone());
        stream::iter((0..items).map(move |item| {
            let _ = &dropped;
            Ok(item)
        }))
    }

    async fn sum(&self, mut items: Streaming<u32>) -> Result<u32> {
        let mut sum = 0;
        while let Some(item) = items.message().await? {
            sum += item;
        }
        Ok(sum)
    }

    fn double(&self, mut items: Streaming<u32>) -> impl Stream<Item = Result<u32>> {
        let (sender, doubled) = stream::channel(1);
        tokio::spawn(async move {
            while let Ok(Some(item)) = items.message().await {
                if sender.send(2 * item).await.is_err() {
                    break;
                }
            }
        });
        doubled
    }
}

type Log = Arc<Mutex<Vec<String>>>;

fn note(log: &Log, line: impl Into<String>) {
    log.lock().unwrap().push(line.into());
}

fn taken(log: &Log) -> Vec<String> {
    std::mem::take(&mut *log.lock().unwrap())
}

/// An interceptor that notes what passes.
fn noting(
    name: &'static str,
    log: &Log,
) -> impl Fn(Request, Next) -> farcall_core::transport::BoxFuture<Result<Response>> + Send + Sync + 'static {
    let log = log.clone();
    move |request, next| {
        let log = log.clone();
        Box::pin(async move {
            note(&log, format!("{name} > {}", request.path()));
            let mut result = next.run(request).await;
            match &mut result {
                Err(status) => note(&log, format!("{name} < {:?}", status.code())),
                Ok(response) => {
                    let what = match (response.is_stream(), response.is_error()) {
                        (true, _) => "stream",
                        (_, true) => "error",
                        _ => "ok",
                    };
                    note(&log, format!("{name} < {what}"));
                    response.on_end(move |end| note(&log, format!("{name} end {:?}", end.reason)));
                }
            }
            result
        })
    }
}

async fn over_network(service: impl farcall_core::service::Service) -> Channel {
    let server = Server::builder().config(over::config()).add(service).bind("127.0.0.1:0").await.unwrap();
    let address = over::address(server.local_addr());
    tokio::spawn(server.serve());
    Channel::connect(&address).await.unwrap()
}

#[tokio::test]
async fn an_interceptor_sees_request_and_answer_on_either_side() {
    let log = Log::default();
    let channel = over_network(ShopServer::new(Corner::default()).intercept(noting("server", &log))).await;
    let shop = ShopClient::new(channel.intercept(noting("client", &log)));
    assert_eq!(shop.buy(7).await, Ok(7));
    let [client, server, served, ended, back, end] = &taken(&log)[..] else { panic!() };
    assert_eq!((&client[..], &server[..]), ("client > test.Shop/buy", "server > test.Shop/buy"));
    assert_eq!((&served[..], &ended[..]), ("server < ok", "server end Completed"));
    assert_eq!((&back[..], &end[..]), ("client < ok", "client end Completed"));

    assert_eq!(shop.buy(0).await, Err(OutOfStock::Gone(0)));
    assert_eq!(
        taken(&log)[2..],
        ["server < error", "server end Status", "client < error", "client end Status"]
    );
    assert_eq!(shop.refuse().await.unwrap_err().code(), Code::NotFound);
    assert_eq!(taken(&log)[2..], ["server < NotFound", "client < NotFound"]);
}

#[tokio::test]
async fn the_interceptor_added_last_comes_first() {
    let log = Log::default();
    let service =
        ShopServer::new(Corner::default()).intercept(noting("s1", &log)).intercept(noting("s2", &log));
    let server = Server::builder().add(service).intercept(noting("s3", &log)).intercept(noting("s4", &log));
    let server = server.config(over::config()).bind("127.0.0.1:0").await.unwrap();
    let address = over::address(server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::connect(&address).await.unwrap();
    let channel = channel.intercept(noting("c1", &log)).intercept(noting("c2", &log));
    ShopClient::new(channel).sum(stream::iter([1, 2])).await.unwrap();
    let order =
        taken(&log).into_iter().filter_map(|line| line.split_once(" > ").map(|(name, _)| name.to_owned()));
    assert!(order.eq(["c2", "c1", "s4", "s3", "s2", "s1"]));
}

#[tokio::test]
async fn streams_pass_and_tell_their_end() {
    let log = Log::default();
    let channel = over_network(ShopServer::new(Corner::default()).intercept(noting("server", &log))).await;
    let shop = ShopClient::new(channel.intercept(noting("client", &log)));

    let mut items = shop.list(3).await.unwrap();
    assert_eq!(items.metadata().get("by"), Some("handler"));
    for item in 0..3 {
        assert_eq!(items.message().await.unwrap(), Some(item));
    }
    assert_eq!(items.message().await.unwrap(), None);
    assert_eq!(
        (items.trailers().get("by"), items.end_reason()),
        (Some("handler"), Some(EndReason::Completed))
    );
    let mut seen = taken(&log);
    seen.sort();
    let all = [
        "client < stream",
        "client > test.Shop/list",
        "client end Completed",
        "server < stream",
        "server > test.Shop/list",
        "server end Completed",
    ];
    assert_eq!(seen, all);

    assert_eq!(shop.sum(stream::iter([1, 2, 3])).await.unwrap(), 6);
    let mut doubled = shop.double(stream::iter([1, 2, 3])).await.unwrap();
    for item in [2, 4, 6] {
        assert_eq!(doubled.message().await.unwrap(), Some(item));
    }
    assert_eq!(doubled.message().await.unwrap(), None);

    taken(&log);
    drop(shop.list(u32::MAX).await.unwrap());
    assert_eq!(taken(&log).last().map(String::as_str), Some("client end Cancelled"));
}

#[tokio::test]
async fn metadata_and_extensions_are_passed_on() {
    async fn check(mut request: Request, next: Next) -> Result<Response> {
        let user = match request.metadata().get("token") {
            Some(token) => User(token.to_uppercase()),
            None => return Err(Status::new(Code::Unauthenticated, "who are you?")),
        };
        request.extensions_mut().insert(user);
        assert!(
            request.context().is_some_and(|context| context.peer().is_some()) && request.class().is_none()
        );
        let mut response = next.run(request).await?;
        response.metadata_mut().append("by", "server")?;
        response.trailers_mut().append("by", "server")?;
        Ok(response)
    }

    async fn sign(mut request: Request, next: Next) -> Result<Response> {
        assert!(request.context().is_none() && request.class() == Some(TrafficClass::Urgent));
        assert_eq!((request.kind(), request.metadata().get("hop")), (Kind::Unary, Some("a")));
        request.metadata_mut().insert("token", "ann")?;
        let mut response = next.run(request).await?;
        response.trailers_mut().append("by", "client")?;
        Ok(response)
    }

    let channel = over_network(ShopServer::new(Corner::default()).intercept(check)).await;
    let shop = ShopClient::new(channel.intercept(sign));
    let response =
        shop.whoami().metadata("hop", "a").class(TrafficClass::Urgent).with_response().await.unwrap();
    assert_eq!(response.value.as_deref(), Some("ANN"));
    assert!(response.metadata.get_all("by").eq(["handler", "server"]), "{:?}", response.metadata);
    assert!(response.trailers.get_all("by").eq(["handler", "server", "client"]), "{:?}", response.trailers);
    assert_eq!((response.attempts, response.connection.class()), (1, TrafficClass::Urgent));

    let error = ShopClient::new(channel).whoami().await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unauthenticated, "who are you?"));
}

/// Metadata that a handler sets before it refuses reach the caller, whatever is between.
#[tokio::test]
async fn a_refusal_keeps_its_metadata() {
    let log = Log::default();
    let channel = over_network(ShopServer::new(Corner::default()).intercept(noting("server", &log))).await;
    let (outcome, parts) = ShopClient::new(channel).refuse().with_parts().await;
    assert_eq!(outcome.unwrap_err().metadata().get("by"), Some("handler"));
    assert_eq!((parts.metadata.get("by"), parts.trailers.get("by")), (Some("handler"), Some("handler")));
    assert_eq!((parts.metadata.len(), parts.trailers.len()), (1, 1));
}

#[tokio::test]
async fn a_stream_that_an_interceptor_drops_ends_its_call() {
    let (corner, log) = (Corner::default(), Log::default());
    let noted = log.clone();
    let drops = move |request: Request, next: Next| {
        let noted = noted.clone();
        async move {
            let mut response = next.run(request).await?;
            response.on_end(move |end| note(&noted, format!("{:?}", end.reason)));
            drop(response);
            Err::<Response, _>(Status::new(Code::Aborted, "not this one"))
        }
    };
    let shop = ShopClient::new(in_process(ShopServer::new(corner.clone())).intercept(drops));
    assert_eq!(shop.list(u32::MAX).await.unwrap_err().code(), Code::Aborted);
    assert_eq!(taken(&log), ["Cancelled"]);
    let ended = tokio::time::timeout(Duration::from_secs(60), corner.dropped.notified()).await;
    ended.expect("the handler's stream goes on");
}

#[tokio::test]
async fn an_interceptor_may_refuse_and_may_repeat() {
    async fn refuse(_: Request, _: Next) -> Result<Response> {
        Err(Status::new(Code::PermissionDenied, "not today").with_executed(Executed::No))
    }
    async fn twice(request: Request, next: Next) -> Result<Response> {
        let again = request.try_clone().unwrap();
        next.run(request).await.ok();
        next.run(again).await
    }
    async fn once(request: Request, next: Next) -> Result<Response> {
        assert!(request.try_clone().is_none());
        next.run(request).await
    }

    let log = Log::default();
    let caller = in_process(ShopServer::new(Corner::default()).intercept(noting("server", &log)));
    let error = ShopClient::new(caller.intercept(refuse)).whoami().await.unwrap_err();
    assert_eq!(
        (error.code(), error.executed(), taken(&log).len()),
        (Code::PermissionDenied, Executed::No, 0)
    );
    assert_eq!(ShopClient::new(caller.intercept(twice)).buy(3).await, Ok(3));
    assert_eq!(taken(&log).iter().filter(|line| line.starts_with("server >")).count(), 2);
    assert_eq!(ShopClient::new(caller.intercept(once)).sum(stream::iter([1])).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn time_can_be_limited_on_either_side() {
    async fn limit(mut request: Request, next: Next) -> Result<Response> {
        request.limit_time(Duration::from_secs(5));
        next.run(request).await
    }

    let corner = Corner::default();
    let shop = ShopClient::new(in_process(ShopServer::new(corner.clone())).intercept(limit));
    assert!(shop.remaining().await.unwrap() <= Duration::from_secs(5));
    assert!(shop.remaining().timeout(Duration::from_secs(2)).await.unwrap() <= Duration::from_secs(2));
    assert_eq!(shop.wait().await.unwrap_err().code(), Code::DeadlineExceeded);
    corner.dropped.notified().await;

    let shop = ShopClient::new(in_process(ShopServer::new(corner.clone()).intercept(limit)));
    assert!(shop.remaining().await.unwrap() <= Duration::from_secs(5));
    let error = shop.wait().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::DeadlineExceeded, Executed::Maybe));
    assert!(error.message().contains("the server's middleware"), "{error}");
    corner.dropped.notified().await;
}

/// A call that middleware refuses, on either side, was not executed. Once it has been let through, nobody knows.
#[tokio::test]
async fn a_call_that_middleware_refuses_is_not_executed() {
    async fn refuse(_: Request, _: Next) -> Result<Response> {
        Err(Status::permission_denied("not today"))
    }
    async fn too_late(request: Request, next: Next) -> Result<Response> {
        next.run(request).await?;
        Err(Status::permission_denied("the answer is not for you"))
    }
    /// The server is too busy to check the call.
    async fn busy(_: Request, _: Next) -> Result<Response> {
        Err(Status::unavailable("come back later"))
    }
    /// The call is done, but another one, which notes that, is refused elsewhere.
    async fn unnoted(request: Request, next: Next) -> Result<Response> {
        next.run(request).await?;
        Err(Status::unavailable("the other server is full").with_executed(Executed::No))
    }
    let open = || in_process(ShopServer::new(Corner::default()));
    let server = || ShopServer::new(Corner::default());
    for (channel, code, executed) in [
        (open().intercept(refuse), Code::PermissionDenied, Executed::No),
        (in_process(server().intercept(refuse)), Code::PermissionDenied, Executed::No),
        (open().intercept(too_late), Code::PermissionDenied, Executed::Yes),
        (in_process(server().intercept(too_late)), Code::PermissionDenied, Executed::Yes),
        (open().intercept(busy), Code::Unavailable, Executed::No),
        (in_process(server().intercept(busy)), Code::Unavailable, Executed::No),
        (open().intercept(unnoted), Code::Unavailable, Executed::Maybe),
        (in_process(server().intercept(unnoted)), Code::Unavailable, Executed::Maybe),
    ] {
        let error = ShopClient::new(channel).whoami().await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (code, executed), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_covers_the_clients_middleware() {
    async fn stuck(_: Request, _: Next) -> Result<Response> {
        std::future::pending().await
    }
    let shop = ShopClient::new(in_process(ShopServer::new(Corner::default())).intercept(stuck));
    let error = shop.buy(1).timeout(Duration::from_secs(1)).await.unwrap_err();
    let OutOfStock::Call(text) = error else { panic!("{error:?}") };
    assert!(text.contains("no answer through the client's middleware"), "{text}");
    assert!(text.contains("(not executed)"), "{text}");
}

#[tokio::test]
async fn dropping_a_call_drops_its_handler_through_middleware() {
    let (corner, log) = (Corner::default(), Log::default());
    let channel = over_network(ShopServer::new(corner.clone()).intercept(noting("server", &log))).await;
    let shop = ShopClient::new(channel.intercept(noting("client", &log)));
    let call = tokio::spawn(shop.wait().into_future());
    corner.waits.notified().await;
    call.abort();
    corner.dropped.notified().await;
}

#[tokio::test]
async fn a_handler_behind_an_interceptor_has_its_context() {
    async fn elsewhere(request: Request, next: Next) -> Result<Response> {
        // As a layer that hands requests to a worker does.
        tokio::spawn(next.run(request)).await.unwrap()
    }

    struct Between(ShopClient);

    #[farcall::service(package = "test")]
    trait Broker {
        async fn remaining(&self) -> Result<Duration>;
    }

    impl Broker for Between {
        async fn remaining(&self) -> Result<Duration> {
            Context::current().unwrap().reply_trailers(|trailers| trailers.insert("by", "broker"))?;
            self.0.remaining().await
        }
    }

    let shop = ShopClient::new(in_process(ShopServer::new(Corner::default()).intercept(elsewhere)));
    let broker = BrokerClient::new(in_process(BrokerServer::new(Between(shop)).intercept(elsewhere)));
    let response = broker.remaining().timeout(Duration::from_secs(3)).with_response().await.unwrap();
    assert!(response.value <= Duration::from_secs(3), "{:?}", response.value);
    assert_eq!(response.trailers.get("by"), Some("broker"));
}

#[tokio::test]
async fn a_panic_in_an_interceptor_ends_its_call_alone() {
    async fn fall(request: Request, next: Next) -> Result<Response> {
        assert!(request.metadata().is_empty(), "an interceptor falls");
        next.run(request).await
    }
    let shop = ShopClient::new(in_process(ShopServer::new(Corner::default()).intercept(fall)));
    let error = shop.whoami().metadata("a", "b").await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Internal, Executed::Maybe));
    assert_eq!(shop.buy(1).await, Ok(1));
}
