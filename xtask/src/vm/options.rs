//! The command line of `cargo xtask vm`.

use std::time::Duration;

use super::{Vm, print};
use crate::failure::{Failure, Result};
use crate::host;

/// The command to run.
#[derive(Debug, PartialEq, Eq)]
enum Run {
    One(String),
    Pair(String, String),
}

/// Runs `cargo xtask vm` with these arguments; returns the exit status of what ran inside.
pub(crate) fn command(args: impl Iterator<Item = String>) -> Result<u8> {
    let (vm, run) = parse(args)?;
    match run {
        Run::One(command) => vm.run(&command, print),
        Run::Pair(first, second) => vm.run_pair([&first, &second], print),
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<(Vm, Run)> {
    let mut vm = Vm::default();
    let run = loop {
        let Some(arg) = args.next() else {
            return Err(Failure::usage("vm: say what to run: -- COMMAND [ARG...], or --pair A B"));
        };
        match arg.as_str() {
            "--cpus" => vm.cpus = Some(number(&arg, args.next())?),
            "--memory" => vm.memory_mib = number(&arg, args.next())?,
            "--timeout" => vm.timeout = Duration::from_secs(u64::from(number::<u32>(&arg, args.next())?)),
            "--no-rdma" => vm.rdma = false,
            "--user" => vm.user = true,
            "--memlock" => vm.memlock_kib = Some(number(&arg, args.next())?),
            "--" => {
                let words: Vec<String> = args.by_ref().map(|word| host::quote(&word)).collect();
                if words.is_empty() {
                    return Err(Failure::usage("vm: no command after --"));
                }
                break Run::One(format!("exec {}", words.join(" ")));
            }
            "--pair" => match (args.next(), args.next()) {
                (Some(first), Some(second)) => break Run::Pair(first, second),
                _ => return Err(Failure::usage("vm: --pair needs two shell commands")),
            },
            _ => return Err(Failure::usage(format!("vm: unknown option {arg}; the command comes after --"))),
        }
    };
    if let Some(extra) = args.next() {
        return Err(Failure::usage(format!("vm: unexpected {extra} after the two commands")));
    }
    if vm.memlock_kib.is_some() && !vm.user {
        return Err(Failure::usage("vm: --memlock needs --user, for root may lock any amount"));
    }
    Ok((vm, run))
}

fn number<N: std::str::FromStr>(option: &str, value: Option<String>) -> Result<N> {
    value
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| Failure::usage(format!("vm: {option} needs a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[&str]) -> Result<(Vm, Run)> {
        parse(line.iter().map(|arg| (*arg).to_owned()))
    }

    #[test]
    fn options_come_before_the_command_and_its_own_are_left_alone() {
        let (vm, run) = parsed(&["--cpus", "3", "--no-rdma", "--", "ls", "--user", "a b"]).unwrap();
        assert_eq!((vm.cpus, vm.rdma, vm.user), (Some(3), false, false));
        assert_eq!(run, Run::One("exec 'ls' '--user' 'a b'".to_owned()));
    }

    #[test]
    fn a_pair_takes_two_shell_commands() {
        let (_, run) = parsed(&["--timeout", "9", "--pair", "a | b", "c"]).unwrap();
        assert_eq!(run, Run::Pair("a | b".to_owned(), "c".to_owned()));
    }

    #[test]
    fn arguments_that_make_no_sense_are_refused() {
        for line in [
            &[][..],
            &["--"],
            &["ls"],
            &["--pair", "a"],
            &["--pair", "a", "b", "c"],
            &["--cpus", "many", "--", "ls"],
            &["--cpus"],
            &["--memlock", "64", "--", "ls"],
        ] {
            assert_eq!(parsed(line).unwrap_err().status(), 2, "{line:?}");
        }
    }
}
