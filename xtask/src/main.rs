//! The project's own chores, run as `cargo xtask`. `docs/TESTING.md` says how they are used.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command speaks through its output")]

mod bench;
mod demo;
mod failure;
mod fuzz;
mod host;
mod packages;
mod test;
mod tidy;
mod vm;

use std::ffi::OsString;
use std::process::ExitCode;

use failure::{Failure, Result};

const USAGE: &str = "\
Usage: cargo xtask demo [--tls]                       real files through a key-value service, over TCP and RDMA
       cargo xtask vm [OPTIONS] -- COMMAND [ARG...]   run a command in a VM that has an RDMA device
       cargo xtask vm [OPTIONS] --pair A B            run shell commands A and B in two VMs joined by a wire
       cargo xtask test [--long] [STEP...] [-- ARG...]
                                                      run what CI runs, or the named steps of it;
                                                      ARGs go to the test programs
       cargo xtask bench [--quick] [--rounds N] [--only PART]... [--report]
                                                      measure calls, and what others do with theirs
       cargo xtask fuzz [--seconds N] [--keep] [TARGET...]
                                                      look for inputs of a hostile peer that break a promise

Options of vm:
  --cpus N          virtual CPUs of each VM (2; with --pair 1)
  --memory MIB      memory of each VM (2048)
  --timeout SECS    how long the command may take, the boot apart (600)
  --no-rdma         no RDMA device
  --user            run the command as an ordinary user, who may not lock memory beyond the limit
  --memlock KIB     with --user: the limit on locked memory (unlimited)

Exit status of vm: the command's own (with --pair the first that is not 0), or
  2 usage, 3 could not run here, 124 timed out, 125 the VM failed, 128+N ended by signal N";

fn main() -> ExitCode {
    match run(std::env::args_os().skip(1).collect()) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::from(failure.status())
        }
    }
}

/// Runs the chore that `args` name and returns its exit status.
fn run(args: Vec<OsString>) -> Result<u8> {
    let args = args
        .into_iter()
        .map(|arg| arg.into_string().map_err(|arg| Failure::usage(format!("not UTF-8: {arg:?}"))))
        .collect::<Result<Vec<String>>>()?;
    if asks_for_help(&args) {
        println!("{USAGE}");
        return Ok(0);
    }
    host::catch_signals()?;
    let mut args = args.into_iter();
    match args.next().as_deref() {
        Some("vm") => vm::command(args),
        Some("bench") => bench::command(args),
        Some("demo") => demo::command(args),
        Some("fuzz") => fuzz::command(args),
        Some("test") => test::command(args),
        Some(other) => Err(Failure::usage(format!("no such chore: {other}\n{USAGE}"))),
        None => Err(Failure::usage(USAGE)),
    }
}

/// Whether the user asks for help, of a chore, too, as in `vm --help`. Arguments after `--` are for another program.
fn asks_for_help(args: &[String]) -> bool {
    args.first().is_some_and(|first| first == "help")
        || args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--help" || arg == "-h")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_asked_for_anywhere_but_in_the_command_to_run() {
        let asks = |line: &str| asks_for_help(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for line in ["help", "-h", "--help", "vm --help", "demo --help", "test --long -h", "vm --help -- ls"]
        {
            assert!(asks(line), "{line}");
        }
        for line in ["vm -- ls --help", "test vm -- --help", "vm help"] {
            assert!(!asks(line), "{line}");
        }
    }
}
