//! tarpc over TCP with bincode. The payload is `serde_bytes`': a `Vec<u8>` would be encoded byte by byte. Everything as
//! the library has it, but TCP_NODELAY.

use bytes::Bytes;
use futures::StreamExt;
use serde_bytes::ByteBuf;
use tarpc::serde_transport::{self, Transport};
use tarpc::server::{BaseChannel, Channel};
use tarpc::{client, context};
use tokio::net::{TcpListener, TcpStream};
use tokio_serde::formats::Bincode;
use tokio_util::codec::LengthDelimitedCodec;

use crate::args::Args;
use crate::load::Caller;
use crate::{Contestant, Result};

#[tarpc::service]
trait Echo {
    async fn echo(data: ByteBuf) -> ByteBuf;
}

#[derive(Clone)]
struct Service;

impl Echo for Service {
    async fn echo(self, _: context::Context, data: ByteBuf) -> ByteBuf {
        data
    }
}

/// A socket with frames in it; longer ones than the codec takes by itself, for a payload of 1 MiB fills a frame.
fn framed<Item, Out>(socket: TcpStream) -> Result<Transport<TcpStream, Item, Out, Bincode<Item, Out>>>
where
    Item: for<'de> serde::Deserialize<'de>,
    Out: serde::Serialize,
{
    socket.set_nodelay(true)?;
    let frames = LengthDelimitedCodec::builder().max_frame_length(64 << 20).new_framed(socket);
    Ok(serde_transport::new(frames, Bincode::default()))
}

pub(crate) struct Tarpc;

impl Contestant for Tarpc {
    type Client = Client;

    async fn serve(args: Args) -> Result<()> {
        let listener = TcpListener::bind(&args.address).await?;
        crate::listening(listener.local_addr()?)?;
        loop {
            let (socket, _) = listener.accept().await?;
            let calls = BaseChannel::with_defaults(framed(socket)?).execute(Service.serve());
            tokio::spawn(calls.for_each(|call| async move {
                tokio::spawn(call);
            }));
        }
    }

    async fn connect(args: Args) -> Result<Client> {
        let transport = framed(TcpStream::connect(&args.address).await?)?;
        Ok(Client(EchoClient::new(client::Config::default(), transport).spawn()))
    }
}

#[derive(Clone)]
pub(crate) struct Client(EchoClient);

impl Caller for Client {
    async fn call(&mut self, payload: &Bytes) -> Result<usize> {
        Ok(self.0.echo(context::current(), ByteBuf::from(&payload[..])).await?.len())
    }
}
