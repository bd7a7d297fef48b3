//! `farcall record`: calls of a server, in a file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use farcall::admin::{AdminClient, Captured};
use tokio::signal::unix::{SignalKind, signal};

use crate::output::{self, Failure};
use crate::target::{By, Target};

/// Record the unary calls of a server, with arguments and answers.
///
/// A line of the file is a call, as JSON. It has what callers said: treat it as you treat that. Metadata, where tokens travel, are
/// recorded only if you ask. Calls that lend memory, and streams, are not recorded.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall record db1 calls.jsonl --seconds 60
  farcall record db1 calls.jsonl --only shop.v1.Kv/ --count 10000
  farcall replay localhost calls.jsonl

The server needs `Server::builder().with_capture()`.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The file to write
    file: PathBuf,
    /// Record methods whose path begins like this: SERVICE or SERVICE/METHOD
    #[arg(long, default_value = "")]
    only: String,
    /// End after so many calls
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Record metadata, too, but not what is binary
    #[arg(long)]
    metadata: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let unusable =
        |why: &dyn std::fmt::Display| Failure::usage(format!("{}: {why}", arguments.file.display()));
    let (mut calls, mut missed) = (0, 0);
    crate::runtime(1)?.block_on(async {
        let admin = AdminClient::new(&arguments.target.connect(By::Auto).await?);
        let captured = admin.capture(&arguments.only, arguments.metadata).await;
        let mut captured = captured.map_err(|status| Failure::of_call(&status, "with_capture()"))?;
        // Only now: an earlier recording stays if there is nothing to record.
        let mut file = BufWriter::new(File::create(&arguments.file).map_err(|error| unusable(&error))?);
        let mut terminated = signal(SignalKind::terminate()).map_err(Failure::no)?;
        let end = tokio::time::sleep(Duration::from_secs(arguments.seconds.unwrap_or(86_400 * 365)));
        let mut end = std::pin::pin!(end);
        while arguments.count.is_none_or(|most| calls < most) {
            let call: Captured = tokio::select! {
                call = captured.message() => match call.map_err(Failure::no)? {
                    Some(call) => call,
                    None => break,
                },
                () = &mut end => break,
                _ = terminated.recv() => break,
                stopped = tokio::signal::ctrl_c() => match stopped {
                    Ok(()) => break,
                    Err(error) => return Err(Failure::no(error)),
                },
            };
            missed += call.missed;
            calls += 1;
            serde_json::to_writer(&mut file, &call).map_err(|error| unusable(&error))?;
            file.write_all(b"\n").map_err(|error| unusable(&error))?;
        }
        file.flush().map_err(|error| unusable(&error))
    })?;
    let missed = if missed == 0 {
        String::new()
    } else {
        format!(", {missed} more are missing: they had no answer, or came faster than they could be written")
    };
    output::print(&format!("{calls} calls recorded{missed}\n"))?;
    Ok(if calls > 0 { 0 } else { 1 })
}
