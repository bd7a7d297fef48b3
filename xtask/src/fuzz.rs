//! `cargo xtask fuzz`: looks for inputs that make farcall break a promise to a hostile peer.
//!
//! The targets are in `fuzz`. The stable compiler builds them for libFuzzer: the flags below add the coverage counters
//! that libFuzzer steers by (<https://clang.llvm.org/docs/SanitizerCoverage.html>).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Context, Failure, Result};
use crate::host::{self, cargo};
use crate::packages;

const USAGE: &str = "\
usage: cargo xtask fuzz [--seconds N] [--keep] [TARGET...]
  --seconds N   how long each target runs (60)
  --keep        add the inputs that reach new code to fuzz/corpus";

/// Coverage counters for every edge, a table of addresses, and the operands of comparisons.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// The longest that one input may take, in seconds.
const TIMEOUT: u32 = 20;

/// The most memory that a target may take, in MiB.
const MEMORY: u32 = 1024;

/// The command line.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    seconds: u32,
    keep: bool,
    targets: Vec<String>,
}

/// Runs `cargo xtask fuzz` with these arguments.
pub(crate) fn command(args: impl Iterator<Item = String>) -> Result<u8> {
    let Options { seconds, keep, targets } = parse(args)?;
    let fuzzer = Fuzzer::build(&targets)?;
    fuzzer.run(seconds)?;
    if keep {
        fuzzer.keep()?;
    }
    Ok(0)
}

/// Runs every target for this long.
pub(crate) fn all(seconds: u32) -> Result<()> {
    Fuzzer::build(&[])?.run(seconds)
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options { seconds: 60, keep: false, targets: Vec::new() };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => {
                let seconds = args.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                options.seconds = seconds.ok_or_else(|| Failure::usage("--seconds takes a number from 1"))?;
            }
            "--keep" => options.keep = true,
            flag if flag.starts_with('-') => {
                return Err(Failure::usage(format!("fuzz: no option {flag}\n{USAGE}")));
            }
            _ => options.targets.push(arg),
        }
    }
    Ok(options)
}

/// Targets that are built.
#[derive(Debug)]
struct Fuzzer {
    targets: Vec<String>,
    programs: PathBuf,
    /// Where inputs that reach new code are kept from one run to the next, a directory a target.
    found: PathBuf,
    /// Where inputs go that break a promise.
    findings: PathBuf,
}

impl Fuzzer {
    /// Builds these targets; all if none is named.
    fn build(wanted: &[String]) -> Result<Self> {
        let all = targets()?;
        if let Some(unknown) = wanted.iter().find(|target| !all.contains(target)) {
            return Err(Failure::usage(format!("fuzz: no target {unknown}; there are {}", all.join(", "))));
        }
        // libFuzzer is C++.
        packages::ensure(packages::FUZZING)?;
        let directory = host::target_dir()?.join("fuzz");
        // With a target triple, build scripts and macros are built without the counters.
        let triple = host::triple()?;
        let mut build = cargo();
        build.args([
            "build",
            "--package",
            "farcall-fuzz",
            "--bins",
            "--profile",
            "fuzz",
            "--target",
            &triple,
        ]);
        build
            .env("RUSTFLAGS", COVERAGE)
            .env("CARGO_TARGET_DIR", &directory)
            .current_dir(host::workspace_dir());
        if !build.status().context("cargo build")?.success() {
            return Err(Failure::failed("the fuzz targets do not build"));
        }
        Ok(Self {
            targets: if wanted.is_empty() { all } else { wanted.to_vec() },
            programs: directory.join(&triple).join("fuzz"),
            found: directory.join("corpus"),
            findings: directory.join("findings"),
        })
    }

