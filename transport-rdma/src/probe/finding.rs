//! Findings: each says what was seen on a machine, what it means, and what to do.

use std::fmt;

use serde::Serialize;

use crate::Unavailable;

/// The severity of a finding, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Severity {
    /// Good to know. RDMA works.
    Note,
    /// RDMA works, but slower than it could, or not under load.
    Warning,
    /// RDMA can't be used.
    Fault,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fault => "fault",
        })
    }
}

/// The part of a machine's set-up that a finding is about, in the order in which one mends them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Area {
    /// Kernel modules, libraries, and who may use devices.
    Software,
    /// Devices and their ports.
    Devices,
    /// The addresses of ports, and how packets travel from them.
    Addresses,
    /// Limits of the process, and of its control group.
    Limits,
    /// The CPUs that work near a device, and their speed.
    Placement,
    /// The settings by which the network treats packets.
    Network,
    /// Counters of devices that stand still in a healthy network.
    Counters,
    /// The conduct of devices when they were tried.
    Trial,
}

/// A kind of finding. All there are stand in [`KINDS`](super::KINDS).
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kind {
    /// Its name, which stays: `memlock`, for example.
    pub code: &'static str,
    /// The severity.
    pub severity: Severity,
    /// The part of the set-up that it is about.
    pub area: Area,
    /// The meaning to a user of the machine.
    pub means: &'static str,
    /// The remedy in general. A finding's has the names of its machine.
    pub remedy: &'static str,
}

/// Something about a machine that its users should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The name of its [kind](Kind), which stays.
    pub code: &'static str,
    /// The severity.
    pub severity: Severity,
    /// The part of the set-up that it is about.
    pub area: Area,
    /// The observation, with names and numbers, in one line.
    pub seen: String,
    /// The meaning.
    pub means: &'static str,
    /// The remedy, with the exact command or line where there is one.
    pub fix: String,
}

impl Finding {
    pub(crate) fn new(kind: &Kind, seen: impl Into<String>, fix: impl Into<String>) -> Self {
        let Kind { code, severity, area, means, .. } = *kind;
        Self { code, severity, area, seen: seen.into(), means, fix: fix.into() }
    }

    /// Returns the finding with another severity than its kind's.
    pub(crate) fn but(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }
}

impl From<&Unavailable> for Finding {
    fn from(unavailable: &Unavailable) -> Self {
        Self::new(kind_of(unavailable), unavailable.to_string(), unavailable.remedy())
    }
}

impl fmt::Display for Finding {
    /// One line: the severity, the observation, the remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}. Fix: {}", self.severity, self.seen, self.fix)
    }
}

/// Declares kinds of findings, and lists them.
macro_rules! kinds {
    ($list:ident: $($name:ident = $code:literal, $severity:ident, $area:ident, $means:literal, $remedy:literal;)*) => {
        $(pub(super) static $name: $crate::probe::Kind = $crate::probe::Kind {
            code: $code,
            severity: $crate::probe::Severity::$severity,
            area: $crate::probe::Area::$area,
            means: $means,
            remedy: $remedy,
        };)*

        /// The kinds of findings of this module.
        pub(super) static $list: &[&$crate::probe::Kind] = &[$(&$name),*];
    };
}
pub(super) use kinds;

