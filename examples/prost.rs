//! Messages of protobuf, for who has them already: written by hand here, else by `prost-build`. A server with the descriptors that
//! prost-build writes, [`with_descriptors`](farcall::ServerBuilder::with_descriptors), can be called by `farcall call`.
//!
//! Run it with `cargo run --example prost`.

#![expect(clippy::print_stdout, reason = "it is what the example does")]

use farcall::{Channel, Server};

#[derive(Clone, PartialEq, prost::Message)]
struct Point {
    #[prost(sint32, tag = "1")]
    latitude: i32,
    #[prost(sint32, tag = "2")]
    longitude: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Feature {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    location: Option<Point>,
}

/// Each method takes one message and gives one.
#[farcall::service(codec = farcall::Prost)]
trait Guide {
    async fn feature(&self, at: Point) -> farcall::Result<Feature>;
}

struct Map;

impl Guide for Map {
    async fn feature(&self, at: Point) -> farcall::Result<Feature> {
        let name = if at == summit() { "summit" } else { "nowhere" };
        Ok(Feature { name: name.into(), location: Some(at) })
    }
}

fn summit() -> Point {
    Point { latitude: 47_421_000, longitude: 10_985_000 }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder().add(GuideServer::new(Map)).bind("127.0.0.1:0").await?;
    let address = format!("farcall://{}", server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::connect(&address).await?;
    let guide = GuideClient::new(channel);
    for at in [summit(), Point { latitude: 0, longitude: 0 }] {
        let feature = guide.feature(at).await?;
        println!("{} at {:?}", feature.name, feature.location.unwrap_or_default());
    }
    Ok(())
}
