//! Devices and their ports.

use super::Finding;
use super::Severity::{Fault, Note};
use super::finding::kinds;
use super::view::View;
use crate::Unavailable;
use crate::device::{DeviceSummary, LinkLayer, PortSummary, Unsuited};

kinds! { KINDS:
    SUBNET_MANAGER = "no-subnet-manager", Fault, Devices,
        "The cable is fine, but nobody has given the port an address. On InfiniBand that is the work of a subnet manager, of which each \
         network needs one.",
        "start a subnet manager in this network: opensm, or the switch's own";
    SOFTWARE = "software-device", Note, Devices,
        "The kernel does the work of an RDMA device here. It behaves like one, but TCP is as fast, and needs less of the CPU.",
        "for speed use a card that has RDMA";
    SOFTWARE_CHOSEN = "software-before-hardware", Warning, Devices,
        "Connections would use a device that is emulated by the kernel, though the machine has a real one.",
        "name the real device by `rdma.device`, or delete the emulated one: `rdma link delete NAME`";
    PCIE = "slow-pcie", Warning, Devices,
        "The device talks to the machine with fewer lanes, or at a lower speed, than it can. If that is less than its ports carry, it limits large transfers.",
        "move the card to a slot that has its lanes and speed, or let the firmware's set-up give it them (bifurcation)";
    SLOW_PORT = "slow-port", Warning, Devices,
        "The port runs at the lowest speed that there is. Real devices do so when the link could not be set up properly.",
        "check cable, switch port and auto-negotiation (`ethtool NETDEV`, `ibstatus`)";
}

pub(super) fn check(view: &View<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for device in &view.summaries {
        found.extend(unsuited(view, device));
        for port in &device.ports {
            found.extend(down(view, device, port));
            found.extend(slow_port(view, device, port));
        }
        found.extend(pcie(view, device));
    }
    found.extend(software(view));
    if let Err(unavailable @ Unavailable::NoSuchDevice { .. }) = &view.choice {
        found.push(unavailable.into());
    }
    found
}

/// Finds devices that can't be used, whatever their ports are. It is a fault if there is no other, or if one is configured.
fn unsuited(view: &View<'_>, device: &DeviceSummary) -> Option<Finding> {
    let name = device.name.clone();
    let mut finding = Finding::from(&match device.unsuited? {
        Unsuited::NoReliableQueuePairs(driver) => Unavailable::NoReliableQueuePairs { device: name, driver },
        Unsuited::Iwarp => Unavailable::Iwarp { device: name },
    });
    if view.is_software(device) {
        finding.seen =
            format!("{} is siw, iWARP by the kernel's software, which farcall can't connect", device.name);
        finding.fix =
            "use TCP here, or Soft-RoCE in its place: `rdma link add rxe0 type rxe netdev NAME`".to_owned();
    }
    let is_cause =
        matches!(view.choice, Err(Unavailable::NoReliableQueuePairs { .. } | Unavailable::Iwarp { .. }));
    Some(if is_cause { finding } else { finding.but(Note) })
}

/// Finds ports that are not active. If another one is, that is no fault: cards have more ports than cables.
fn down(view: &View<'_>, device: &DeviceSummary, port: &PortSummary) -> Option<Finding> {
    if port.active || device.unsuited.is_some() {
        return None;
    }
    let severity = if view.choice.is_ok() { Note } else { Fault };
    let at = format!("port {} of {}", port.number, device.name);
    if port.state == "INIT" {
        let fix = "start a subnet manager in this network: opensm (`apt install opensm`, `dnf install opensm`), or the switch's own";
        return Some(Finding::new(&SUBNET_MANAGER, format!("{at} is INIT, not ACTIVE"), fix).but(severity));
    }
    let (name, number, state) = (device.name.clone(), port.number, port.state.clone());
    let mut finding =
        Finding::from(&Unavailable::PortDown { device: name, port: number, state }).but(severity);
    if let Some(physical) = view.of_port(device, port, "phys_state") {
        let physical = physical.split_once(": ").map_or(physical.as_str(), |(_, name)| name);
        finding.seen = format!("{} (the link is {physical})", finding.seen);
    }
    // On InfiniBand that is the interface of IP over it, which follows the port.
    let netdev = view.netdev(device, port).filter(|_| port.link_layer == LinkLayer::Ethernet);
    if let Some(netdev) = netdev {
        // RFC 2863, section 3.1.14, has the states.
        let state = view.of_netdev(&netdev, "operstate").unwrap_or_else(|| "down".to_owned());
        finding.fix = match (&*state, view.of_netdev(&netdev, "carrier").as_deref()) {
            ("lowerlayerdown", _) => {
                format!(
                    "bring up the interface below {netdev}: `ip link show {netdev}` names it behind the @"
                )
            }
            ("down", Some("0")) => format!("check cable and switch port of {netdev}: it has no carrier"),
            ("down", _) => format!("ip link set {netdev} up"),
            ("notpresent" | "testing" | "dormant", _) => {
                format!("see `ip link show {netdev}` and the kernel's log: {netdev} is {state}")
            }
            _ => format!("see `rdma link show {}` and the kernel's log: {netdev} itself is up", device.name),
        };
    }
    Some(finding)
}

