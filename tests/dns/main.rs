//! Channels whose servers are looked up by DNS, from a name server of the test's own.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

#[path = "../authority/mod.rs"]
mod authority;
mod server;
#[path = "../who/mod.rs"]
mod who;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use farcall::tls::{self, TlsConfig};
use farcall::{BalancePolicy, Channel, Code, Config, EndpointState, Handle, Readiness, ResolveBy, Status};
use hickory_resolver::proto::op::ResponseCode;

use authority::{Authority, as_it_is, for_db1};
use server::{NameServer, Reply, hosts, service};
use who::share;

/// Starts a server, and returns its port.
async fn start_with(number: usize, address: &str, config: Config) -> (u16, Handle) {
    let (address, handle) = who::start_with(number, address, config).await;
    (address.parse::<SocketAddr>().unwrap().port(), handle)
}

async fn start(number: usize, address: &str) -> (u16, Handle) {
    start_with(number, address, Config::default()).await
}

async fn until(channel: &Channel, are: impl Fn(&[EndpointState]) -> bool) {
    let mut states = channel.endpoints().unwrap();
    states.wait_for(|states| are(states)).await.unwrap();
}

fn is_ready(state: &EndpointState) -> bool {
    matches!(state.readiness, Readiness::Ready)
}

/// Waits until the channel is connected to these servers, and knows no others.
async fn servers(channel: &Channel, addresses: &[String]) {
    until(channel, |states| {
        states.iter().map(|state| &*state.name).eq(addresses.iter()) && states.iter().all(is_ready)
    })
    .await;
}

/// A configuration by which names are looked up again only when an answer has expired or a server fails.
fn by_expiry(name_server: &NameServer) -> Config {
    let mut config = Config::default();
    config.balance.policy = BalancePolicy::RoundRobin;
    config.balance.resolve_by = ResolveBy::Dns;
    config.balance.resolve_s = 1_000_000;
    config.balance.name_servers = vec![name_server.address];
    config
}

#[tokio::test]
async fn a_service_has_servers_with_weights_and_priorities() {
    let ((a, kept_a), (b, kept_b), (c, _c)) =
        tokio::join!(start(0, "127.0.0.1:0"), start(1, "127.0.0.1:0"), start(2, "127.0.0.1:0"));
    let names = NameServer::start().await;
    let all = [(10, 3, a, "a.test."), (10, 1, b, "a.test."), (20, 50_000, c, "c.test.")];
    names.set("_who._tcp.numbers.test", service(60, &all));
    names.set("a.test", hosts(60, [[127, 0, 0, 1]]));
    names.set("c.test", hosts(60, [[127, 0, 0, 1]]));
    let address = format!("tcp://_who._tcp.numbers.test?{}", names.setting());
    let channel = Channel::connect(&address).await.unwrap();
    until(&channel, |states| states.iter().filter(|state| is_ready(state)).count() == 3).await;
    assert_eq!(share(&channel, 40).await, BTreeMap::from([(0, 30), (1, 10)]));

    // The other priority is for when no server of the first is there.
    kept_a.close();
    until(&channel, |states| states.iter().filter(|state| is_ready(state)).count() == 2).await;
    assert_eq!(share(&channel, 40).await, BTreeMap::from([(1, 40)]));
    kept_b.close();
    until(&channel, |states| states.iter().filter(|state| is_ready(state)).count() == 1).await;
    assert_eq!(share(&channel, 40).await, BTreeMap::from([(2, 40)]));
}

#[tokio::test]
#[cfg(target_os = "linux")] // All of 127.0.0.0/8 is this host there.
async fn a_name_is_looked_up_again_when_its_answer_expires() {
    let (port, _one) = start(1, "127.0.0.1:0").await;
    let _two = start(2, &format!("127.0.0.2:{port}")).await;
    let names = NameServer::start().await;
    names.set("numbers.test", hosts(1, [[127, 0, 0, 1]]));
    let address = format!("tcp://numbers.test:{port}");
    let channel = Channel::builder().config(by_expiry(&names)).connect(&address).await.unwrap();
    servers(&channel, &[format!("127.0.0.1:{port}")]).await;
    names.set("numbers.test", hosts(1, [[127, 0, 0, 2], [127, 0, 0, 1]]));
    servers(&channel, &[format!("127.0.0.1:{port}"), format!("127.0.0.2:{port}")]).await;
    assert_eq!(share(&channel, 20).await, BTreeMap::from([(1, 10), (2, 10)]));
    names.set("numbers.test", hosts(1, [[127, 0, 0, 2]]));
    servers(&channel, &[format!("127.0.0.2:{port}")]).await;
    assert_eq!(share(&channel, 20).await, BTreeMap::from([(2, 20)]));
}

