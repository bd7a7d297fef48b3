//! Kernel modules and libraries.

use super::Finding;
use super::Severity::Fault;
use super::finding::kinds;
use super::view::View;
use crate::Unavailable;
use crate::verbs::library;

kinds! { KINDS:
    UVERBS = "no-uverbs", Fault, Software,
        "The kernel has an RDMA device, but the module by which programs use devices is not loaded. Calls go by TCP.",
        "`modprobe ib_uverbs`";
    RDMA_MODULE = "rdma-module", Fault, Software,
        "A network card that has RDMA has no RDMA device, because the driver's second module is not loaded. Calls go by TCP.",
        "load the driver's second module, as `modprobe mlx5_ib`";
    BYPASSED = "kernel-bypassed", Note, Software,
        "A program outside of the kernel has this network card: DPDK, or a virtual machine. The card has no RDMA device here.",
        "if RDMA should have the card, unbind it from that driver, clear its `driver_override`, and have the kernel probe again \
         (`drivers_probe`)";
    PROVIDER = "no-provider", Fault, Software,
        "libibverbs needs a library for each driver, its provider. Without it, it does not show the driver's devices.",
        "install the provider: `apt install ibverbs-providers`, `dnf install libibverbs`";
    BYPASS = "socket-bypass", Warning, Software,
        "A library takes the place of the kernel's sockets in programs that start here. RDMA does not need it, and farcall's TCP \
         side was not tried with it: epoll, socket options and fork may behave differently.",
        "start the program without it: `env -u LD_PRELOAD PROGRAM`, or take the line out of /etc/ld.so.preload";
}

pub(super) fn check(view: &View<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    if view.machine.is_this() {
        found.extend(library().err().as_ref().map(Finding::from));
    }
    found.extend(uverbs(view));
    if view.summaries.is_empty() {
        found.extend(modules(view));
    }
    found.extend(kernel_bypassed(view));
    // Without a nearer reason this is all one can say.
    if found.is_empty()
        && let Err(unavailable @ Unavailable::NoDevice { .. }) = &view.choice
    {
        found.push(no_device(view, unavailable));
    }
    found.extend(providers(view));
    found.extend(socket_bypass(view));
    found
}

/// Finds devices that have no node because `ib_uverbs` is not there.
fn uverbs(view: &View<'_>) -> Option<Finding> {
    let devices = view.machine.names("/sys/class/infiniband");
    let first = devices.first().filter(|_| view.machine.names("/sys/class/infiniband_verbs").is_empty())?;
    Some(Finding::new(
        &UVERBS,
        format!("{first} is there, /sys/class/infiniband_verbs is not"),
        "modprobe ib_uverbs",
    ))
}

/// A driver of network cards, the module that makes RDMA devices of them, and its provider in libibverbs.
struct Driver {
    name: &'static str,
    module: &'static str,
    provider: &'static str,
}

/// Drivers as the kernel's `drivers/infiniband/hw` and rdma-core's `providers` name them.
const DRIVERS: &[Driver] = &[
    Driver { name: "mlx5_core", module: "mlx5_ib", provider: "mlx5" },
    Driver { name: "mlx4_core", module: "mlx4_ib", provider: "mlx4" },
    Driver { name: "bnxt_en", module: "bnxt_re", provider: "bnxt_re" },
    Driver { name: "ice", module: "irdma", provider: "irdma" },
    Driver { name: "i40e", module: "irdma", provider: "irdma" },
    Driver { name: "cxgb4", module: "iw_cxgb4", provider: "cxgb4" },
    Driver { name: "qede", module: "qedr", provider: "qedr" },
    Driver { name: "hns3", module: "hns_roce_hw_v2", provider: "hns" },
    Driver { name: "efa", module: "efa", provider: "efa" },
    Driver { name: "mana", module: "mana_ib", provider: "mana" },
    Driver { name: "rxe", module: "rdma_rxe", provider: "rxe" },
    Driver { name: "siw", module: "siw", provider: "siw" },
];

const PCI: &str = "/sys/bus/pci/devices";

/// Finds cards whose driver is there, and whose RDMA module is not.
fn modules(view: &View<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for address in view.machine.names(PCI) {
        let Some(bound) = view.machine.link(&format!("{PCI}/{address}/driver")) else { continue };
        // Few cards of i40e have RDMA, and they and those of cxgb4 have iWARP, which is of no use here.
        let has_rdma = |driver: &&Driver| driver.name == bound && !["i40e", "cxgb4"].contains(&driver.name);
        let Some(driver) = DRIVERS.iter().find(has_rdma) else { continue };
        if view.machine.names(&format!("/sys/module/{}", driver.module)).is_empty() {
            let seen =
                format!("{address} (driver {bound}) has no RDMA device, and {} is not loaded", driver.module);
            found.push(Finding::new(&RDMA_MODULE, seen, format!("modprobe {}", driver.module)));
            break;
        }
    }
    found
}

