//! `farcall doctor`: what keeps RDMA from working here, or from working well.

mod between;
mod datagram;
pub(crate) mod kinds;
mod mirror;
pub(crate) mod service;
mod text;
mod way;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::Args;
use farcall::rdma::RdmaConfig;
use farcall::rdma::probe::{self, Counters, Machine, Report, Severity};
use serde::Serialize;

use self::between::Other;
use crate::output::{self, Failure};
use crate::target::{ClientSettings, Target};

/// Find out what keeps RDMA from working on this machine, or from working well.
///
/// It looks at modules, libraries, devices, ports, addresses, limits, NUMA, the network's settings and counters. Then it has the
/// device send, read, write and count through a connection with itself. It changes nothing. A note, not-looked-at, names programs that
/// gave no answer, as one that is not installed or needs root, and what was therefore not looked at.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall doctor                            look, and try the device
  farcall doctor --watch 10                 see as well which counters grow within 10 seconds
  farcall doctor --config service.toml      for a service with this configuration
  farcall doctor db1                        as well the host db1, which runs `farcall serve`, and the way to it
  farcall doctor --record host.txt          keep all that was looked at, for a report
  farcall doctor --recorded host.txt        look at another machine by its record

Run it as the user, and within the container, that the service runs as: limits and permissions differ.

Exit status: 0 nothing worse than notes, 1 a warning, 2 a fault, 64 wrong arguments")]
pub(crate) struct Arguments {
    /// Another host as well, which runs `farcall serve`, and the way to it
    #[arg(conflicts_with_all = ["recorded", "root"])]
    host: Option<String>,
    /// Print JSON, which `--schema` describes. With another host it is an object of two such reports, `here` and `there`, and of what is
    /// `between`
    #[arg(long)]
    json: bool,
    /// Print the JSON schema of `--json`, and end
    #[arg(long, exclusive = true)]
    schema: bool,
    /// Print more about what was found: every address, and what each note means
    #[arg(long, short)]
    verbose: bool,
    /// Watch the counters for so many seconds, and warn of those that grow
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
    #[command(flatten)]
    settings: ClientSettings,
    /// Do not try the device
    #[arg(long)]
    no_trial: bool,
    /// Write what was looked at to a file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Look at what `--record` wrote, and not at this machine
    #[arg(long, value_name = "FILE", conflicts_with_all = ["watch", "record", "root"])]
    recorded: Option<PathBuf>,
    /// Look at the files below a directory, as a container sees those of its host
    #[arg(long, value_name = "DIRECTORY")]
    root: Option<PathBuf>,
}

/// The schema of the JSON that `--json` prints.
const SCHEMA: &str = include_str!("schema.json");

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    if arguments.schema {
        output::print(SCHEMA)?;
        return Ok(0);
    }
    let config = arguments.settings.read()?.rdma;
    let machine = machine(arguments)?;
    let mut report = probe::examine(&machine, &config);
    if machine.is_this() && !arguments.no_trial {
        probe::trial(&mut report, &config);
    }
    if let Some(seconds) = arguments.watch {
        let earlier = Counters::read(&machine, &config);
        thread::sleep(Duration::from_secs(seconds));
        report.extend(Counters::read(&machine, &config).grown_since(&earlier));
    }
    if let Some(file) = &arguments.record {
        fs::write(file, machine.recording()).map_err(|error| unusable(file, &error))?;
    }
    let other = match &arguments.host {
        Some(host) => Some(look(arguments, host, &report, &config)?),
        None => None,
    };
    let status = status(&report, other.as_ref());
    let text = match (arguments.json, &other) {
        (true, None) => json(&report)?,
        (true, Some(other)) => output::foreign(&json(&Both { here: &report, other })?),
        (false, None) => text::render(&report, arguments.verbose),
        (false, Some(other)) => text::render_both(&report, other, arguments.verbose),
    };
    // `farcall doctor | head -1` has the status, too, where the shell keeps it (`pipefail`).
    output::print(&text).map_err(|failure| failure.keeping(status))?;
    Ok(status)
}

/// Returns the exit status for the worst that was found on either machine and between them.
fn status(report: &Report, other: Option<&Other>) -> u8 {
    let of_way = other.iter().flat_map(|other| &other.between).map(|finding| finding.severity);
    let there = other.iter().filter_map(|other| text::worst_of(other.there.as_ref()?));
    match report.worst().into_iter().chain(of_way).chain(there).max() {
        Some(Severity::Fault) => 2,
        Some(Severity::Warning) => 1,
        _ => 0,
    }
}

/// The JSON for two hosts: `here` and `there` are reports, `between` has findings.
#[derive(Serialize)]
struct Both<'a> {
    here: &'a Report,
    #[serde(flatten)]
    other: &'a Other,
}

fn look(arguments: &Arguments, host: &str, report: &Report, config: &RdmaConfig) -> Result<Other, Failure> {
    let target = Target::of(host, &arguments.settings);
    Ok(crate::runtime(1)?.block_on(between::look(&target, report, config)))
}

fn machine(arguments: &Arguments) -> Result<Machine, Failure> {
    if let Some(file) = &arguments.recorded {
        let recording = fs::read_to_string(file).map_err(|error| unusable(file, &error))?;
        return Machine::recorded(&recording).map_err(|error| unusable(file, &error));
    }
    let machine = match &arguments.root {
        Some(root) if !root.is_dir() => return Err(unusable(root, &"it is no directory")),
        Some(root) => Machine::below(root),
        None => Machine::this(),
    };
    Ok(if arguments.record.is_some() { machine.remembering() } else { machine })
}

fn unusable(file: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::usage(format!("{}: {why}", file.display()))
}

fn json(report: &impl Serialize) -> Result<String, Failure> {
    let mut text = serde_json::to_string_pretty(report).map_err(Failure::no)?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests;
