//! The step `versions`: an earlier build and this one call each other.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Run;
use crate::failure::{Context, Failure, Result};
use crate::host::{self, cargo, quote};
use crate::packages;
use crate::vm::{self, Vm};

/// The last commit that changed this file is the earlier one.
const BASELINE: &str = "tests/versions/baseline.md";

/// The program: a client and a server that use all of the wire.
const PROGRAM: &str = "farcall-versions";

/// Has each of the two builds serve the other, over TCP and, in a VM, over RDMA.
pub(super) fn check(run: &mut Run) -> Result<()> {
    let Some(commit) = baseline() else {
        return run.skip("this is no git clone with its history, so there is no earlier build".to_owned());
    };
    packages::ensure(packages::VM)?;
    let earlier = build_earlier(run, &commit)?;
    run.cargo(&["build", "--package", PROGRAM])?;
    let this = host::target_dir()?.join("debug").join(PROGRAM);
    println!("the earlier build is of commit {commit}");
    let both_ways = both_ways(&this, &earlier);
    let over_tcp = format!("export FARCALL_TRANSPORT=tcp\n{both_ways}");
    run.checked(Command::new("sh").args(["-c", &over_tcp])).map_err(|_| differs("TCP"))?;
    let vm = Vm { timeout: Duration::from_secs(900), ..Vm::default() };
    match vm.run(&format!("export FARCALL_TRANSPORT=rdma\n{both_ways}"), vm::print)? {
        0 => Ok(()),
        _ => Err(differs("RDMA")),
    }
}

fn differs(transport: &str) -> Failure {
    Failure::failed(format!(
        "over {transport} the earlier build and this one do not understand each other; {BASELINE} tells what to do where \
         that is intended"
    ))
}

/// The commit to build, if there is one. In a shallow clone every file is of the last commit, which proves nothing.
fn baseline() -> Option<String> {
    let git = |args: &[&str]| {
        let said = host::output(Command::new("git").args(args).current_dir(host::workspace_dir())).ok()?;
        Some(said.trim().to_owned())
    };
    let is_shallow = git(&["rev-parse", "--is-shallow-repository"])? != "false";
    git(&["log", "-1", "--format=%H", "--", BASELINE]).filter(|commit| !is_shallow && !commit.is_empty())
}

/// Builds the program as it was at a commit; returns its path.
fn build_earlier(run: &mut Run, commit: &str) -> Result<PathBuf> {
    let directory = host::target_dir()?.join("versions");
    let tree = directory.join(commit);
    if !tree.is_dir() {
        let half = tree.with_extension("new");
        std::fs::create_dir_all(&half).context(half.display())?;
        let mut unpack = Command::new("sh");
        unpack.args(["-c", r#"git archive "$0" | tar -x -C "$1""#, commit]).arg(&half);
        host::output(unpack.current_dir(host::workspace_dir()))?;
        std::fs::rename(&half, &tree).context(tree.display())?;
    }
    let target = directory.join("target");
    let mut build = cargo();
    build.args(["build", "--locked", "--package", PROGRAM, "--manifest-path"]).arg(tree.join("Cargo.toml"));
    run.checked(build.arg("--target-dir").arg(&target))?;
    Ok(target.join("debug").join(PROGRAM))
}

/// A shell script in which each program calls a server of the other.
fn both_ways(this: &Path, earlier: &Path) -> String {
    let [this, earlier] = [this, earlier].map(|program| quote(&program.display().to_string()));
    format!(
        "set -e
        echo 'this client, earlier server'; {this} call {earlier} 127.0.0.1:0
        echo 'earlier client, this server'; {earlier} call {this} 127.0.0.1:0"
    )
}