#[tokio::test]
#[cfg(target_os = "linux")] // All of 127.0.0.0/8 is this host there.
async fn servers_stay_known_while_dns_fails() {
    let (port, _one) = start(1, "127.0.0.1:0").await;
    let _two = start(2, &format!("127.0.0.2:{port}")).await;
    let names = NameServer::start().await;
    names.set("_who._tcp.numbers.test", service(1, &[(0, 0, port, "a.test.")]));
    names.set("a.test", hosts(60, [[127, 0, 0, 1]]));
    let builder = Channel::builder().config(by_expiry(&names));
    let channel = builder.connect("tcp://_who._tcp.numbers.test").await.unwrap();
    let (one, two) = (format!("127.0.0.1:{port}"), format!("127.0.0.2:{port}"));
    servers(&channel, std::slice::from_ref(&one)).await;

    // The service can't be looked up, or its target.
    for (name, failure) in [
        ("_who._tcp.numbers.test", Reply::Failure(ResponseCode::ServFail)),
        ("_who._tcp.numbers.test", Reply::Failure(ResponseCode::NXDomain)),
        ("a.test", Reply::Failure(ResponseCode::ServFail)),
        ("_who._tcp.numbers.test", Reply::Silence),
    ] {
        let place = [(0, 0, port, "a.test.")];
        names.set("_who._tcp.numbers.test", service(1, &place));
        names.set(name, failure);
        names.asked(name, 2).await;
        servers(&channel, std::slice::from_ref(&one)).await;
        assert_eq!(share(&channel, 10).await, BTreeMap::from([(1, 10)]));
    }
    names.set("a.test", hosts(60, [[127, 0, 0, 2]]));
    names.set("_who._tcp.numbers.test", service(1, &[(0, 0, port, "a.test.")]));
    servers(&channel, &[two]).await;
    assert_eq!(share(&channel, 10).await, BTreeMap::from([(2, 10)]));
}

#[tokio::test]
async fn names_that_lead_nowhere_are_named_with_the_reason() {
    let names = NameServer::start().await;
    names.set("other.test", hosts(60, [[127, 0, 0, 1]]));
    names.set("_other._tcp.test", hosts(60, [[127, 0, 0, 1]]));
    names.set("_off._tcp.test", service(60, &[(0, 0, 0, ".")]));
    names.set("_lost._tcp.test", service(60, &[(0, 0, 1, "nowhere.test.")]));
    for (host, why) in [
        ("_who._tcp.test", "there is no such name (NXDOMAIN)"),
        ("nowhere.test:7400", "there is no such name (NXDOMAIN)"),
        ("_other._tcp.test", "the name has no SRV record"),
        ("_off._tcp.test", "DNS says that the service is not available (its target is `.`)"),
        ("_lost._tcp.test", "its target `nowhere.test.`: there is no such name (NXDOMAIN)"),
    ] {
        let channel = Channel::builder().config(by_expiry(&names));
        let error = channel.connect(&format!("tcp://{host}")).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        assert_eq!(error.message(), format!("`{host}` can't be looked up: {why}"));
    }
}

#[tokio::test]
async fn a_host_and_an_address_need_no_name_server() {
    let (port, _keep) = start(1, "127.0.0.1:0").await;
    let names = NameServer::start().await;
    for host in ["localhost", "127.0.0.1"] {
        let builder = Channel::builder().balance(BalancePolicy::RoundRobin).resolve_by(ResolveBy::Dns);
        let builder = builder.name_servers([names.address]);
        let channel = builder.connect(&format!("tcp://{host}:{port}")).await.unwrap();
        assert_eq!(share(&channel, 1).await, BTreeMap::from([(1, 1)]));
    }
}

#[tokio::test]
async fn an_answer_with_thousands_of_servers_is_bounded() {
    let names = NameServer::start().await;
    let many = |n: u16| [127, 200, (n >> 8) as u8, n as u8];
    names.set("many.test", hosts(60, (0..2000).map(many)));
    names.set("_many._tcp.test", service(60, &[(0, 1, 1, "many.test."), (0, 1, 2, "many.test.")]));
    for host in ["many.test:1", "_many._tcp.test"] {
        let builder = Channel::builder().config(by_expiry(&names));
        let error = builder.connect(&format!("tcp://{host}")).await.unwrap_err();
        assert!(error.message().starts_with("none of 1024 servers can be reached: "), "{error}");
    }
}

#[tokio::test]
async fn the_certificate_is_for_the_name_in_the_address() {
    let authority = Authority::new("ca");
    let names = NameServer::start().await;
    names.set("localhost.test", hosts(60, [[127, 0, 0, 1]]));
    let connect = async |server: TlsConfig, wanted: Option<&str>| -> Result<Channel, Status> {
        let mut config = Config::default();
        config.tls = Some(server);
        let (port, _keep) = start_with(1, "127.0.0.1:0", config).await;
        names.set("_who._tcp.db1", service(60, &[(0, 0, port, "localhost.test.")]));
        let mut config = by_expiry(&names);
        let mut files = authority.trusted();
        files.server_name = wanted.map(str::to_owned);
        config.tls = Some(files);
        Channel::builder().config(config).connect("tcp+tls://_who._tcp.db1").await
    };
    let issued = |name, change| {
        let mut files = authority.issue(name, change);
        files.client_auth = tls::ClientAuth::Optional;
        files
    };
    connect(issued("db1", for_db1), None).await.unwrap();
    let error = connect(issued("other", as_it_is), None).await.unwrap_err();
    assert!(error.message().contains("not for db1"), "{error}");
    // Unless the application says another name.
    connect(issued("third", as_it_is), Some("localhost")).await.unwrap();
}
