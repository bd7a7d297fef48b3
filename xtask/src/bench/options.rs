//! The command line of `cargo xtask bench`.

use std::path::PathBuf;
use std::str::FromStr;

use super::plan::Part;
use crate::failure::{Failure, Result};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Options {
    /// All if empty.
    parts: Vec<Part>,
    pub(super) rounds: u32,
    /// How long each measurement takes, after a third of that to warm up.
    pub(super) seconds: f64,
    /// Measure nothing, show what was measured last.
    pub(super) report: bool,
    /// Measure what is measured in the VM, here and now, with this program of `benches/peers`.
    pub(super) guest: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { parts: Vec::new(), rounds: 5, seconds: 1.0, report: false, guest: None }
    }
}

impl Options {
    pub(super) fn includes(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }
}

pub(super) fn parse(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => (options.rounds, options.seconds) = (2, 0.3),
            "--report" => options.report = true,
            "--guest" => options.guest = args.next().map(PathBuf::from),
            "--rounds" => options.rounds = number(&arg, args.next().filter(|rounds| rounds != "0"))?,
            "--seconds" => options.seconds = number(&arg, args.next())?,
            "--only" => options.parts.push(part(args.next())?),
            _ => return Err(Failure::usage(format!("bench: unknown option {arg}"))),
        }
    }
    Ok(options)
}

fn number<N: FromStr>(option: &str, value: Option<String>) -> Result<N> {
    let number = value.and_then(|value| value.parse().ok());
    number.ok_or_else(|| Failure::usage(format!("bench: {option} needs a number")))
}

fn part(name: Option<String>) -> Result<Part> {
    let found = Part::ALL.iter().find(|part| name.as_deref() == Some(part.name()));
    found.copied().ok_or_else(|| {
        let names: Vec<_> = Part::ALL.iter().map(|part| part.name()).collect();
        Failure::usage(format!("bench: --only needs one of {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn without_names_everything_is_measured_and_with_them_only_that() {
        let (all, some) = (parsed("").unwrap(), parsed("--quick --only counts --only pinned").unwrap());
        assert!(Part::ALL.iter().all(|part| all.includes(*part)));
        let included: Vec<_> = Part::ALL.iter().filter(|part| some.includes(**part)).collect();
        assert_eq!(included, [&Part::Counts, &Part::Pinned]);
        assert!(some.rounds < all.rounds && some.seconds < all.seconds);
    }

    #[test]
    fn arguments_that_make_no_sense_are_refused() {
        for line in ["pinned", "--only", "--only tcp", "--rounds", "--rounds 0", "--rounds many"] {
            assert_eq!(parsed(line).unwrap_err().status(), 2, "{line}");
        }
    }
}
