//! `farcall connect`: what calls to a server travel by.

use clap::Args;
use farcall::Channel;

use crate::output::{self, Failure};

/// Connect to a server and say what calls travel by.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  farcall connect 'farcall://db1:7400?transport=auto'

Exit status: 0 connected, 1 not connected, 64 wrong arguments")]
pub(crate) struct Arguments {
    /// The server's address: farcall://HOST:PORT, or rdma://HOST:PORT to take nothing but RDMA
    address: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::no)?;
    let answer = runtime.block_on(async {
        let channel = Channel::connect(&arguments.address).await.map_err(Failure::no)?;
        let connection = channel.connection().await.map_err(Failure::no)?;
        let peer = connection.peer().map_or_else(String::new, |peer| format!("{peer}: "));
        Ok::<_, Failure>(format!("{peer}calls travel by {}\n", connection.transport()))
    })?;
    output::print(&answer)?;
    Ok(0)
}
