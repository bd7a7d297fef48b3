//! Steps that depend on what is installed: other toolchains, other targets' standard libraries, Miri.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::Run;
use crate::failure::{Context, Failure, Result};
use crate::host::{self, TempDir, cargo};

/// Features of `farcall` that change what is compiled.
pub(super) const FEATURES: &[&str] = &[
    "tcp", "rdma", "tls", "tls-ring", "toml", "prost", "lz4", "zstd", "metrics", "tower", "systemd", "dns",
    "testing",
];

/// Crates that must build, with their tests, where no feature is on.
const BY_THEMSELVES: &[&str] =
    &["farcall", "farcall-segments", "farcall-proto", "farcall-core", "farcall-tcp", "farcall-rdma"];

/// Crates whose unit tests Miri runs: those without I/O.
const MIRI: &[&str] = &["farcall-segments", "farcall-proto"];

impl Run {
    /// Checks `farcall` with every two of its features, and each crate and its tests with none.
    pub(super) fn features(&mut self) -> Result<()> {
        for package in BY_THEMSELVES {
            let check = ["check", "--package", package, "--all-targets", "--no-default-features"];
            self.checked(cargo().args(check).env("RUSTFLAGS", "-D warnings"))?;
        }
        for (i, one) in FEATURES.iter().enumerate() {
            for other in &FEATURES[i + 1..] {
                let two = format!("{one},{other}");
                let check = ["check", "--package", "farcall", "--no-default-features", "--features", &two];
                self.checked(cargo().args(check).env("RUSTFLAGS", "-D warnings"))?;
            }
        }
        Ok(())
    }

    /// Checks the workspace with the oldest versions of its dependencies that the manifests allow.
    pub(super) fn minimal(&mut self) -> Result<()> {
        let copy = TempDir::new_in(&host::target_dir()?)?;
        copy_workspace(copy.path())?;
        let mut update = cargo();
        update.args(["update", "--quiet", "-Z", "direct-minimal-versions"]);
        // Choosing such versions is unstable; the result is a lock file like any other.
        update.env("RUSTC_BOOTSTRAP", "1").current_dir(copy.path());
        host::output(&mut update)?;
        let target = host::target_dir()?.join("minimal");
        let manifest = copy.path().join("Cargo.toml");
        let check = ["check", "--workspace", "--all-features", "--manifest-path"];
        self.checked(cargo().args(check).arg(manifest).arg("--target-dir").arg(target))
    }

    /// Checks the published crates with the oldest Rust that the manifest names.
    pub(super) fn msrv(&mut self) -> Result<()> {
        let manifest = host::workspace_dir().join("Cargo.toml");
        let manifest = fs::read_to_string(&manifest).context(manifest.display())?;
        let oldest = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
        let oldest =
            oldest.ok_or_else(|| Failure::failed("Cargo.toml has no rust-version"))?.trim_matches('"');
        let is_it = |name: &&str| name.split(['.', '-']).take(2).eq(oldest.split('.').take(2));
        let toolchains = toolchains();
        let Some(toolchain) = toolchains.iter().map(String::as_str).find(is_it) else {
            return self.skip(format!("no Rust {oldest} here; `rustup toolchain install {oldest}` gets it"));
        };
        let target = host::target_dir()?.join("msrv");
        let mut check = Command::new("cargo");
        check.arg(format!("+{toolchain}")).args([
            "check",
            "--package",
            "farcall",
            "--all-features",
            "--target-dir",
        ]);
        self.checked(clean(check.arg(target)))
    }

    /// Checks `farcall` for every other target whose standard library is installed.
    pub(super) fn targets(&mut self) -> Result<()> {
        let root = host::output(Command::new("rustc").args(["--print", "sysroot"]))?;
        let libraries = Path::new(root.trim()).join("lib/rustlib");
        let this = host::triple()?;
        let mut others = Vec::new();
        for entry in fs::read_dir(&libraries).context(libraries.display())? {
            let path = entry.context(libraries.display())?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.join("lib").is_dir() && name != this {
                others.push(name.to_owned());
            }
        }
        if others.is_empty() {
            return self.skip(format!("only {this} is installed; `rustup target add` gets others"));
        }
        for other in others {
            // No C compiler for that target is needed to check what has no C in it.
            let features =
                ["--no-default-features", "--features", "tcp,rdma,tls,toml,prost,lz4,metrics,tower,systemd"];
            self.checked(cargo().args(["check", "--package", "farcall", "--target", &other]).args(features))?;
        }
        Ok(())
    }

    /// Runs the unit tests of the crates without I/O in Miri, which finds undefined behaviour.
    pub(super) fn miri(&mut self) -> Result<()> {
        let installed = |toolchain: &&String| {
            let mut version = Command::new("cargo");
            version.arg(format!("+{toolchain}")).args(["miri", "--version"]);
            host::output(clean(&mut version)).is_ok()
        };
        let toolchains = toolchains();
        let Some(toolchain) = toolchains.iter().find(installed) else {
            return self
                .skip("no toolchain here has Miri; `rustup +nightly component add miri` gets it".to_owned());
        };
        let target = host::target_dir()?.join("miri");
        let mut miri = Command::new("cargo");
        miri.arg(format!("+{toolchain}")).args(["miri", "test", "--lib", "--target-dir"]).arg(target);
        miri.args(MIRI.iter().flat_map(|package| ["--package", package]));
        self.checked(clean(&mut miri))
    }
}

/// The toolchains that rustup has; none where there is no rustup.
fn toolchains() -> Vec<String> {
    let list = host::output(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
    list.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Removes what the cargo that runs this program tells its children, so that another toolchain's cargo is itself.
fn clean(command: &mut Command) -> &mut Command {
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    command
}

/// Copies what belongs to the repository, changes that are not committed included.
fn copy_workspace(to: &Path) -> Result<()> {
    let mut copy = Command::new("sh");
    copy.args(["-c", r#"git ls-files -co --exclude-standard -z | xargs -0 cp --parents -t "$0""#]).arg(to);
    host::output(copy.current_dir(host::workspace_dir())).map(drop)
}
