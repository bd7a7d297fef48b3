//! gRPC by tonic and prost, the payload as `Bytes`. Everything as the library has it, but TCP_NODELAY.

use bytes::Bytes;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use self::generated::echo_client::EchoClient;
use self::generated::echo_server::{Echo, EchoServer};
use crate::args::Args;
use crate::load::Caller;
use crate::{Contestant, Result};

#[expect(unreachable_pub, reason = "generated code fits a library, too")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/peers.Echo.rs"));
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Payload {
    #[prost(bytes = "bytes", tag = "1")]
    data: Bytes,
}

struct Service;

#[tonic::async_trait]
impl Echo for Service {
    async fn echo(&self, request: Request<Payload>) -> std::result::Result<Response<Payload>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

pub(crate) struct Tonic;

impl Contestant for Tonic {
    type Client = Client;

    async fn serve(args: Args) -> Result<()> {
        let listener = TcpListener::bind(&args.address).await?;
        crate::listening(listener.local_addr()?)?;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        Server::builder().add_service(EchoServer::new(Service)).serve_with_incoming(incoming).await?;
        Ok(())
    }

    async fn connect(args: Args) -> Result<Client> {
        let endpoint = Endpoint::from_shared(format!("http://{}", args.address))?.tcp_nodelay(true);
        Ok(Client(EchoClient::new(endpoint.connect().await?)))
    }
}

#[derive(Clone)]
pub(crate) struct Client(EchoClient<Channel>);

impl Caller for Client {
    async fn call(&mut self, payload: &Bytes) -> Result<usize> {
        let answer = self.0.echo(Payload { data: payload.clone() }).await?;
        Ok(answer.into_inner().data.len())
    }
}