/// Says what is missing on a machine without a device, beside what can't be known without one.
fn no_device(view: &View<'_>, unavailable: &Unavailable) -> Finding {
    let mut finding = Finding::from(unavailable);
    // In a network namespace of its own the device's node alone does not help.
    if view.is_exclusive() {
        finding.fix = format!(
            "devices belong to one network namespace here (`rdma system show`): move one into this (`rdma dev set NAME netns PID`), or \
             share them (`rdma system set netns shared`); otherwise {}",
            finding.fix
        );
    } else if view.in_container() {
        finding.fix = "in a container: start it with the device (`docker run --device=/dev/infiniband`, in Kubernetes by the RDMA device \
                       plugin's resource); on the host: load the card's driver and ib_uverbs"
            .to_owned();
    }
    finding
}

/// Finds cards that a program outside of the kernel has. Of their virtual functions machines give many away on purpose.
fn kernel_bypassed(view: &View<'_>) -> Option<Finding> {
    const USERSPACE: [&str; 4] = ["vfio-pci", "uio_pci_generic", "igb_uio", "pci-stub"];
    // NVIDIA (Mellanox), whose network cards all have RDMA. Some of Broadcom, Intel and Chelsio have.
    const ALL: &str = "0x15b3";
    const SOME: [&str; 3] = ["0x14e4", "0x8086", "0x1425"];
    let of = |address: &String, file: &str| view.machine.read(&format!("{PCI}/{address}/{file}"));
    let bypassed: Vec<(String, String, String)> = view
        .machine
        .names(PCI)
        .into_iter()
        .filter_map(|address| {
            let bound = view.machine.link(&format!("{PCI}/{address}/driver"))?;
            let vendor =
                of(&address, "vendor").filter(|vendor| vendor == ALL || SOME.contains(&&**vendor))?;
            // Class 2 are network controllers.
            let is_network = of(&address, "class")?.starts_with("0x02");
            let is_virtual = view.machine.link(&format!("{PCI}/{address}/physfn")).is_some();
            (USERSPACE.contains(&&*bound) && is_network && !is_virtual).then_some((address, bound, vendor))
        })
        .collect();
    let (address, bound, _) =
        bypassed.iter().find(|(_, _, vendor)| vendor == ALL).or_else(|| bypassed.first())?;
    let others =
        if bypassed.len() > 1 { format!(", and {} more are", bypassed.len() - 1) } else { String::new() };
    let fix = format!(
        "if RDMA should have it, and nothing else uses it: `echo {address} > /sys/bus/pci/drivers/{bound}/unbind; echo > \
         {PCI}/{address}/driver_override; echo {address} > /sys/bus/pci/drivers_probe`"
    );
    let finding = Finding::new(&BYPASSED, format!("network card {address} is bound to {bound}{others}"), fix);
    let is_cause = view.summaries.is_empty() && bypassed.iter().any(|(_, _, vendor)| vendor == ALL);
    Some(if is_cause { finding.but(Fault) } else { finding })
}

/// Finds devices for whose driver libibverbs has no provider.
fn providers(view: &View<'_>) -> Vec<Finding> {
    let directory = "/etc/libibverbs.d";
    let installed = view.machine.names(directory);
    // Libraries that were installed elsewhere have another directory.
    if installed.is_empty() {
        return Vec::new();
    }
    let find = |device| {
        let driver = view.driver(device)?;
        let Driver { provider, .. } = DRIVERS.iter().find(|known| known.name == driver)?;
        if installed.contains(&format!("{provider}.driver")) {
            return None;
        }
        let seen = format!(
            "{} (driver {driver}) needs the provider {provider}, which {directory} does not name",
            device.name
        );
        Some(Finding::new(
            &PROVIDER,
            seen,
            "apt install ibverbs-providers (Debian, Ubuntu) or dnf install libibverbs (Fedora, RHEL)",
        ))
    };
    view.summaries.iter().filter_map(find).collect()
}

/// Finds libraries that replace sockets, in what every program loads.
fn socket_bypass(view: &View<'_>) -> Option<Finding> {
    const LIBRARIES: [(&str, &str); 5] = [
        ("libonload", "OpenOnload"),
        ("libvma", "VMA"),
        ("libxlio", "XLIO"),
        ("librspreload", "rsocket"),
        ("libsdp", "SDP"),
    ];
    let sources = [
        ("LD_PRELOAD", view.machine.variable("LD_PRELOAD")),
        ("/etc/ld.so.preload", view.machine.read("/etc/ld.so.preload")),
    ];
    sources.into_iter().find_map(|(source, value)| {
        let value = value?;
        let (_, name) = LIBRARIES.iter().find(|(library, _)| value.contains(library))?;
        let fix = match source {
            "LD_PRELOAD" => "start the program without it: `env -u LD_PRELOAD PROGRAM`".to_owned(),
            file => format!("take the line out of {file}"),
        };
        Some(Finding::new(&BYPASS, format!("{source} names {name} ({})", value.trim()), fix))
    })
}
