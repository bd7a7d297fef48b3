//! A machine as its findings are made from it: its devices, and the address that a connection would leave from.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::report::{Address, DeviceView, PortView};
use super::unseen::Unseen;
use crate::device::{
    DeviceSummary, GidEntry, GidKind, Interface, LinkLayer, PortSummary, RdmaConfig, Selection, Unavailable,
    Unsuited, choose, ranked,
};
use crate::machine::{Machine, NoOutput};

/// A machine while it is looked at.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) machine: &'a Machine,
    pub(super) config: &'a RdmaConfig,
    /// Empty if there is none.
    pub(super) summaries: Vec<DeviceSummary>,
    /// The addresses of network interfaces.
    pub(super) interfaces: Vec<Interface>,
    /// The address that a connection would leave from, or why there is none.
    pub(super) choice: Result<Selection, Unavailable>,
    /// The questions to programs that were not answered.
    unseen: RefCell<BTreeSet<Unseen>>,
}

impl<'a> View<'a> {
    pub(super) fn new(machine: &'a Machine, config: &'a RdmaConfig) -> Self {
        let (found, interfaces) = (machine.devices(), interfaces(machine));
        let choice = found.clone().and_then(|devices| choose(&devices, &interfaces, config, None));
        let (summaries, unseen) = (found.unwrap_or_default(), RefCell::default());
        Self { machine, config, summaries, interfaces, choice, unseen }
    }

    /// Returns what a program prints. `None`: it gives no answer, which is [remembered](Self::unseen).
    pub(super) fn run(&self, program: &[&str]) -> Option<String> {
        self.machine.run(program).map_err(|why| self.miss(program, why)).ok()
    }

    /// Remembers that a program gave no answer.
    pub(super) fn miss(&self, program: &[&str], why: NoOutput) {
        self.unseen.borrow_mut().extend(Unseen::new(program, why));
    }

    /// Returns the questions to programs that were not answered so far.
    pub(super) fn unseen(&self) -> BTreeSet<Unseen> {
        self.unseen.borrow().clone()
    }

    /// Returns the device, port and network interface of the chosen address.
    pub(super) fn chosen(&self) -> Option<(&DeviceSummary, &PortSummary, Option<String>)> {
        let chosen = self.choice.as_ref().ok()?;
        let device = self.summaries.iter().find(|device| device.name == chosen.device)?;
        let port = device.ports.iter().find(|port| port.number == chosen.port)?;
        Some((device, port, chosen.gid.netdev.clone().or_else(|| self.netdev(device, port))))
    }

    pub(super) fn chosen_name(&self) -> Option<String> {
        let chosen = self.choice.as_ref().ok()?;
        Some(format!("{} of {} port {}", chosen.gid.gid.ip(), chosen.device, chosen.port))
    }

    /// Returns what a file in the device's directory contains.
    pub(super) fn of_device(&self, device: &DeviceSummary, file: &str) -> Option<String> {
        self.machine.read(&format!("/sys/class/infiniband/{}/{file}", device.name))
    }

    /// Returns what a file in the port's directory contains.
    pub(super) fn of_port(&self, device: &DeviceSummary, port: &PortSummary, file: &str) -> Option<String> {
        self.of_device(device, &format!("ports/{}/{file}", port.number))
    }

    /// Whether the kernel does the device's work. Soft-RoCE has a parent, the network interface that it uses.
    pub(super) fn is_software(&self, device: &DeviceSummary) -> bool {
        self.of_device(device, "parent").is_some() || self.driver(device).as_deref() == Some("siw")
    }

    /// Returns the driver of the device. iWARP by software has no parent.
    pub(super) fn driver(&self, device: &DeviceSummary) -> Option<String> {
        if self.of_device(device, "parent").is_some() {
            return Some("rxe".to_owned());
        }
        // It is on the network card that it uses, whose driver is not its own.
        if device.unsuited == Some(Unsuited::Iwarp) && device.name.starts_with("siw") {
            return Some("siw".to_owned());
        }
        self.machine.link(&format!("/sys/class/infiniband/{}/device/driver", device.name))
    }

    /// Returns the network interface that shares a port.
    pub(super) fn netdev(&self, device: &DeviceSummary, port: &PortSummary) -> Option<String> {
        let of_address = port.gids.iter().find_map(|gid| gid.netdev.clone());
        of_address.or_else(|| self.of_device(device, "parent")).or_else(|| {
            let directory = format!("/sys/class/infiniband/{}/device/net", device.name);
            let is_of_port = |name: &String| {
                let number = self.machine.number(&format!("{directory}/{name}/dev_port"));
                number.unwrap_or(0).checked_add(1) == Some(port.number.into())
            };
            self.machine.names(&directory).into_iter().find(is_of_port)
        })
    }

    /// Returns the switch and its port that a network interface is connected to, by LLDP, if lldpd tells.
    fn switch(&self, netdev: &str) -> Option<String> {
        let told = self.run(&["lldpctl", "-f", "keyvalue", netdev])?;
        let of = |key: &str| {
            let name = format!("lldp.{netdev}.{key}=");
            told.lines().find_map(|line| line.strip_prefix(&name)).map(str::to_owned)
        };
        let port = of("port.ifname").or_else(|| of("port.descr")).unwrap_or_default();
        Some(format!("{} {port}", of("chassis.name")?).trim().to_owned())
    }

    /// Returns the network cards below an interface: those of a bond, of a VLAN. An interface that is on no other is one itself.
    pub(super) fn cards(&self, netdev: &str) -> Vec<String> {
        let mut cards = vec![netdev.to_owned()];
        // A VLAN on a bond is two levels.
        for _ in 0..4 {
            let below = |name: &String| {
                let names = self.machine.names(&format!("/sys/class/net/{name}"));
                let lower: Vec<_> =
                    names.iter().filter_map(|file| file.strip_prefix("lower_")).map(str::to_owned).collect();
                if lower.is_empty() { vec![name.clone()] } else { lower }
            };
            cards = cards.iter().flat_map(below).collect();
        }
        cards
    }

