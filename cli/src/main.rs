//! The `farcall` command: finds out what keeps RDMA from working, measures links, and talks to servers.

mod call;
mod compat;
mod connect;
mod describe;
mod doctor;
mod explain;
mod health;
mod manual;
#[cfg(test)]
mod mutations;
mod output;
mod perf;
mod record;
mod replay;
mod serve;
mod target;
mod top;

use std::ops::RangeInclusive;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::runtime::{Builder, Runtime};

use crate::output::Failure;

/// Finds out what keeps RDMA from working, and talks to servers of farcall.
#[derive(Debug, Parser)]
#[command(
    name = "farcall",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Doctor(doctor::Arguments),
    Perf(perf::Arguments),
    Serve(serve::Arguments),
    Connect(connect::Arguments),
    List(describe::List),
    Describe(describe::Describe),
    Call(call::Call),
    Health(health::Arguments),
    Top(top::Arguments),
    Record(record::Arguments),
    Replay(replay::Arguments),
    Compat(compat::Arguments),
    Explain(explain::Arguments),
    Completions(manual::Completions),
    Manual(manual::Manual),
}

/// The exit status for wrong arguments: EX_USAGE of sysexits(3), so that 1 and 2 can be answers.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nothing can be done about a closed output.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    let result = match arguments.command {
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Perf(arguments) => perf::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Connect(arguments) => connect::run(&arguments),
        Command::List(arguments) => describe::list(&arguments),
        Command::Describe(arguments) => describe::describe(&arguments),
        Command::Call(arguments) => call::call(&arguments),
        Command::Health(arguments) => health::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Record(arguments) => record::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Compat(arguments) => compat::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Completions(arguments) => manual::completions(&arguments),
        Command::Manual(arguments) => manual::manual(&arguments),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(),
    }
}

/// Returns a runtime. One thread is this one.
fn runtime(threads: u16) -> Result<Runtime, Failure> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(threads.into()).enable_all().build().map_err(Failure::no)
}

/// Returns a parser of arguments that are numbers within these limits.
fn number(limits: RangeInclusive<f64>) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync {
    move |text| {
        let number = text.parse().ok().filter(|number| limits.contains(number));
        number.ok_or_else(|| format!("write a number from {} to {}", limits.start(), limits.end()))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn no_command_line_panics() {
        const WORDS: [&str; 44] = [
            "doctor",
            "perf",
            "serve",
            "call",
            "list",
            "describe",
            "health",
            "explain",
            "top",
            "record",
            "replay",
            "compat",
            "connect",
            "manual",
            "completions",
            "help",
            "--",
            "-",
            "-h",
            "-v",
            "--json",
            "--watch",
            "--watch=9",
            "--config",
            "--recorded",
            "--size",
            "64,4K",
            "1M",
            "--rate=",
            "--in-flight",
            "--pattern",
            "echo,read",
            "--transport",
            "tcp",
            "--seconds",
            "1e9",
            "-1",
            "é",
            "",
            "db1:1",
            "http://x",
            "\u{1f600}",
            "99999999999999999999",
            "{}",
        ];
        let mut random = fastrand::Rng::with_seed(2);
        let mut accepted = 0;
        for _ in 0..10_000 {
            let words = (0..random.usize(..6)).map(|_| WORDS[random.usize(..WORDS.len())]);
            accepted +=
                usize::from(Arguments::try_parse_from(std::iter::once("farcall").chain(words)).is_ok());
        }
        assert!(accepted > 100, "{accepted}");
    }
}
