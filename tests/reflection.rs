//! Reflection: the services and protobuf messages that a server describes.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use farcall::reflection::{ReflectionClient, Service};
use farcall::{BindError, Channel, Server, Stream, Streaming};
use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

/// As prost-build makes it of `package shop.v1`.
mod shop {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct GetRequest {}

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct GetReply {}

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Unknown {}
}

impl From<farcall::Status> for shop::Unknown {
    fn from(_: farcall::Status) -> Self {
        Self {}
    }
}

#[farcall::service(package = "shop.v1", codec = farcall::Prost)]
trait Kv {
    async fn get(&self, request: shop::GetRequest) -> Result<shop::GetReply, shop::Unknown>;
    async fn both(
        &self,
        items: Streaming<shop::Unknown>,
        first: shop::GetRequest,
    ) -> farcall::Result<impl Stream<Item = farcall::Result<shop::GetReply>>>;
    async fn nothing(&self) -> farcall::Result<()>;
}

struct Store;

impl Kv for Store {
    async fn get(&self, _: shop::GetRequest) -> Result<shop::GetReply, shop::Unknown> {
        Ok(shop::GetReply {})
    }

    async fn both(
        &self,
        _: Streaming<shop::Unknown>,
        _: shop::GetRequest,
    ) -> farcall::Result<impl Stream<Item = farcall::Result<shop::GetReply>>> {
        Ok(farcall::stream::iter([]))
    }

    async fn nothing(&self) -> farcall::Result<()> {
        Ok(())
    }
}

fn set(messages: &[&str]) -> Vec<u8> {
    let message_type =
        messages.iter().map(|name| DescriptorProto { name: Some((*name).into()), ..Default::default() });
    let file = FileDescriptorProto {
        package: Some("shop.v1".into()),
        message_type: message_type.collect(),
        ..Default::default()
    };
    FileDescriptorSet { file: vec![file] }.encode_to_vec()
}

/// Returns what the server says of `Kv`, and its descriptors.
async fn described(server: farcall::ServerBuilder) -> (Service, Vec<farcall::Bytes>) {
    let server = server.add(KvServer::new(Store)).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let reflection = ReflectionClient::new(Channel::connect(&address).await.unwrap());
    (reflection.service("shop.v1.Kv").await.unwrap(), reflection.descriptors().await.unwrap())
}

#[tokio::test]
async fn messages_are_named_in_the_order_of_the_signature() {
    let sets = [set(&["GetRequest"]), set(&["GetReply"])];
    let server = Server::builder().with_descriptors(&sets[0]).with_descriptors(&sets[1]);
    let (kv, descriptors) = described(server).await;
    assert_eq!(descriptors, sets);
    let messages = |method: usize| -> Vec<(&str, Vec<&str>)> {
        let all = kv.methods[method].messages.iter();
        all.map(|message| {
            let (_, rust_type) = message.rust_type.split_once("::").unwrap_or(("", &message.rust_type));
            (rust_type, message.names.iter().map(String::as_str).collect())
        })
        .collect()
    };
    let (request, reply, unknown) = (
        ("shop::GetRequest", vec!["shop.v1.GetRequest"]),
        ("shop::GetReply", vec!["shop.v1.GetReply"]),
        ("shop::Unknown", vec![]),
    );
    assert_eq!(kv.methods[0].signature, "get(protobuf) -> protobuf | protobuf");
    assert_eq!(messages(0), [request.clone(), reply.clone(), unknown.clone()]);
    assert_eq!(
        kv.methods[1].signature,
        "both(protobuf, stream<protobuf>) -> stream<protobuf | Status> | Status"
    );
    assert_eq!(messages(1), [request, unknown, reply]);
    assert_eq!(kv.methods[2].signature, "nothing() -> protobuf | Status");
    assert_eq!(messages(2), [("()", vec!["google.protobuf.Empty"])]);
}

#[tokio::test]
async fn descriptors_change_no_fingerprint() {
    let (with, _) = described(Server::builder().with_descriptors(&set(&["GetRequest"]))).await;
    let (without, none) = described(Server::builder().with_reflection()).await;
    assert_eq!(none, Vec::<farcall::Bytes>::new());
    assert!(without.methods[0].messages.iter().all(|message| message.names.is_empty()));
    let compared = |service: &Service| -> Vec<_> {
        service.methods.iter().map(|method| (method.signature.clone(), method.fingerprint)).collect()
    };
    assert_eq!(compared(&with), compared(&without));
    // Peers of all versions compare this number: the hash of `get(protobuf) -> protobuf | protobuf`.
    assert_eq!(with.methods[0].fingerprint, 0xd2de_6349_9a5c_99d2);
}

#[tokio::test]
async fn a_server_is_not_bound_with_other_bytes() {
    let server = Server::builder().with_descriptors(b"message GetRequest {}").bind("127.0.0.1:0").await;
    let error = server.unwrap_err();
    assert!(matches!(error, BindError::Descriptors(_)));
    assert!(error.to_string().contains("21 bytes that are no FileDescriptorSet"), "{error}");
}
