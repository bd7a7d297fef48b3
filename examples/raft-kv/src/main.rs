//! The program `raft-kv`: a node, and what people do with a cluster.

mod commands;

use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use commands::Arguments;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(arguments.log_filter()));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(stderr().is_terminal());
    log.with_writer(stderr).init();
    match commands::run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("raft-kv: {error:#}");
            ExitCode::FAILURE
        }
    }
}
