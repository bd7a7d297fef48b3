//! The smallest service: one method, called over TCP, or over RDMA where both ends have it, and in process for a test.
//!
//! Run it with `cargo run --example hello`.

#![expect(clippy::print_stdout, reason = "it is what the example does")]

use farcall::{Channel, Server};

#[farcall::service]
trait Greeter {
    async fn hello(&self, name: String) -> farcall::Result<String>;
}

struct Polite;

impl Greeter for Polite {
    async fn hello(&self, name: String) -> farcall::Result<String> {
        Ok(format!("Hello, {name}!"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A server. `auto`, the default, takes TCP and RDMA; so does the client's `farcall://`.
    let server = Server::builder().add(GreeterServer::new(Polite)).bind("127.0.0.1:0").await?;
    let address = format!("farcall://{}", server.local_addr());
    tokio::spawn(server.serve());

    // A client, which other tasks can have clones of.
    let channel = Channel::connect(&address).await?;
    let greeter = GreeterClient::new(&channel);
    println!("{} (over {})", greeter.hello("world").await?, channel.transport().await?.name);

    // Without a network, for tests.
    let greeter = GreeterClient::in_process(Polite);
    println!("{}", greeter.hello("test").await?);
    Ok(())
}