kinds! { UNAVAILABLE:
    PLATFORM = "unsupported-platform", Fault, Software,
        "farcall uses RDMA on 64-bit Linux only. Calls go by TCP.",
        "use TCP here, or run on 64-bit Linux";
    LIBRARY_ABSENT = "library-absent", Fault, Software,
        "Programs reach RDMA devices through libibverbs, which is loaded when it is first needed. Without it calls go by TCP.",
        "install rdma-core's verbs library (Debian: libibverbs1 and ibverbs-providers; Fedora: libibverbs)";
    LIBRARY_OLD = "library-too-old", Fault, Software,
        "libibverbs lacks a function that farcall calls. Calls go by TCP.",
        "install a current rdma-core";
    NO_DEVICE = "no-device", Fault, Devices,
        "The kernel has no RDMA device that this process could use. Calls go by TCP.",
        "load the device's driver and ib_uverbs; in a container pass /dev/infiniband in; without RDMA hardware try Soft-RoCE: `rdma \
         link add rxe0 type rxe netdev NAME`";
    NO_SUCH_DEVICE = "no-such-device", Fault, Devices,
        "The configuration names a device or port that is not there. Calls go by TCP.",
        "set `rdma.device` and `rdma.port` to what the machine has, or leave both out";
    NO_RC = "no-reliable-queue-pairs", Fault, Devices,
        "farcall needs reliable connected queue pairs (RC), which this kind of device does not have. Calls go by TCP.",
        "use TCP here: such devices are for other libraries (AWS EFA: libfabric)";
    IWARP = "iwarp", Fault, Devices,
        "iWARP carries RDMA in TCP connections that only the kernel's connection manager can set up. farcall connects queue pairs by \
         itself, as RoCE and InfiniBand allow. Calls go by TCP.",
        "use TCP here, or switch the device to RoCE v2 if it has that (Intel E810: `devlink dev param set`)";
    NO_PERMISSION = "no-permission", Fault, Software,
        "This process may not open the device's node. Calls go by TCP.",
        "give this user read and write access to the node: `usermod -aG GROUP USER`, a udev rule, or `docker run --device`";
    PORT_DOWN = "port-down", Fault, Devices,
        "Nothing can be sent through a port that is not ACTIVE.",
        "bring the link up: on Ethernet `ip link set NETDEV up`, on InfiniBand check cable and subnet manager";
    NO_ADDRESS = "no-address", Fault, Addresses,
        "Connections name the address that packets come from. A port without an address in its GID table can't be used.",
        "give the port's network interface an IP address; set `rdma.gid_index`, `rdma.gid` and `rdma.subnet` to what is in use, or \
         leave them out";
    MEMLOCK = "memlock", Fault, Limits,
        "Devices work in memory that is locked. This process may not lock what they need, so nothing can be registered. Calls go by TCP.",
        "raise the limit to `rdma.memory` and `rdma.bulk_memory` together: `ulimit -l`, a `memlock` line in \
         /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit, or `docker run --cap-add=IPC_LOCK --ulimit memlock=-1`";
    BUSY_CPU = "busy-cpu", Fault, Placement,
        "The thread that polls the device can't run on the CPU that the configuration names.",
        "set `rdma.busy_cpu` to one of the CPUs that this process may use (`taskset -cp PID`), or leave it out";
    REFUSED = "device-refused", Fault, Trial,
        "The device or its driver refused a request that farcall makes of every device.",
        "see `farcall explain` with the name of the error that the message has, and the kernel's log";
}

fn kind_of(unavailable: &Unavailable) -> &'static Kind {
    match unavailable {
        Unavailable::UnsupportedPlatform => &PLATFORM,
        Unavailable::LibraryAbsent { .. } => &LIBRARY_ABSENT,
        Unavailable::LibraryTooOld { .. } => &LIBRARY_OLD,
        Unavailable::NoDevice { .. } => &NO_DEVICE,
        Unavailable::NoSuchDevice { .. } => &NO_SUCH_DEVICE,
        Unavailable::NoReliableQueuePairs { .. } => &NO_RC,
        Unavailable::Iwarp { .. } => &IWARP,
        Unavailable::NoPermission { .. } => &NO_PERMISSION,
        Unavailable::PortDown { .. } => &PORT_DOWN,
        Unavailable::NoGid { .. } => &NO_ADDRESS,
        Unavailable::Memlock(_) => &MEMLOCK,
        Unavailable::BusyCpu { .. } => &BUSY_CPU,
        Unavailable::Device(_) => &REFUSED,
    }
}
