//! The step `versions`, in which an earlier build and this one call each other, and the earlier build of the store for the step `raft-kv`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Run;
use crate::failure::{Context, Failure, Result};
use crate::host::{self, cargo, quote};
use crate::packages;
use crate::vm::{self, Vm};

/// Names the earlier commit of the wire.
const WIRE: &str = "tests/versions/baseline.md";
/// Names the earlier commit of the store, which is younger than the wire.
const STORE: &str = "examples/raft-kv/tests/baseline.md";

/// The program: a client and a server that use all of the wire.
const PROGRAM: &str = "farcall-versions";

/// Has each of the two builds serve the other, over TCP and, in a VM, over RDMA.
pub(super) fn check(run: &mut Run) -> Result<()> {
    let Some(earlier) = Earlier::named_in(WIRE)? else {
        return run
            .skip(format!("this clone lacks the commit that {WIRE} names, so there is no earlier build"));
    };
    packages::ensure(packages::VM)?;
    let earlier = earlier.build(run, "Cargo.toml", PROGRAM)?;
    // With the features that the tests are built with, so that little is built anew.
    run.cargo(&["build", "--workspace", "--all-features", "--bin", PROGRAM])?;
    let this = host::target_dir()?.join("debug").join(PROGRAM);
    let both_ways = both_ways(&this, &earlier);
    let over_tcp = format!("export FARCALL_TRANSPORT=tcp\n{both_ways}");
    run.checked(Command::new("sh").args(["-c", &over_tcp])).map_err(|_| differs("TCP"))?;
    let vm = Vm { timeout: Duration::from_secs(900), ..Vm::default() };
    match vm.run(&format!("export FARCALL_TRANSPORT=rdma\n{both_ways}"), vm::print)? {
        0 => Ok(()),
        _ => Err(differs("RDMA")),
    }
}

/// Has a cluster of the store go from the earlier build to this one and back. `tests` are cargo's arguments for the store's tests.
pub(super) fn upgrade(run: &mut Run, tests: &[&str]) -> Result<()> {
    let Some(earlier) = Earlier::named_in(STORE)? else {
        return run
            .skip(format!("the tests ran, but no upgrade: this clone lacks the commit that {STORE} names"));
    };
    let earlier = earlier.build(run, "examples/raft-kv/Cargo.toml", "raft-kv")?;
    let mut test = cargo();
    test.env("RAFT_KV_EARLIER", earlier).arg("test").args(tests);
    run.checked(test.args(["--test", "upgrade", "--", "--nocapture"]))
}

fn differs(transport: &str) -> Failure {
    Failure::failed(format!(
        "over {transport} the earlier build and this one do not understand each other; {WIRE} tells what to do where \
         that is intended"
    ))
}

/// An earlier commit.
struct Earlier(String);

impl Earlier {
    /// Finds the commit that a file names. `None`: this is a shallow clone, or none at all, and lacks that commit.
    fn named_in(file: &str) -> Result<Option<Self>> {
        let path = host::workspace_dir().join(file);
        let text = std::fs::read_to_string(&path).context(path.display())?;
        let commit = commit_in(&text).ok_or_else(|| Failure::failed(format!("{file} names no commit")))?;
        let mut find = Command::new("git");
        find.args(["cat-file", "-e", &format!("{commit}^{{commit}}")]).current_dir(host::workspace_dir());
        Ok(host::output(&mut find).is_ok().then(|| Self(commit.to_owned())))
    }

    /// Builds a program of a workspace as it was then; returns the program's path.
    fn build(&self, run: &mut Run, manifest: &str, program: &str) -> Result<PathBuf> {
        println!("the earlier build is of commit {}", self.0);
        let directory = host::target_dir()?.join("versions");
        let tree = self.unpack(&directory)?;
        let target = directory.join("target");
        let mut build = cargo();
        build.args(["build", "--locked", "--package", program, "--manifest-path"]).arg(tree.join(manifest));
        run.checked(build.arg("--target-dir").arg(&target))?;
        Ok(target.join("debug").join(program))
    }

    /// Unpacks the sources, unless an earlier run did. Returns where they are.
    fn unpack(&self, directory: &Path) -> Result<PathBuf> {
        let tree = directory.join(&self.0);
        if !tree.is_dir() {
            let half = tree.with_extension("new");
            std::fs::create_dir_all(&half).context(half.display())?;
            let mut unpack = Command::new("sh");
            unpack.args(["-c", r#"git archive "$0" | tar -x -C "$1""#, &self.0]).arg(&half);
            host::output(unpack.current_dir(host::workspace_dir()))?;
            std::fs::rename(&half, &tree).context(tree.display())?;
        }
        Ok(tree)
    }
}

/// Returns the first word between backticks that is a full commit number.
fn commit_in(text: &str) -> Option<&str> {
    let mut words = text.split('`').skip(1).step_by(2);
    words.find(|word| word.len() == 40 && word.bytes().all(|byte| byte.is_ascii_hexdigit()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_baseline_names_a_commit() {
        for file in [WIRE, STORE] {
            let text = std::fs::read_to_string(host::workspace_dir().join(file)).unwrap();
            assert!(commit_in(&text).is_some(), "{file}");
        }
    }

    #[test]
    fn a_word_that_is_no_commit_is_passed_over() {
        let commit = "40708901faf42360e38e32ef6ce0502ea42a4c90";
        assert_eq!(commit_in(&format!("`raft-kv`, `{}g`: `{commit}`", &commit[1..])), Some(commit));
        assert_eq!(commit_in(commit), None);
    }
}
