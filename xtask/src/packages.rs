//! Debian's packages that the chores need.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::{Context as _, Failure, Result};
use crate::host::{self, TempDir};

/// Packages that the VM and its guest need: the guest's root file system is this machine's.
pub(crate) const VM: &[&str] =
    &["qemu-system-x86", "busybox-static", "kmod", "iproute2", "ibverbs-providers"];

/// Packages by which the tests of the VM drive its device, and its firewall.
pub(crate) const TESTS: &[&str] = &["ibverbs-utils", "nftables"];

/// The package by which others measure devices.
pub(crate) const PERFTEST: &[&str] = &["perftest"];

/// Packages that count instructions, allocations and system calls.
pub(crate) const COUNTING: &[&str] = &["valgrind", "strace"];

/// Other implementations of TLS, and of the ciphers by which links are sealed.
pub(crate) const TESTING: &[&str] = &["openssl", "python3-cryptography"];

/// The library by which tests set the clocks of processes.
pub(crate) const CLOCKS: &[&str] = &["libfaketime"];

/// The compiler that libFuzzer is built with.
pub(crate) const FUZZING: &[&str] = &["g++"];

/// Makes sure that `wanted` are installed: as root by installing what is missing, otherwise by telling the
/// user what to type.
pub(crate) fn ensure(wanted: &[&str]) -> Result<()> {
    let missing = missing(wanted)?;
    if missing.is_empty() {
        return Ok(());
    }
    if host::user_id()? != 0 {
        return Err(Failure::cannot_run(format!(
            "some packages are missing. Install them with\n  sudo apt-get install --no-install-recommends {}",
            missing.join(" ")
        )));
    }
    eprintln!("xtask: installing {}", missing.join(" "));
    let mut install = apt_get();
    install.args(["install", "--yes", "--no-install-recommends"]).args(&missing);
    with_fresh_lists(&mut install)
}

/// An `apt-get` that asks nothing and waits for another one to finish.
pub(crate) fn apt_get() -> Command {
    let mut command = host::system("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-qq", "-o", "DPkg::Lock::Timeout=600"]);
    command
}

/// Runs an `apt-get` command and, where it fails as root, again after `apt-get update`: a fresh machine has
/// no package lists, and an old one's lists name packages that are gone.
pub(crate) fn with_fresh_lists(command: &mut Command) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let Err(failure) = host::output(command) else { return Ok(()) };
    host::check_signals()?;
    if host::user_id()? != 0 {
        return Err(Failure::cannot_run(format!("{failure}\nTry again after\n  sudo apt-get update")));
    }
    host::output(apt_get().arg("update")).and_then(|_| host::output(command)).map(drop).map_err(cannot_run)
}

/// Downloads a package, and unpacks it in the directory `root` of `directory`, for programs that are not to be installed. Returns `root`.
pub(crate) fn unpack(package: &str, directory: &Path) -> Result<PathBuf> {
    // As root, apt would download as another user, who may not write here.
    with_fresh_lists(
        apt_get().args(["-o", "APT::Sandbox::User=root", "download", package]).current_dir(directory),
    )?;
    let archive = fs::read_dir(directory).context(directory.display())?.find_map(|entry| {
        let path = entry.ok()?.path();
        path.extension().is_some_and(|extension| extension == "deb").then_some(path)
    });
    let archive =
        archive.ok_or_else(|| Failure::cannot_run(format!("apt-get download {package} left no file")))?;
    let root = directory.join("root");
    host::output(host::system("dpkg-deb").arg("--extract").arg(archive).arg(&root))?;
    Ok(root)
}

/// Returns the program of etcd, which is unpacked once. Installing the package would start a server.
pub(crate) fn etcd() -> Result<PathBuf> {
    let target = host::target_dir()?;
    let program = target.join("tools/etcd");
    if !program.exists() {
        let temp = TempDir::new_in(&target)?;
        let unpacked = unpack("etcd-server", temp.path())?.join("usr/bin/etcd");
        fs::create_dir_all(target.join("tools")).context(program.display())?;
        fs::rename(unpacked, &program).context(program.display())?;
    }
    Ok(program)
}

fn cannot_run(failure: Failure) -> Failure {
    Failure::cannot_run(failure.to_string())
}

fn missing<'a>(wanted: &[&'a str]) -> Result<Vec<&'a str>> {
    let query = host::system("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status} ${Package}\\n"])
        .args(wanted)
        .output()
        .map_err(|error| Failure::cannot_run(format!("dpkg-query: {error}\nThis needs a Debian system.")))?;
    // Its exit status says whether it has heard of all of them; the answer holds for the rest either way.
    Ok(not_installed(wanted, &String::from_utf8_lossy(&query.stdout)))
}

fn not_installed<'a>(wanted: &[&'a str], answer: &str) -> Vec<&'a str> {
    let installed: HashSet<&str> =
        answer.lines().filter_map(|line| line.strip_prefix("installed ")).collect();
    wanted.iter().copied().filter(|package| !installed.contains(package)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_package_and_an_unknown_one_are_not_installed() {
        let answer = "installed kmod\nconfig-files busybox-static\n";
        assert_eq!(not_installed(&["kmod", "busybox-static", "qemu"], answer), ["busybox-static", "qemu"]);
    }
}
