//! Servers that tell their numbers, so that a test sees where calls go.

#![allow(dead_code, clippy::allow_attributes, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use farcall::health::Reporter;
use farcall::{Channel, Config, EndpointState, Handle, Readiness, Server, ServerBuilder};
use tokio::task::JoinHandle;

/// A guard against hangs only.
const PATIENCE: Duration = Duration::from_secs(120);

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
    let (address, handle, _) = serve(number, address, Server::builder().config(config)).await;
    (address, handle)
}

/// Starts a server. Returns its address, and the task that serves.
pub(crate) async fn start_task(number: usize, address: &str) -> (String, Handle, Task) {
    serve(number, address, Server::builder()).await
}

/// Starts a server that says whether it serves, and returns its address.
pub(crate) async fn start_reporting(number: usize, health: &Reporter) -> (String, Handle) {
    let (address, handle, _) = serve(number, "127.0.0.1:0", Server::builder().with_health(health)).await;
    (address, handle)
}

/// The task of a server. It ends with the server.
type Task = JoinHandle<()>;

async fn serve(number: usize, address: &str, server: ServerBuilder) -> (String, Handle, Task) {
    let server = server.add(WhoServer::new(Number(number))).bind(address).await.unwrap();
    let (address, handle) = (server.local_addr().to_string(), server.handle());
    (address, handle, tokio::spawn(server.serve()))
}

/// Waits until so many servers of a channel are ready.
pub(crate) async fn ready(channel: &Channel, servers: usize) {
    let is_ready = |states: &Arc<[EndpointState]>| {
        states.iter().filter(|state| matches!(state.readiness, Readiness::Ready)).count() == servers
    };
    let mut states = channel.endpoints().unwrap();
    let ready = tokio::time::timeout(PATIENCE, states.wait_for(is_ready)).await;
    ready.expect("so many are ready").unwrap();
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
