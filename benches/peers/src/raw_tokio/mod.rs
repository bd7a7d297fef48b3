//! A protocol written by hand on tokio: what a framework on tokio can hope to come near to.
//!
//! There are frames with numbers, so that calls share a connection; frames that leave together are written together;
//! the handler runs in the connection's task. There is nothing else: no types, deadlines, cancellation, limits.
//!
//! A frame: 8 bytes of length, 8 bytes of number, the payload; numbers are little-endian. One with [`STREAM`] in its number asks
//! for a stream (how many items, and how long) or is of one: an item, or its end, which is empty.

mod client;
mod frames;
mod sender;
mod server;

use tokio::net::TcpStream;

/// In the number of a frame.
const STREAM: u64 = 1 << 63;

/// A stream waits when so much is queued for the socket.
const MOST_QUEUED: usize = 256 << 10;

/// The client's reader waits when so much of streams has not been read.
const MOST_UNREAD: usize = 4 << 20;

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
