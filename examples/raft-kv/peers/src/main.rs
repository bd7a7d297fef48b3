//! The store with farcall and with HTTP as its network, one beside the other. All but the network is the code of `raft-kv`: log,
//! state machine, batches, reads.
//!
//! ```text
//! raft-kv-peers bench          start clusters of three nodes in turn, write to each, print rates and their ratios
//! raft-kv-peers serve ...      a node; `bench` starts them
//! ```

mod bench;
mod caller;
mod http;
mod report;
mod serve;

use clap::{Parser, ValueEnum};

#[derive(Parser)]
#[command(version, max_term_width = 100)]
enum Command {
    /// Compare the networks.
    Bench(bench::Bench),
    /// Run a node.
    Serve(serve::Serve),
}

/// The carrier of the calls of nodes and of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Network {
    /// farcall over TCP.
    Farcall,
    /// HTTP/1.1 with bodies in JSON, as in openraft's own example.
    HttpJson,
    /// HTTP/1.1 with bodies in Postcard, which farcall's calls have, too.
    HttpPostcard,
}

impl Network {
    const ALL: [Self; 3] = [Self::Farcall, Self::HttpJson, Self::HttpPostcard];

    fn name(self) -> &'static str {
        match self {
            Self::Farcall => "farcall",
            Self::HttpJson => "http-json",
            Self::HttpPostcard => "http-postcard",
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Bench(bench) => bench.run().await,
        Command::Serve(serve) => serve.run().await,
    }
}
