//! The classes that calls go by.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use farcall::{Call, Channel, Handle, Postcard, Result, Server, Stream, Streaming, TrafficClass, stream};

#[farcall::service(package = "test")]
trait Node {
    async fn get(&self) -> Result<u32>;
    #[rpc(class = Urgent)]
    async fn beat(&self) -> Result<u32>;
    #[rpc(class = Bulk)]
    fn scan(&self, rows: u32) -> impl Stream<Item = Result<u32>>;
    #[rpc(class = Bulk)]
    async fn load(&self, rows: Streaming<u32>) -> Result<u32>;
    #[rpc(class = Normal)]
    async fn put(&self) -> Result<u32>;
}

struct Steady;

impl Node for Steady {
    async fn get(&self) -> Result<u32> {
        Ok(1)
    }

    async fn beat(&self) -> Result<u32> {
        Ok(2)
    }

    fn scan(&self, rows: u32) -> impl Stream<Item = Result<u32>> {
        stream::iter((0..rows).map(Ok))
    }

    async fn load(&self, mut rows: Streaming<u32>) -> Result<u32> {
        let mut sum = 0;
        while let Some(row) = rows.message().await? {
            sum += row;
        }
        Ok(sum)
    }

    async fn put(&self) -> Result<u32> {
        Ok(5)
    }
}

async fn connect() -> (Channel, Handle) {
    let server = Server::builder().add(NodeServer::new(Steady)).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    let handle = server.handle();
    tokio::spawn(server.serve());
    (Channel::connect_lazy(&address).unwrap(), handle)
}

#[tokio::test]
async fn a_call_goes_by_its_own_class_or_its_methods_or_its_channels() {
    let (channel, _server) = connect().await;
    let node = NodeClient::new(&channel);
    let class =
        async |call: Call<Result<u32>, Postcard>| call.with_response().await.unwrap().connection.class();
    assert_eq!(class(node.get()).await, TrafficClass::Normal);
    assert_eq!(class(node.beat()).await, TrafficClass::Urgent);
    assert_eq!(class(node.beat().class(TrafficClass::Bulk)).await, TrafficClass::Bulk);

    let urgent = NodeClient::new(channel.class(TrafficClass::Urgent));
    assert_eq!(class(urgent.get()).await, TrafficClass::Urgent);
    assert_eq!(class(urgent.put()).await, TrafficClass::Normal);
}

#[tokio::test]
async fn streams_go_by_the_class_of_their_method() {
    let (channel, _server) = connect().await;
    let node = NodeClient::new(&channel);
    let scanned = node.scan(3).with_response().await.unwrap();
    assert_eq!(scanned.connection.class(), TrafficClass::Bulk);
    let loaded = node.load(stream::iter([1, 2, 3])).with_response().await.unwrap();
    assert_eq!((loaded.connection.class(), loaded.value), (TrafficClass::Bulk, 6));
}

/// A client is used as an implementation of the trait, too.
#[tokio::test]
async fn calls_by_the_trait_go_by_the_class_of_their_method() {
    let (channel, server) = connect().await;
    let node = NodeClient::new(&channel);
    Node::beat(&node).await.unwrap();
    Node::load(&node, Streaming::new(stream::iter([Ok(4)]))).await.unwrap();
    let mut classes: Vec<_> = server.connections().iter().map(|c| c.class().to_string()).collect();
    classes.sort();
    assert_eq!(classes, ["bulk", "urgent"]);
}