fn slow_port(view: &View<'_>, device: &DeviceSummary, port: &PortSummary) -> Option<Finding> {
    let rate = view.of_port(device, port, "rate")?;
    // Devices say so that do not know better, as Soft-RoCE does.
    if !port.active
        || device.unsuited.is_some()
        || view.is_software(device)
        || !rate.starts_with("2.5 Gb/sec")
    {
        return None;
    }
    let seen = format!("port {} of {} is ACTIVE at {rate}", port.number, device.name);
    Some(Finding::new(
        &SLOW_PORT,
        seen,
        "check cable, switch port and auto-negotiation (`ethtool NETDEV`, `ibstatus`)",
    ))
}

/// Finds a link to the machine that is narrower or slower than the device's best.
fn pcie(view: &View<'_>, device: &DeviceSummary) -> Option<Finding> {
    let of = |file| view.of_device(device, &format!("device/{file}"));
    let (width, widest) = (of("current_link_width")?, of("max_link_width")?);
    let (speed, fastest) = (of("current_link_speed")?, of("max_link_speed")?);
    // "8.0 GT/s PCIe"
    let number = |text: &str| text.split_whitespace().next().and_then(|word| word.parse::<f32>().ok());
    // Virtual functions say that they have no lanes, at an unknown speed.
    let is_less = |now: &str, most: &str| Some(number(now).filter(|now| *now > 0.0)? < number(most)?);
    if is_less(&width, &widest) != Some(true) && is_less(&speed, &fastest) != Some(true) {
        return None;
    }
    let rates =
        device.ports.iter().filter(|port| port.active).filter_map(|port| view.of_port(device, port, "rate"));
    let network: f32 = rates.filter_map(|rate| number(&rate)).sum();
    // The code of a lane has 10 bits for 8 up to 5 GT/s, and 130 for 128 above.
    let of_lane = |speed: f32| if speed > 5.0 { speed * 128.0 / 130.0 } else { speed * 0.8 };
    let slot = number(&width).unwrap_or(0.0) * number(&speed).map_or(0.0, of_lane);
    let seen = format!(
        "{} has {width} of {widest} PCIe lanes, at {speed} of {fastest}: {slot:.0} Gb/s for ports of {network:.0} Gb/s",
        device.name
    );
    let fix = "move the card to a slot that has its lanes and speed, or let the firmware's set-up give it them (bifurcation)";
    // A slot that carries what the ports do limits nothing.
    let finding = Finding::new(&PCIE, seen, fix);
    Some(if slot < network { finding } else { finding.but(Note) })
}

/// Finds that the device of a connection would be emulated.
fn software(view: &View<'_>) -> Option<Finding> {
    let (device, ..) = view.chosen().filter(|(device, ..)| view.is_software(device))?;
    let parent = view.of_device(device, "parent").unwrap_or_default();
    let seen = format!("{} is Soft-RoCE on {parent}", device.name);
    let is_up = |other: &DeviceSummary| other.ports.iter().any(|port| port.active);
    let real = view.summaries.iter().filter(|other| !view.is_software(other) && other.unsuited.is_none());
    match real.max_by_key(|other| is_up(other)) {
        Some(other) => {
            let (name, up) = (&other.name, is_up(other));
            let state = if up { "is there, too" } else { "is there, too, with no port that is up" };
            let first = if up { "" } else { "bring a port of it up; then " };
            let fix = format!("{first}set rdma.device = \"{name}\", or `rdma link delete {}`", device.name);
            Some(Finding::new(&SOFTWARE_CHOSEN, format!("{seen}, and {name} {state}"), fix))
        }
        None => Some(Finding::new(&SOFTWARE, seen, "for speed use a card that has RDMA")),
    }
}
