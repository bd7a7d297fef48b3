//! A protocol written by hand on tokio: what a framework on tokio can hope to come near to.
//!
//! There are frames with numbers, so that calls share a connection; frames that leave together are written together;
//! the handler runs in the connection's task. There is nothing else: no types, deadlines, cancellation, limits.
//!
//! A frame: 8 bytes of length, 8 bytes of number, the payload; numbers are little-endian.

mod client;
mod frames;
mod sender;
mod server;

use tokio::net::TcpStream;

use crate::args::Args;
use crate::{Contestant, Result};

pub(crate) struct RawTokio;

impl Contestant for RawTokio {
    type Client = client::Client;

    async fn serve(args: Args) -> Result<()> {
        server::serve(&args.address).await
    }

    async fn connect(args: Args) -> Result<client::Client> {
        let socket = TcpStream::connect(&args.address).await?;
        socket.set_nodelay(true)?;
        Ok(client::Client::new(socket))
    }
}