    /// Runs each target for this long. A finding ends its target; the others have their turn.
    fn run(&self, seconds: u32) -> Result<()> {
        fs::create_dir_all(&self.findings).context(self.findings.display())?;
        let mut failures = Vec::new();
        for target in &self.targets {
            let found = self.found.join(target);
            fs::create_dir_all(&found).context(found.display())?;
            let prefix = format!("-artifact_prefix={}/{target}-", self.findings.display());
            let mut fuzz = self.program(target);
            fuzz.args([format!("-max_total_time={seconds}"), prefix, "-print_final_stats=1".to_owned()]);
            fuzz.arg(&found).arg(corpus(target));
            let log = self.findings.join(format!("{target}.log"));
            let ended = run_to(&mut fuzz, &log)?;
            let said = fs::read_to_string(&log).context(log.display())?;
            match ended {
                true => println!("{target}: {}", summary(&said)),
                false => failures.push(finding(target, &said, &log)),
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(Failure::failed(failures.join("\n"))) }
    }

    /// Copies inputs that reach code which the corpus does not reach.
    fn keep(&self) -> Result<()> {
        for target in &self.targets {
            let corpus = corpus(target);
            fs::create_dir_all(&corpus).context(corpus.display())?;
            let mut merge = self.program(target);
            // By edges alone: how often an edge is taken would keep several times as many inputs.
            merge.args(["-set_cover_merge=1", "-use_counters=0"]).arg(&corpus).arg(self.found.join(target));
            let log = self.findings.join(format!("{target}.log"));
            if !run_to(&mut merge, &log)? {
                return Err(Failure::failed(format!("{target}: merging failed; see {}", log.display())));
            }
            println!("{target}: {} inputs in {}", files(&corpus)?, corpus.display());
        }
        Ok(())
    }

    fn program(&self, target: &str) -> Command {
        let mut program = Command::new(self.programs.join(target));
        program.args([format!("-timeout={TIMEOUT}"), format!("-rss_limit_mb={MEMORY}")]);
        program
    }
}

/// The names of the targets: those of the files in `fuzz/targets`.
fn targets() -> Result<Vec<String>> {
    let directory = host::workspace_dir().join("fuzz/targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&directory).context(directory.display())? {
        let path = entry.context(directory.display())?.path();
        names.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// The inputs that are part of the repository.
fn corpus(target: &str) -> PathBuf {
    host::workspace_dir().join("fuzz/corpus").join(target)
}

fn files(directory: &Path) -> Result<usize> {
    Ok(fs::read_dir(directory).context(directory.display())?.count())
}

/// Runs a program whose words go to a file; false if it ends with an error.
fn run_to(command: &mut Command, log: &Path) -> Result<bool> {
    let file = fs::File::create(log).context(log.display())?;
    command.stderr(file).current_dir(host::workspace_dir());
    Ok(host::stream(command, |_| {})?.success())
}

/// How many inputs were tried, and how many of them reach code of their own.
fn summary(said: &str) -> String {
    let number = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        line.map_or("?", str::trim).to_owned()
    };
    let (tried, new) = (number("stat::number_of_executed_units:"), number("stat::new_units_added:"));
    format!("{tried} inputs, {new} of them new")
}

/// Tells what was found, and how to see it again.
fn finding(target: &str, said: &str, log: &Path) -> String {
    let panic = said.lines().skip_while(|line| !line.contains("panicked at")).take(2);
    let mut why: String = panic.collect::<Vec<_>>().join(" ");
    if why.is_empty() {
        why = said.lines().find(|line| line.contains("ERROR: libFuzzer")).unwrap_or("it failed").to_owned();
    }
    let input = said.lines().find_map(|line| line.split_once("Test unit written to "));
    let again = input.map_or_else(
        || format!("see {}", log.display()),
        |(_, path)| format!("reproduce it with\n  cargo run --package farcall-fuzz --bin {target} -- {path}"),
    );
    format!("{target}: {why}\n{again}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[&str]) -> Result<Options> {
        parse(line.iter().map(|arg| (*arg).to_owned()))
    }

    #[test]
    fn options_are_read_and_wrong_ones_refused() {
        let expected = Options { seconds: 5, keep: true, targets: vec!["frames".to_owned()] };
        assert_eq!(parsed(&["--seconds", "5", "frames", "--keep"]).unwrap(), expected);
        for wrong in [&["--seconds"][..], &["--seconds", "0"], &["--second", "5"]] {
            assert_eq!(parsed(wrong).unwrap_err().status(), 2, "{wrong:?}");
        }
    }

    #[test]
    fn a_finding_names_its_panic_and_how_to_see_it_again() {
        let said = "INFO: x\nthread '<unnamed>' panicked at rpc-proto/src/wire/read.rs:5:1:\nplanted\n\
            artifact_prefix='/t/'; Test unit written to /t/frames-crash-1\n";
        let told = finding("frames", said, Path::new("/t/log"));
        assert!(told.contains("read.rs:5:1: planted"), "{told}");
        assert!(
            told.contains("cargo run --package farcall-fuzz --bin frames -- /t/frames-crash-1"),
            "{told}"
        );
        assert!(
            finding("frames", "==1== ERROR: libFuzzer: timeout", Path::new("/t/log")).contains("timeout")
        );
    }

    #[test]
    fn every_target_has_a_corpus() {
        let targets = targets().unwrap();
        assert!(targets.contains(&"frames".to_owned()));
        for target in targets {
            assert!(files(&corpus(&target)).unwrap() > 10, "{target}");
        }
    }
}
