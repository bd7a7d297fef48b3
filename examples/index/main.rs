//! A hash index whose look-ups run no handler: readers read the buckets in the memory that the owner exports.
//!
//! A bucket has a version and ends with a checksum. Both fit each other only while nobody changes the bucket, so a reader notices
//! that it has read half of a change, and reads again. Changes go by methods, to the owner alone. By RDMA readers read the
//! memory by themselves, so look-ups cost the owner no processor time. By TCP its runtime does each read.
//!
//! ```text
//! cargo run --release --example index                            # a server of its own, and a check
//! cargo run --release --example index -- serve 127.0.0.1:7400    # a server
//! cargo run --release --example index -- rdma://127.0.0.1:7400   # the check against that server
//! ```
//!
//! The check counts the handlers that run, so nobody else may use the server meanwhile.

#![expect(unreachable_pub, reason = "in an application the service is a library of its own")]

mod check;
mod owner;
mod reader;
mod service;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use farcall::Server;
use owner::Owner;
use service::IndexServer;

const BUCKETS: usize = 1024;

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
    let (address, is_own) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => ("127.0.0.1:0", true),
        ["serve", address] => (address, false),
        [address] if !address.starts_with('-') => return check::run(address, None).await,
        _ => return Err("usage: index [ADDRESS | serve HOST:PORT]".into()),
    };
    let owner = Owner::new(BUCKETS)?;
    let server = Server::builder().add(IndexServer::new(owner.clone())).with_env().bind(address).await?;
    let address = server.local_addr();
    if is_own {
        tokio::spawn(server.serve());
        return check::run(&format!("farcall://{address}"), Some(&owner)).await;
    }
    writeln!(std::io::stdout(), "listening on {address}")?;
    server.serve_until(tokio::signal::ctrl_c()).await;
    Ok(())
}
