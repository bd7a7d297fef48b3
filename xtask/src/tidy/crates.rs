//! The rule of which crate may depend on which.

use std::path::Path;

use serde::Deserialize;

use crate::failure::{Context, Result};
use crate::host::{self, cargo};

/// The crates of the workspace that each of them may depend on, tests apart.
const MAY_USE: &[(&str, &[&str])] = &[
    ("farcall-segments", &[]),
    ("farcall-proto", &["farcall-segments"]),
    ("farcall-core", &["farcall-proto"]),
    ("farcall-macros", &[]),
    ("farcall-tcp", &["farcall-core"]),
    ("farcall-rdma", &["farcall-core"]),
    ("farcall", &["farcall-core", "farcall-macros", "farcall-tcp", "farcall-rdma"]),
    ("farcall-cli", &["farcall"]),
    ("farcall-fuzz", &["farcall", "farcall-core", "farcall-tcp", "farcall-rdma"]),
    ("farcall-misuse", &["farcall"]),
    ("farcall-versions", &["farcall"]),
    ("xtask", &[]),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `null` for an ordinary one, else `dev` or `build`.
    kind: Option<String>,
}

/// Returns each dependency that is not allowed, in words.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut command = cargo();
    command
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(root.join("Cargo.toml"));
    let metadata: Metadata = serde_json::from_str(&host::output(&mut command)?).context("cargo metadata")?;
    Ok(forbidden(&metadata))
}

fn forbidden(metadata: &Metadata) -> Vec<String> {
    let mut found = Vec::new();
    for Package { name, dependencies } in &metadata.packages {
        let Some((_, allowed)) = MAY_USE.iter().find(|(package, _)| package == name) else {
            found.push(format!(
                "{name} is a new crate: say in xtask/src/tidy/crates.rs what it may depend on"
            ));
            continue;
        };
        let used = dependencies.iter().filter(|used| used.kind.as_deref() != Some("dev"));
        let used = used.filter(|used| metadata.packages.iter().any(|package| package.name == used.name));
        for used in used.filter(|used| !allowed.contains(&&*used.name)) {
            found.push(format!("{name} depends on {}", used.name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, uses: &[(&str, Option<&str>)]) -> Package {
        let dependency = |(name, kind): &(&str, Option<&str>)| Dependency {
            name: (*name).to_owned(),
            kind: kind.map(str::to_owned),
        };
        Package { name: name.to_owned(), dependencies: uses.iter().map(dependency).collect() }
    }

    #[test]
    fn a_transport_that_names_the_other_is_found() {
        let tcp = package("farcall-tcp", &[("farcall-core", None), ("farcall-rdma", None), ("bytes", None)]);
        let rdma = package("farcall-rdma", &[("farcall-tcp", Some("dev"))]);
        let core = package("farcall-core", &[("farcall-proto", None)]);
        let metadata = Metadata { packages: vec![tcp, rdma, core] };
        assert_eq!(forbidden(&metadata), ["farcall-tcp depends on farcall-rdma"]);
    }
}
