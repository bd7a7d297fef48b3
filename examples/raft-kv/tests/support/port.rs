//! The RDMA device's port, which can go down and come up. All nodes use it.

use std::path::Path;
use std::process::Command;

/// The network device below the RDMA device of farcall's VM.
const NETWORK_DEVICE: &str = "d0";

/// A port that is up when this is dropped.
pub(crate) struct Port(());

impl Port {
    /// Returns the port of farcall's VM. Returns none on other machines.
    pub(crate) fn of_vm() -> Option<Self> {
        Path::new("/sys/class/net").join(NETWORK_DEVICE).exists().then_some(Self(()))
    }

    pub(crate) fn take_down(&self) {
        set("down");
    }

    pub(crate) fn bring_up(&self) {
        set("up");
    }
}

fn set(state: &str) {
    let status = Command::new("ip").args(["link", "set", NETWORK_DEVICE, state]).status().unwrap();
    assert!(status.success(), "{NETWORK_DEVICE} can't be set {state}");
}

impl Drop for Port {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "set", NETWORK_DEVICE, "up"]).status();
    }
}
