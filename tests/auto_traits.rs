//! Auto traits of the public types. This file need only compile.

use farcall::middleware::{Next, Request};
use farcall::stream::{Generate, Items, Iter, Receiver, Sender};
use farcall::{
    Address, BindError, Bytes, Call, Channel, ChannelBuilder, Config, ConfigError, Connection, Context,
    Handle, Metadata, Parts, RawChannel, Response, Scope, Server, ServerBuilder, Status, StreamCall,
    Streaming,
};

#[farcall::service]
trait Any {
    async fn get(&self, key: String) -> farcall::Result<Bytes>;
    async fn sum(&self, numbers: Streaming<u32>) -> farcall::Result<u32>;
}

fn send<T: Send>() {}
fn send_and_sync<T: Send + Sync>() {}
fn unpin<T: Unpin>() {}

type Done = std::future::Ready<Result<(), Status>>;

#[test]
fn public_types_go_where_tasks_go() {
    send_and_sync::<(Channel, ChannelBuilder, RawChannel, Server, ServerBuilder, Handle)>();
    send_and_sync::<(Config, Address, ConfigError, BindError)>();
    send_and_sync::<(Connection, Context, Metadata, Status)>();
    send_and_sync::<(Parts, Response<u8>)>();
    send_and_sync::<(AnyClient, Next)>();
    send_and_sync::<(Sender<u8>, Receiver<u8>, Items<u8>)>();
    send::<(Call<farcall::Result<Bytes>, farcall::Postcard>, StreamCall<farcall::Result<u32>>)>();
    send::<(Streaming<u8>, Request, Scope<Done>, Generate<u8, Status, Done>)>();
}

#[test]
fn streams_and_calls_can_be_polled_where_they_are() {
    unpin::<(Streaming<u8>, Receiver<u8>, Iter<std::vec::IntoIter<u8>>, Generate<u8, Status, Done>)>();
    unpin::<(Call<farcall::Result<Bytes>, farcall::Postcard>, StreamCall<farcall::Result<u32>>)>();
}
