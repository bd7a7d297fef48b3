//! Servers that tell their numbers, so that a test sees where calls go.

use std::collections::BTreeMap;

use farcall::{Channel, Config, Handle, Server};

#[farcall::service(package = "test")]
pub(crate) trait Who {
    /// Returns the server's number.
    async fn are_you(&self) -> farcall::Result<usize>;
}

struct Number(usize);

impl Who for Number {
    async fn are_you(&self) -> farcall::Result<usize> {
        Ok(self.0)
    }
}

/// Starts a server, and returns its address.
pub(crate) async fn start_with(number: usize, address: &str, config: Config) -> (String, Handle) {
    let server = Server::builder().add(WhoServer::new(Number(number))).config(config);
    let server = server.bind(address).await.unwrap();
    let (address, handle) = (server.local_addr().to_string(), server.handle());
    tokio::spawn(server.serve());
    (address, handle)
}

/// Makes calls one after the other, and returns how many each server has answered.
pub(crate) async fn share(channel: &Channel, calls: usize) -> BTreeMap<usize, usize> {
    let client = WhoClient::new(channel);
    let mut share = BTreeMap::new();
    for _ in 0..calls {
        *share.entry(client.are_you().await.unwrap()).or_default() += 1;
    }
    share
}
