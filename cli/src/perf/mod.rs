//! `farcall perf`: what calls to a server take, by TCP and by RDMA, and what the devices take alone.

mod case;
mod compare;
mod csv;
pub(crate) mod environment;
mod html;
mod live;
mod load;
pub(crate) mod service;
mod table;
mod verbs;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use farcall::{Channel, Code};
use serde::{Deserialize, Serialize};

use self::case::{Case, Link, Outcome, Pattern};
use self::environment::Environment;
use self::live::watched;
use self::service::PerfClient;
use crate::number;
use crate::output::{self, Failure};
use crate::target::Target;

/// Measure calls to a host that runs `farcall serve`, by TCP and RDMA side by side.
///
/// Each combination of transport, pattern, size, calls in flight and connections is one measurement. Latency counts from when a call was
/// due: with `--rate` that is the schedule, so that a stall of the server counts for every call that it holds up. Without it each caller
/// begins a call when its last has ended, which hides stalls, and shows the most that there is.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall perf db1                                       64 B calls by TCP and RDMA
  farcall perf db1 --size 64,4K,1M --in-flight 1,32      the whole picture
  farcall perf db1 --pattern lend,fill --size 1M         lent memory
  farcall perf db1 --transport tcp,rdma,verbs            calls beside the devices alone
  farcall perf db1 --rate 20000 --in-flight 64           latency at a load, free of coordinated omission
  farcall perf db1 --html report.html --json new.json    a report to send, and data to compare
  farcall perf db1 --compare old.json                    against an earlier run

Exit status: 0 measured, 1 not all of it could be, 64 wrong arguments")]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The links that are measured
    #[arg(long, value_delimiter = ',', default_value = "tcp,rdma")]
    transport: Vec<Link>,
    /// The use of the link
    #[arg(long, value_delimiter = ',', default_value = "echo")]
    pattern: Vec<Pattern>,
    /// Bytes of a payload: 64, 4K, 1M
    #[arg(long, value_delimiter = ',', default_value = "64", value_parser = case::size)]
    size: Vec<usize>,
    /// Calls at a time
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    in_flight: Vec<u32>,
    /// Connections, over which the calls are spread
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: Vec<u32>,
    /// Calls a second, on a schedule that does not wait for answers
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    rate: Vec<u32>,
    /// How long each measurement takes, in seconds
    #[arg(long, default_value_t = 2.0, value_parser = number(0.01..=3600.0))]
    seconds: f64,
    /// Threads that call. One, as is the default, is what most others measure with
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a report with plots, which needs no other file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Compare with the results of an earlier run, which `--json` has written
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
}

/// The results of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    /// The time when it began, as RFC 3339 has it.
    #[serde(default)]
    date: String,
    client: Environment,
    server: Environment,
    outcomes: Vec<Outcome>,
    /// The measurements that could not be made, each with the reason.
    missing: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let earlier = arguments.compare.as_deref().map(read).transpose()?;
    let results = crate::runtime(arguments.threads)?.block_on(measure(arguments))?;
    let json = serde_json::to_string_pretty(&results).map_err(Failure::no)?;
    let outputs = [
        (&arguments.json, json),
        (&arguments.csv, csv::render(&results)),
        (&arguments.html, html::render(&results)),
    ];
    let given = outputs.iter().filter_map(|(file, text)| Some((file.as_deref()?, text)));
    // All of them, and the table, whatever comes of one: a run may have taken an hour.
    let failed: Vec<_> = given
        .filter_map(|(file, text)| Some(format!("{}: {}", file.display(), fs::write(file, text).err()?)))
        .collect();
    output::print(&table::render(&results))?;
    if let Some(earlier) = &earlier {
        output::print(&compare::render(earlier, &results))?;
    }
    if !failed.is_empty() {
        return Err(Failure::no(failed.join("\n")));
    }
    let is_whole = results.missing.is_empty() && results.outcomes.iter().all(|outcome| outcome.errors == 0);
    Ok(if is_whole { 0 } else { 1 })
}

fn read(file: &Path) -> Result<Results, Failure> {
    let unusable = |why: &dyn std::fmt::Display| Failure::usage(format!("{}: {why}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| unusable(&error))?;
    serde_json::from_str(&text)
        .map_err(|error| unusable(&format!("it is none of `farcall perf --json`: {error}")))
}

async fn measure(arguments: &Arguments) -> Result<Results, Failure> {
    let config = arguments.target.config()?;
    let here = Environment::here(arguments.threads, &config);
    let mut results = Results {
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        client: here.clone(),
        // Until it says it.
        server: here,
        outcomes: Vec::new(),
        missing: Vec::new(),
    };
    let (mut reached, mut fix) = (false, None);
    for by in &arguments.transport {
        let most = arguments.connections.iter().copied().max().unwrap_or(1);
        let channels = match connect(arguments, *by, most).await {
            Ok(channels) => channels,
            Err(why) => {
                fix = fix.or_else(|| why.fix());
                results.missing.push(format!("{by}: {}", why.text()));
                continue;
            }
        };
        let server = PerfClient::new(&channels[0]).environment().timeout(Duration::from_secs(60)).await;
        results.server = match server {
            Ok(server) => server,
            Err(status) => {
                let hint =
                    if status.code() == Code::Unimplemented { ". Run `farcall serve` there" } else { "" };
                results
                    .missing
                    .push(format!("{by}: the server does not say what it runs on: {status}{hint}"));
                continue;
            }
        };
        reached = true;
        for case in cases(arguments, *by) {
            match watched(&case, &channels[..case.connections], &config.rdma, arguments.seconds).await {
                Ok(outcome) => results.outcomes.push(outcome),
                Err(status) => results.missing.push(format!("{}: {status}", case.name())),
            }
        }
    }
    if reached { Ok(results) } else { Err(Failure::no(results.missing.join("\n")).with_fix(fix)) }
}

async fn connect(arguments: &Arguments, by: Link, connections: u32) -> Result<Vec<Channel>, Failure> {
    let mut channels = Vec::new();
    for _ in 0..connections {
        channels.push(arguments.target.connect(by.by()).await?);
    }
    Ok(channels)
}

/// Returns all combinations of what is to be measured by a transport.
fn cases(arguments: &Arguments, by: Link) -> Vec<Case> {
    let rates: Vec<_> = match arguments.rate.is_empty() {
        true => vec![None],
        false => arguments.rate.iter().copied().map(Some).collect(),
    };
    let mut cases = Vec::new();
    for pattern in &arguments.pattern {
        // A number has one size.
        let sizes = if *pattern == Pattern::Add { &[8][..] } else { &arguments.size };
        for size in sizes {
            for in_flight in &arguments.in_flight {
                for connections in &arguments.connections {
                    for rate in &rates {
                        cases.push(Case {
                            by,
                            pattern: *pattern,
                            size: *size,
                            in_flight: *in_flight.max(connections) as usize,
                            connections: *connections as usize,
                            rate: *rate,
                        });
                    }
                }
            }
        }
    }
    cases
}

#[cfg(test)]
mod tests;
