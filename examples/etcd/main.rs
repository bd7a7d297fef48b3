//! Servers that register with etcd, and a client that calls all that are registered, as they come and go.
//!
//! ```text
//! etcd                                                    # Debian: apt install etcd-server
//! cargo run --example etcd -- serve 127.0.0.1:7401        # in a terminal each; Ctrl-C takes it out of the list first
//! cargo run --example etcd -- serve 127.0.0.1:7402
//! cargo run --example etcd -- call
//! ```
//!
//! `ETCD` names another etcd than `http://127.0.0.1:2379`. With another registry only `registry.rs` changes: what a channel wants is a
//! stream of lists of servers.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is what the example does")]
#![expect(unreachable_pub, reason = "in an application a registry is a library of its own")]

mod etcd;
mod registry;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use farcall::{BalancePolicy, Channel, Server};

use etcd::Etcd;
use registry::{Registered, servers};

const SERVICE: &str = "greeter";

#[farcall::service(package = "farcall.example.etcd")]
trait Greeter {
    /// Returns a greeting, and where it comes from.
    async fn greet(&self, name: String) -> farcall::Result<String>;
}

struct Friendly {
    address: String,
}

impl Greeter for Friendly {
    async fn greet(&self, name: String) -> farcall::Result<String> {
        Ok(format!("hello, {name}, from {}", self.address))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("ETCD").unwrap_or_else(|_| "http://127.0.0.1:2379".into());
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => serve(Etcd::at(&url), address).await,
        ["call"] => call(Etcd::at(&url)).await,
        _ => Err("usage: etcd serve HOST:PORT | etcd call".into()),
    }
}

async fn serve(etcd: Etcd, address: &str) -> Result<(), Box<dyn std::error::Error>> {
    if address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_unspecified() || address.port() == 0)
    {
        return Err(format!("{address} is no address that clients can reach").into());
    }
    let greeter = Friendly { address: address.to_owned() };
    let server = Server::builder().add(GreeterServer::new(greeter)).bind(address).await?;
    let (handle, serving) = (server.handle(), tokio::spawn(server.serve()));
    let registered = Registered::new(&etcd, SERVICE, address).await?;
    println!("serving at {address}");
    tokio::signal::ctrl_c().await?;
    registered.leave().await;
    handle.drain(Duration::from_secs(10)).await;
    Ok(serving.await?)
}

async fn call(etcd: Etcd) -> Result<(), Box<dyn std::error::Error>> {
    let builder = Channel::builder().balance(BalancePolicy::LeastLoaded);
    let channel = builder.discover(SERVICE, servers(etcd, SERVICE))?;
    let client = GreeterClient::new(&channel);
    loop {
        let mut answers = BTreeMap::<_, u32>::new();
        for _ in 0..1000 {
            let answer = client.greet("you").timeout(Duration::from_secs(5)).await;
            *answers.entry(answer.unwrap_or_else(|status| status.to_string())).or_default() += 1;
        }
        for (answer, count) in answers {
            println!("{count:4} times: {answer}");
        }
        println!();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
