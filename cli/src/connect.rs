//! `farcall connect`: what calls to a server travel by.

use clap::Args;

use crate::output::{self, Failure};
use crate::target::{By, Target};

/// Connect to a server and say what calls travel by.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall connect db1
  farcall connect db1:9000 --rdma

Exit status: 0 connected, 1 not connected, 64 wrong arguments")]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Take nothing but RDMA, and say why there is none
    #[arg(long)]
    rdma: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let answer = crate::runtime(1)?.block_on(async {
        let channel = arguments.target.connect(if arguments.rdma { By::Rdma } else { By::Auto }).await?;
        let connection = channel.connection().await.map_err(Failure::no)?;
        let peer = connection.peer().map_or_else(String::new, |peer| format!("{peer}: "));
        Ok::<_, Failure>(format!("{peer}calls travel by {}\n", connection.transport()))
    })?;
    output::print(&answer)?;
    Ok(0)
}
