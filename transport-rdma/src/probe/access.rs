//! The right to open devices' nodes, in containers and outside of them.

use super::Finding;
use super::Severity::Note;
use super::finding::kinds;
use super::view::View;
use crate::Unavailable;
use crate::device::DeviceSummary;
use crate::machine::Node;

kinds! { KINDS:
    NOT_PASSED = "node-not-in-container", Fault, Software,
        "A container sees all devices of its host, and may use those whose nodes were passed into it. Calls go by TCP.",
        "start the container with the node: `docker run --device=/dev/infiniband/uverbsN`; in Kubernetes request the resource of the RDMA device \
         plugin";
    CGROUP = "device-cgroup", Fault, Software,
        "The device's node is there, and its mode does not matter: the control group of this process refuses to open it, for root as well. \
         Calls go by TCP.",
        "allow the device: `docker run --device=/dev/infiniband/uverbsN`, in Kubernetes the RDMA device plugin's resource, or `DeviceAllow=NODE rw` in \
         a systemd unit";
}

/// Finds device nodes that may not be opened. If it is not the chosen device's, that is no fault.
pub(super) fn check(view: &View<'_>) -> Vec<Finding> {
    let chosen = view.chosen().map(|(device, ..)| &device.name);
    let find = |device: &DeviceSummary| {
        let unavailable = view.machine.check_access(device).err()?;
        let is_other = chosen.is_some_and(|chosen| *chosen != device.name);
        let finding = match view.machine.open(&device.node) {
            // Containers are given some devices of many on purpose.
            Err(libc::ENOENT) if view.in_container() && is_other => return None,
            Err(libc::ENOENT) if view.in_container() => not_passed(view, device),
            Err(libc::EPERM) => refused(view, device),
            _ => forbidden(view, device, &unavailable),
        };
        Some(if is_other { finding.but(Note) } else { finding })
    };
    view.summaries.iter().filter_map(find).collect()
}

/// Says that a node is not in this container.
fn not_passed(view: &View<'_>, device: &DeviceSummary) -> Finding {
    let DeviceSummary { name, node, .. } = device;
    let seen = format!("{name} is there, its node {node} is not in this container");
    let fix = format!("{}{}", to_pass(node), or_another(view, device));
    Finding::new(&NOT_PASSED, seen, fix)
}

/// Returns how a node comes into a container.
fn to_pass(node: &str) -> String {
    format!(
        "start the container with it: `docker run --device={node} --cap-add=IPC_LOCK`; in Kubernetes request the resource of the RDMA device \
         plugin (`resources: {{limits: {{rdma/NAME: 1}}}}`)"
    )
}

/// Returns the setting by which another device is used that can be opened, as the end of a list of fixes.
fn or_another(view: &View<'_>, device: &DeviceSummary) -> String {
    let is_usable = |other: &&DeviceSummary| {
        other.name != device.name && other.unsuited.is_none() && view.machine.open(&other.node).is_ok()
    };
    let other = view.summaries.iter().find(is_usable);
    let set =
        |other: &DeviceSummary| format!("; or set rdma.device = \"{}\", which may be opened", other.name);
    other.map(set).unwrap_or_default()
}

/// Says that the kernel refuses what the node's mode allows: files give `EACCES`, the device control group `EPERM`.
fn refused(view: &View<'_>, device: &DeviceSummary) -> Finding {
    let DeviceSummary { name, node, .. } = device;
    let place = if view.in_container() { " of this container" } else { "" };
    let mode = view.machine.node(node).map(|node| format!(" (mode {})", node.mode())).unwrap_or_default();
    let seen = format!("the device control group{place} refuses to open {node}{mode} of {name}");
    let fix = match (view.is_exclusive(), view.in_container()) {
        // The kernel refuses devices of another namespace in the same way.
        (true, _) => format!(
            "devices belong to one network namespace here (`rdma system show`): move it into this one (`rdma dev set {name} netns PID`), or \
             share them (`rdma system set netns shared`)"
        ),
        (false, true) => {
            format!("{}; a node made by `mknod` or a bind mount is not enough", to_pass(node))
        }
        (false, false) => {
            format!(
                "`DeviceAllow={node} rw` in the systemd unit of the service, or take `DevicePolicy=` out of it"
            )
        }
    };
    Finding::new(&CGROUP, seen, format!("{fix}{}", or_another(view, device)))
}

/// Says that the node's mode keeps this user from opening it, or what else does.
fn forbidden(view: &View<'_>, device: &DeviceSummary, unavailable: &Unavailable) -> Finding {
    let mut finding = Finding::from(unavailable);
    if let (Unavailable::NoPermission { .. }, Some(node)) = (unavailable, view.machine.node(&device.node)) {
        finding.seen = format!("{}: mode {}, group {}", finding.seen, node.mode(), group(view, &node));
        finding.fix = to_open(view, &node, &device.node);
    }
    finding
}

/// Returns the name of the node's group, or its number.
fn group(view: &View<'_>, node: &Node) -> String {
    let groups = view.machine.read("/etc/group").unwrap_or_default();
    let name = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(node.group())).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| node.group().to_owned())
}

fn to_open(view: &View<'_>, node: &Node, path: &str) -> String {
    let for_group =
        node.mode().as_bytes().iter().rev().nth(1).is_some_and(|digit| matches!(digit, b'6' | b'7'));
    if for_group && node.group() != "0" {
        return format!("usermod -aG {} USER, and log in again", group(view, node));
    }
    format!(
        "chmod 666 {path}; for good: `echo 'KERNEL==\"uverbs*\", SUBSYSTEM==\"infiniband_verbs\", MODE=\"0666\"' > \
         /etc/udev/rules.d/90-rdma.rules && udevadm trigger`; in a container `docker run --device={path}`"
    )
}