    /// Whether this is a container, by the files and names that container engines leave.
    pub(super) fn in_container(&self) -> bool {
        let has = |path: &str| self.machine.try_read(path).is_ok();
        let group = self.machine.read("/proc/1/cgroup").unwrap_or_default();
        has("/.dockerenv")
            || has("/run/.containerenv")
            || ["docker", "kubepods", "containerd", "lxc"].iter().any(|engine| group.contains(engine))
    }

    /// Whether each device belongs to one network namespace. Otherwise all namespaces share them.
    pub(super) fn is_exclusive(&self) -> bool {
        self.machine.read("/sys/module/ib_core/parameters/netns_mode").as_deref() == Some("N")
    }

    /// Returns what a file of a network interface contains.
    pub(super) fn of_netdev(&self, netdev: &str, file: &str) -> Option<String> {
        self.machine.read(&format!("/sys/class/net/{netdev}/{file}"))
    }

    pub(super) fn devices(&self) -> Vec<DeviceView> {
        self.summaries.iter().map(|device| self.device(device)).collect()
    }

    fn device(&self, device: &DeviceSummary) -> DeviceView {
        DeviceView {
            name: device.name.clone(),
            driver: self.driver(device),
            is_software: self.is_software(device),
            firmware: self.of_device(device, "fw_ver"),
            numa_node: device.numa_node,
            ports: device.ports.iter().map(|port| self.port(device, port)).collect(),
        }
    }

    fn port(&self, device: &DeviceSummary, port: &PortSummary) -> PortView {
        let netdev = self.netdev(device, port);
        let chosen = self.choice.as_ref().ok();
        let chosen = chosen.filter(|chosen| (&chosen.device, chosen.port) == (&device.name, port.number));
        let address = |gid: &GidEntry| {
            let chosen = chosen.filter(|chosen| chosen.gid.index == gid.index);
            Address {
                index: gid.index,
                address: gid.gid.ip(),
                kind: kind(gid.kind),
                netdev: gid.netdev.clone(),
                is_chosen: chosen.is_some(),
                reason: chosen.map(|chosen| reason(chosen, self)),
            }
        };
        PortView {
            number: port.number,
            state: port.state.clone(),
            link_layer: match port.link_layer {
                LinkLayer::Ethernet => "Ethernet",
                LinkLayer::InfiniBand => "InfiniBand",
            },
            rate: self.of_port(device, port, "rate"),
            switch: netdev.as_ref().filter(|_| !self.is_software(device)).and_then(|name| self.switch(name)),
            netdev_mtu: netdev
                .as_ref()
                .and_then(|name| self.machine.number(&format!("/sys/class/net/{name}/mtu"))),
            netdev,
            addresses: port.gids.iter().map(address).collect(),
        }
    }
}

/// Returns why this address was chosen: the setting that names it, or the rule by which it comes before the next best.
fn reason(chosen: &Selection, view: &View<'_>) -> String {
    let config = view.config;
    if let Some(index) = config.gid_index {
        return format!("`rdma.gid_index` is {index}");
    }
    if let Some(gid) = config.gid {
        return format!("`rdma.gid` is {gid}");
    }
    let ranked = ranked(&view.summaries, &view.interfaces, config, None).unwrap_or_default();
    let rule = match ranked.into_iter().find(|other| other != chosen) {
        None => "there is no other".to_owned(),
        Some(next) if next.is_of_upper != chosen.is_of_upper => {
            "the addresses of a port's own interface come before those of interfaces upon it".to_owned()
        }
        Some(next) if next.gid.kind != chosen.gid.kind => {
            format!("{} comes before {}", by_rank(chosen.gid.kind), by_rank(next.gid.kind))
        }
        Some(_) => "it is the first of those that are as good".to_owned(),
    };
    match &config.subnet {
        Some(subnet) => format!("`rdma.subnet` is {subnet}, and there {rule}"),
        None => rule,
    }
}

/// Returns the name of a kind of address among those that differ in rank.
fn by_rank(kind: GidKind) -> &'static str {
    match kind {
        GidKind::RoceV2Ipv4 => "IPv4 by RoCE v2",
        GidKind::RoceV2Ipv6 => "IPv6 by RoCE v2",
        GidKind::RoceV2LinkLocal => "a link-local address",
        GidKind::RoceV1 => "RoCE v1",
        GidKind::InfiniBand => "InfiniBand",
    }
}

fn kind(kind: GidKind) -> &'static str {
    match kind {
        GidKind::InfiniBand => "InfiniBand",
        GidKind::RoceV1 => "RoCE v1",
        GidKind::RoceV2Ipv4 | GidKind::RoceV2Ipv6 => "RoCE v2",
        GidKind::RoceV2LinkLocal => "RoCE v2, link-local",
    }
}

/// Returns the addresses of the machine's network interfaces.
fn interfaces(machine: &Machine) -> Vec<Interface> {
    let lines = machine.interfaces(|| {
        let lines = crate::verbs::interfaces().into_iter();
        lines.map(|i| format!("{} {}/{}\n", i.name, i.address, i.prefix)).collect()
    });
    let parse = |line: &str| {
        let (name, network) = line.split_once(' ')?;
        let (address, prefix) = network.split_once('/')?;
        Some(Interface {
            name: name.to_owned(),
            address: address.parse().ok()?,
            prefix: prefix.parse().ok()?,
        })
    };
    lines.lines().filter_map(parse).collect()
}
