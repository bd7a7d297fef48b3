//! Another configuration for a channel that lives.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farcall::{Channel, ChannelBuilder, Code, Config, ConfigErrorKind, Result, Server, Status};

#[farcall::service]
trait Shop {
    /// Fails UNAVAILABLE, but each third time.
    #[rpc(idempotent)]
    async fn third(&self) -> Result<u32>;
    async fn hang(&self) -> Result<()>;
}

#[derive(Default)]
struct Counting(AtomicU32);

impl Shop for Counting {
    async fn third(&self) -> Result<u32> {
        let times = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        if times.is_multiple_of(3) { Ok(times) } else { Err(Status::unavailable("not yet")) }
    }

    async fn hang(&self) -> Result<()> {
        std::future::pending().await
    }
}

async fn serve() -> String {
    let server =
        Server::builder().add(ShopServer::new(Counting::default())).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    address
}

fn config(text: &str) -> Config {
    Config::from_toml(text).unwrap()
}

#[tokio::test]
async fn another_configuration_counts_for_clients_and_clones_that_are_there() {
    let address = serve().await;
    let channel = Channel::connect(&address).await.unwrap();
    let client = ShopClient::new(&channel);
    let connection = channel.connection().await.unwrap();
    assert_eq!(client.third().await.unwrap_err().code(), Code::Unavailable);
    channel.clone().reconfigure(config("[retry]\nmax_attempts = 3\ninitial_backoff_ms = 1")).unwrap();
    assert_eq!(client.third().await, Ok(3));
    assert_eq!(client.third().await, Ok(6));

    channel.reconfigure(config("[calls]\ntimeout_ms = 20")).unwrap();
    assert_eq!(client.hang().await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(client.third().await.unwrap_err().code(), Code::Unavailable, "it is not made again any more");
    assert!(Arc::ptr_eq(&channel.connection().await.unwrap(), &connection));
}

#[tokio::test]
async fn some_methods_have_settings_of_their_own() {
    const OF_SERVICE: &str =
        "[[methods]]\nname = [\"Shop\"]\nretry = { max_attempts = 3, initial_backoff_ms = 1 }\n";
    let channel = Channel::builder().config(config(OF_SERVICE)).connect(&serve().await).await.unwrap();
    let client = ShopClient::new(&channel);
    assert_eq!(client.third().await, Ok(3));
    // An entry for the method counts in place of the one for its service, and a call's own setting in place of both.
    let of_methods = ["third\"]\ntimeout_ms = 3_600_000", "hang\"]\ntimeout_ms = 20"];
    let of_methods =
        of_methods.map(|of_method| format!("\n[[methods]]\nname = [\"Shop/{of_method}")).concat();
    channel.reconfigure(config(&format!("{OF_SERVICE}{of_methods}"))).unwrap();
    assert_eq!(client.third().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(client.hang().await.unwrap_err().code(), Code::DeadlineExceeded);
    let waits = tokio::time::timeout(Duration::from_millis(60), client.hang().timeout(Duration::MAX));
    assert!(waits.await.is_err());
    // No entry for this service is left, so each call is made once.
    channel.reconfigure(config("[[methods]]\nname = [\"Other\"]\nretry = { max_attempts = 3 }")).unwrap();
    assert_eq!(client.third().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(client.third().await, Ok(6));
    assert_eq!(client.third().await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn builder_and_address_still_count_more() {
    let address = format!("{}?calls.wait_for_ready=true", serve().await);
    let builder = Channel::builder().timeout(Duration::from_millis(20));
    let channel = builder.connect(&address).await.unwrap();
    channel.reconfigure(config("[calls]\ntimeout_ms = 3_600_000\nwait_for_ready = false")).unwrap();
    let hang = ShopClient::new(&channel).hang();
    assert_eq!(hang.await.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_setting_that_can_not_change_is_an_error_and_changes_nothing() {
    let address = serve().await.replace("tcp://", "farcall://");
    let channel = Channel::connect(&address).await.unwrap();
    for (text, section) in [
        ("transport = \"rdma\"", "transport"),
        ("[limits]\nmax_message = 1_000_000", "limits"),
        ("[liveness]\nconnect_ms = 1", "liveness"),
        ("[calls]\ncauses = false", "calls"),
        ("[balance]\npolicy = \"round-robin\"", "balance"),
        ("[balance]\nconnections = 2", "balance"),
        ("[tcp]\nreceive_buffer = 65_536", "tcp"),
    ] {
        // The first setting could change.
        let error = channel.reconfigure(config(&format!("{text}\n[retry]\nmax_attempts = 3"))).unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Setting);
        assert!(error.to_string().contains(&format!("configuration: {section} differs")), "{error}");
    }
    let error = channel.reconfigure(config("[admission]\nmax_calls = 7")).and_then(|()| {
        let mut wrong = Config::default();
        wrong.retry.max_attempts = 11;
        channel.reconfigure(wrong)
    });
    assert!(error.unwrap_err().to_string().contains("retry.max_attempts must be from 1 to 10"));
    assert_eq!(ShopClient::new(&channel).third().await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_channel_that_balances_gets_another_policy() {
    let (one, two) = (serve().await, serve().await);
    let address = format!("{one},{}", two.trim_start_matches("tcp://"));
    let balanced = |policy: &str| config(&format!("[balance]\npolicy = \"{policy}\""));
    let builder: fn() -> ChannelBuilder = Channel::builder;
    let channel = builder().config(balanced("by-key")).connect(&address).await.unwrap();
    channel.reconfigure(balanced("least-loaded")).unwrap();
    channel.reconfigure(balanced("first")).unwrap_err();
    let servers = farcall::stream::iter([Ok(vec![farcall::Endpoint::new(one.trim_start_matches("tcp://"))])]);
    let channel = builder().discover("shops", servers).unwrap();
    // There, `first` stands for `round-robin`, as when it was made.
    channel.reconfigure(Config::default()).unwrap();
    channel.reconfigure(balanced("by-key")).unwrap();
    assert_eq!(ShopClient::new(&channel).third().await.unwrap_err().code(), Code::Unavailable);
}
