//! A sequencer and a table of locks. The server exports memory, and clients count in it: no handler runs for a ticket or a lock.
//!
//! By RDMA the server's device does the operations on numbers, and by TCP its runtime does.
//!
//! ```text
//! cargo run --release --example sequencer                            # servers of its own, and a check
//! cargo run --release --example sequencer -- serve 127.0.0.1:7400    # a server
//! cargo run --release --example sequencer -- rdma://127.0.0.1:7400   # the check against that server
//! ```
//!
//! The check with servers of its own closes two of three meanwhile. They share the memory, so its clients go on with the third, and
//! find out what became of the operations that were under way.

#![expect(unreachable_pub, reason = "in an application the service is a library of its own")]

mod check;
mod locks;
mod numbers;
mod service;
mod tickets;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use farcall::Server;
use service::{SequencerServer, Table};

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done about a closed standard error.
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => check_own().await,
        ["serve", address] => serve(address).await,
        [address] if !address.starts_with('-') => check::run(address, Vec::new()).await,
        _ => Err("usage: sequencer [ADDRESS | serve HOST:PORT]".into()),
    }
}

async fn serve(address: &str) -> Result<(), Failure> {
    let server = Server::builder().add(SequencerServer::new(Table::new())).with_env().bind(address).await?;
    writeln!(std::io::stdout(), "listening on {}", server.local_addr())?;
    server.serve_until(tokio::signal::ctrl_c()).await;
    Ok(())
}

async fn check_own() -> Result<(), Failure> {
    let table = Table::new();
    let (mut hosts, mut handles) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let server = Server::builder().add(SequencerServer::new(table.clone())).with_env();
        let server = server.bind("127.0.0.1:0").await?;
        hosts.push(server.local_addr().to_string());
        handles.push(server.handle());
        tokio::spawn(server.serve());
    }
    // Clients take the first that they reach.
    handles.pop();
    check::run(&format!("farcall://{}", hosts.join(",")), handles).await
}
