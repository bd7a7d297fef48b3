//! One guest: what it is called, where it stands on the network, what it runs.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::{Vm, qemu};
use crate::failure::{Context, Result};
use crate::host;

/// A guest and the place in the network that it has.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) name: &'static str,
    /// The other end of the wire, if there is one.
    peer: Option<&'static Self>,
    address: &'static str,
    net_device: &'static str,
    mac: &'static str,
}

pub(super) static ALONE: Guest =
    Guest { name: "vm", peer: None, address: "192.168.77.1", net_device: "d0", mac: "" };

pub(super) static PAIR: [Guest; 2] = [
    Guest {
        name: "h1",
        peer: Some(&PAIR[1]),
        address: "10.99.0.1",
        net_device: "eth0",
        mac: "52:54:00:00:00:01",
    },
    Guest {
        name: "h2",
        peer: Some(&PAIR[0]),
        address: "10.99.0.2",
        net_device: "eth0",
        mac: "52:54:00:00:00:02",
    },
];

impl Guest {
    pub(super) fn is_paired(&self) -> bool {
        self.peer.is_some()
    }

    /// Adds the network to QEMU's command line. The wire is a datagram socket at each end, in `dir`.
    pub(super) fn wire(&self, command: &mut Command, dir: &Path) {
        let Some(peer) = self.peer else { return };
        let socket = |name: &str| dir.join(format!("{name}.wire"));
        let local = qemu::option("dgram,id=wire,local.type=unix,local.path=", &socket(self.name), "");
        let both = qemu::option(&format!("{local},remote.type=unix,remote.path="), &socket(peer.name), "");
        command.args(["-netdev", &both]);
        command.args(["-device", &format!("virtio-net-pci,netdev=wire,mac={},host_mtu=4500", self.mac)]);
    }

    /// Returns the settings of `guest.sh`, and the command's environment, in shell.
    pub(super) fn settings(&self, vm: &Vm, out: &Path) -> Result<String> {
        let directory = std::env::current_dir().context("the current directory")?;
        let memlock = vm.memlock_kib.map_or_else(|| "unlimited".to_owned(), |kib| kib.to_string());
        let user = if vm.user { ordinary_user()?.to_string() } else { String::new() };
        let mut settings = String::new();
        let mut set = |name: &str, value: &str| {
            // Writing to a String does not fail.
            let _ = writeln!(settings, "{name}={}", host::quote(value));
        };
        set("host_name", self.name);
        set("net_device", self.net_device);
        set("address", self.address);
        set("peer", self.peer.map_or("", |peer| peer.address));
        set("rdma", if vm.rdma { "yes" } else { "no" });
        set("user", &user);
        set("memlock", &memlock);
        set("directory", &directory.display().to_string());
        set("out", &out.display().to_string());
        for (name, value) in self.environment(vm, out) {
            set(&format!("export {name}"), &value);
        }
        Ok(settings)
    }

    fn environment(&self, vm: &Vm, out: &Path) -> Vec<(String, String)> {
        let mut variables: Vec<_> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| is_carried(name))
            .collect();
        let path = std::env::var("PATH").unwrap_or_default();
        variables.push(("PATH".to_owned(), format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin")));
        variables.push(("FARCALL_VM_OUT".to_owned(), out.display().to_string()));
        if vm.rdma {
            variables.push(("FARCALL_RDMA".to_owned(), "required".to_owned()));
        }
        if let Some(number) = PAIR.iter().position(|guest| guest.name == self.name) {
            variables.push(("FARCALL_HOST".to_owned(), (number + 1).to_string()));
        }
        variables
    }
}

/// Whether a variable of the caller's environment is the command's too: what this project and Rust's tools
/// read, if its name is one that a shell can set.
fn is_carried(name: &str) -> bool {
    (name == "HOME" || name.starts_with("FARCALL_") || name.starts_with("RUST_"))
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The caller, to whom the shared directory belongs, unless that is root.
fn ordinary_user() -> Result<u32> {
    Ok(match host::user_id()? {
        0 => 1000,
        user => user,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_projects_and_rusts_variables_are_carried() {
        for name in ["HOME", "FARCALL_RDMA", "RUST_BACKTRACE", "RUST_LOG"] {
            assert!(is_carried(name), "{name}");
        }
        for name in ["PATH", "LD_PRELOAD", "CARGO_HOME", "RUST_a b", "FARCALL_$(x)"] {
            assert!(!is_carried(name), "{name}");
        }
    }
}
