//! Several certificates in one process: servers of several CAs on one channel, and listeners with certificates of their own.

use std::collections::BTreeSet;

use farcall::{BalancePolicy, Endpoint, Listener, stream};

use super::*;

fn client(files: &TlsConfig) -> TlsClient {
    TlsClient::from_files(files).unwrap()
}

/// A channel to these servers.
fn discovered(builder: farcall::ChannelBuilder, servers: Vec<Endpoint>) -> Channel {
    let channel = builder.transport(farcall::Policy::Tcp).balance(BalancePolicy::RoundRobin);
    channel.discover("desks", stream::iter([Ok(servers)])).unwrap()
}

/// Calls until so many servers have answered, and returns whom they take the caller for.
async fn known_as(channel: &Channel, servers: usize) -> BTreeSet<String> {
    let desk = DeskClient::new(channel);
    let calls = async {
        let mut known = BTreeSet::new();
        while known.len() < servers {
            known.extend(desk.whoami().await.unwrap());
        }
        known
    };
    tokio::time::timeout(Duration::from_secs(60), calls).await.expect("a server is not reached")
}

#[tokio::test]
async fn each_server_of_a_channel_has_its_own_tls() {
    let [one, other] = ["one", "other"].map(Authority::new);
    let a = serve(with(one.issue("desk", as_it_is))).await;
    let b = serve(with(other.issue("desk", as_it_is))).await;
    let (ann, bob) = (client(&one.issue("ann", as_it_is)), client(&other.issue("bob", as_it_is)));
    let both = BTreeSet::from(["ann", "bob"].map(|name| format!("spiffe://example.org/{name}")));
    let servers = vec![Endpoint::new(&a).tls(ann.clone()), Endpoint::new(&b).tls(bob.clone())];
    assert_eq!(known_as(&discovered(Channel::builder(), servers), 2).await, both);
    // Without its own it is the channel's.
    let servers = vec![Endpoint::new(&a), Endpoint::new(&b).tls(bob.clone())];
    assert_eq!(known_as(&discovered(Channel::builder().tls(ann.clone()), servers), 2).await, both);
    // The wrong way round.
    let servers = vec![Endpoint::new(&a).tls(bob), Endpoint::new(&b).tls(ann)];
    let error = DeskClient::new(discovered(Channel::builder(), servers)).whoami().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No));
    assert!(error.message().contains("it was not signed by any CA in tls.ca"), "{error}");
}

#[tokio::test]
async fn each_listener_of_a_server_may_have_its_own_tls() {
    let [one, other] = ["one", "other"].map(Authority::new);
    let own = TlsServer::from_files(&other.issue("desk", as_it_is)).unwrap();
    let server = Server::builder()
        .add(DeskServer::new(Office))
        .config(with(one.issue("desk", as_it_is)))
        .listen("127.0.0.1:0")
        .listen(Listener::from("127.0.0.1:0").tls(own));
    let server = server.build().await.unwrap();
    let addresses = server.local_addrs();
    let [a, b] = [0, 1].map(|n| addresses[n].to_string());
    tokio::spawn(server.serve());
    for (authority, name, right, wrong) in [(&one, "ann", &a, &b), (&other, "bob", &b, &a)] {
        let files = authority.issue(name, as_it_is);
        let channel = connect("tcp", right, with(files.clone())).await.unwrap();
        let who = DeskClient::new(&channel).whoami().await.unwrap();
        assert_eq!(who.unwrap(), format!("spiffe://example.org/{name}"));
        let error = connect("tcp", wrong, with(files)).await.unwrap_err();
        assert!(error.message().contains("it was not signed by any CA in tls.ca"), "{error}");
    }
}
