//! Why RDMA cannot be used on this machine.

use std::fmt;
use std::path::PathBuf;

use farcall_core::transport::{self, Reason};

use crate::errno::{self, Blame, Meaning};

/// Why RDMA cannot be used here, and what to do about it.
///
/// `Display` says what was found, in one line; [`remedy`](Self::remedy) says what to do. Neither text is stable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// farcall speaks RDMA on 64-bit Linux only.
    UnsupportedPlatform,
    /// The verbs library is not installed.
    LibraryAbsent {
        /// The name under which it was looked for.
        library: String,
        /// The loader's own words.
        detail: String,
    },
    /// The verbs library lacks a function.
    LibraryTooOld {
        /// The library's name.
        library: String,
        /// The function it lacks.
        symbol: String,
    },
    /// The machine has no RDMA device.
    NoDevice {
        /// The thing that was looked for, and where.
        detail: String,
    },
    /// The machine has not the device or port that is configured.
    NoSuchDevice {
        /// The configured value.
        configured: String,
        /// The names of the devices that there are.
        present: Vec<String>,
    },
    /// The device is of a kind that has no reliable connected queue pairs, which farcall needs.
    NoReliableQueuePairs {
        /// The device's name.
        device: String,
        /// Its driver.
        driver: &'static str,
    },
    /// The device speaks iWARP. Its connections need the kernel's connection manager, which farcall does not use.
    Iwarp {
        /// The device's name.
        device: String,
    },
    /// The device's node may not be opened.
    NoPermission {
        /// The node, `/dev/infiniband/uverbsN`.
        path: PathBuf,
    },
    /// No port that could be used is active.
    PortDown {
        /// The device's name.
        device: String,
        /// The port's number, counted from 1.
        port: u8,
        /// The port's state as the kernel names it (`DOWN`, `INIT`, `ARMED`).
        state: String,
    },
    /// The port has no address that could be used.
    NoGid {
        /// The device's name.
        device: String,
        /// The port's number, counted from 1.
        port: u8,
        /// The thing that was looked for.
        detail: String,
    },
    /// The process may not lock as much memory as it needs to register.
    Memlock(Memlock),
    /// The thread of `completion = "busy"` may not run on the CPU that is configured.
    BusyCpu {
        /// The setting `busy_cpu`.
        cpu: u16,
        /// The error number of sched_setaffinity(2).
        errno: i32,
    },
    /// The device or its driver refused a request.
    Device(DeviceError),
}

/// The limit on locked memory, when a registration ran into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memlock {
    /// Bytes that were to be locked.
    pub asked: u64,
    /// Bytes that this process has pinned already (`VmPin`).
    pub in_use: u64,
    /// Bytes that the configuration lets this process lock in all.
    pub configured: u64,
    /// The soft limit in bytes; `None` is unlimited.
    pub soft: Option<u64>,
    /// The hard limit in bytes, up to which the process may raise the soft one; `None` is unlimited.
    pub hard: Option<u64>,
}

/// A request that a device or its driver refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceError {
    /// The device's name.
    pub device: String,
    /// The verb or system call, as its manual page calls it.
    pub operation: &'static str,
    /// The error number it gave.
    pub errno: i32,
}

/// Returns what to do where libibverbs can't be loaded. A statically linked program has no loader, so installing it does
/// not help.
fn absent_library(linked_statically: bool) -> &'static str {
    if linked_statically {
        "build the program for a dynamically linked target, or with RUSTFLAGS=\"-C target-feature=-crt-static\": this one is \
         linked statically and can't load any library"
    } else {
        "install rdma-core's verbs library (Debian: libibverbs1 and ibverbs-providers; Fedora: libibverbs)"
    }
}

impl Unavailable {
    /// Returns what to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::UnsupportedPlatform => "use TCP here, or run on 64-bit Linux".to_owned(),
            Self::LibraryAbsent { .. } => absent_library(cfg!(target_feature = "crt-static")).to_owned(),
            Self::LibraryTooOld { .. } => "install a current rdma-core".to_owned(),
            Self::NoDevice { .. } => {
                "load the device's driver and ib_uverbs; in a container pass /dev/infiniband in (docker --device); \
                 without RDMA hardware try Soft-RoCE: rdma link add rxe0 type rxe netdev NAME"
                    .to_owned()
            }
            Self::NoSuchDevice { .. } => {
                "set `rdma.device` to one of these, and `rdma.port` to one of its ports, or leave both out".to_owned()
            }
            Self::NoReliableQueuePairs { .. } => {
                "use TCP here: devices like this one are for other libraries (AWS EFA: libfabric); a device that works has a \
                 driver such as mlx5, bnxt_re, irdma or rxe"
                    .to_owned()
            }
            Self::Iwarp { .. } => {
                "use TCP here, or switch the device to RoCE v2 if it has that (Intel E810: `devlink dev param set pci/ADDRESS name \
                 enable_iwarp value false cmode runtime`, and then `enable_roce value true`)"
                    .to_owned()
            }
            Self::NoPermission { path } => {
                format!(
                    "give this user read and write access to {} (group or udev rule), or pass it into the container \
                     (docker --device)",
                    path.display()
                )
            }
            Self::PortDown { device, .. } => format!(
                "bring the link up: on Ethernet `ip link set NETDEV up`, on InfiniBand check cable and subnet manager \
                 (`rdma link show {device}`)"
            ),
            Self::NoGid { .. } => {
                "give the port's network interface an IP address; set `rdma.gid_index`, `rdma.gid` and `rdma.subnet` to what is \
                 in use, or leave them out"
                    .to_owned()
            },
            Self::Memlock(memlock) => memlock.remedy(),
            Self::BusyCpu { .. } => {
                "set rdma.busy_cpu to one of the CPUs that this process may use (`taskset -cp PID`), or leave it out"
                    .to_owned()
            }
            Self::Device(error) => error.remedy().to_owned(),
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedPlatform => write!(f, "unsupported platform: RDMA needs 64-bit Linux"),
            Self::LibraryAbsent { library, detail } => write!(f, "{library} cannot be loaded: {detail}"),
            Self::LibraryTooOld { library, symbol } => write!(f, "{library} is too old: it lacks {symbol}"),
            Self::NoDevice { detail } => write!(f, "no RDMA device: {detail}"),
            Self::NoSuchDevice { configured, present } => {
                write!(f, "{configured} is configured, the machine has {}", present.join(", "))
            }
            Self::NoReliableQueuePairs { device, driver } => {
                write!(f, "{device} (driver {driver}) has no reliable connected queue pairs (RC)")
            }
            Self::Iwarp { device } => {
                write!(f, "{device} speaks iWARP, which farcall can't connect; it needs RoCE or InfiniBand")
            }
            Self::NoPermission { path } => write!(f, "no permission to open {}", path.display()),
            Self::PortDown { device, port, state } => {
                write!(f, "port {port} of {device} is {state}, not ACTIVE")
            }
            Self::NoGid { device, port, detail } => {
                write!(f, "port {port} of {device} has no usable address: {detail}")
            }
            Self::Memlock(memlock) => memlock.fmt(f),
            Self::BusyCpu { cpu, errno } => {
                let reason = std::io::Error::from_raw_os_error(*errno);
                write!(f, "rdma.busy_cpu = {cpu}: no thread can be put there: {reason}")
            }
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Unavailable {}

impl From<DeviceError> for Unavailable {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl Memlock {
    fn remedy(&self) -> String {
        // This registration may be a region, and pools grow to what is configured.
        let need = self.in_use.max(self.configured).saturating_add(self.asked).div_ceil(1024);
        format!(
            "raise the limit to {need} KiB, enough for all of `rdma.memory` and `rdma.bulk_memory`: `ulimit -l {need}` up to the \
             hard limit, which is {}; above it a `memlock` line in /etc/security/limits.conf, LimitMEMLOCK=infinity in a \
             systemd unit, or `docker run --cap-add=IPC_LOCK --ulimit memlock=-1`",
            Limit(self.hard)
        )
    }
}

impl fmt::Display for Memlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "locked-memory limit: {} KiB asked, {} KiB in use, soft limit {}, hard limit {}",
            self.asked.div_ceil(1024),
            self.in_use.div_ceil(1024),
            Limit(self.soft),
            Limit(self.hard)
        )?;
        let missing = self.in_use.saturating_add(self.asked).saturating_sub(self.soft.unwrap_or(u64::MAX));
        if missing > 0 { write!(f, ", {} KiB missing", missing.div_ceil(1024)) } else { Ok(()) }
    }
}

impl From<Unavailable> for transport::Unavailable {
    fn from(unavailable: Unavailable) -> Self {
        let reason = match &unavailable {
            Unavailable::UnsupportedPlatform => Reason::UnsupportedPlatform,
            Unavailable::LibraryAbsent { .. } => Reason::LibraryAbsent,
            Unavailable::LibraryTooOld { .. } => Reason::LibraryTooOld,
            Unavailable::NoDevice { .. }
            | Unavailable::NoSuchDevice { .. }
            | Unavailable::NoReliableQueuePairs { .. }
            | Unavailable::Iwarp { .. } => Reason::NoDevice,
            Unavailable::NoPermission { .. } => Reason::NoPermission,
            Unavailable::PortDown { .. } => Reason::PortDown,
            Unavailable::NoGid { .. } => Reason::NoGid,
            Unavailable::Memlock(_) => Reason::Memlock,
            Unavailable::BusyCpu { .. } => Reason::Setting,
            Unavailable::Device(_) => Reason::Device,
        };
        // The reason's own words come first wherever this is shown.
        let seen = match &unavailable {
            Unavailable::NoDevice { detail } => detail.clone(),
            other => other.to_string(),
        };
        Self::new(reason, format!("{seen}; {}", unavailable.remedy()))
    }
}

/// A limit in bytes, shown in KiB as `ulimit -l` takes it.
struct Limit(Option<u64>);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{} KiB", bytes / 1024),
            None => f.write_str("unlimited"),
        }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, reason) = (self.meaning().text, std::io::Error::from_raw_os_error(self.errno));
        write!(f, "{}: {} failed: {text}: {reason}", self.device, self.operation)
    }
}

impl DeviceError {
    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        self.meaning().blame
    }

    /// Returns what to do about it.
    pub fn remedy(&self) -> &'static str {
        self.meaning().remedy
    }

    fn meaning(&self) -> &'static Meaning {
        errno::meaning(self.operation, self.errno)
    }
}

impl std::error::Error for DeviceError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memlock_says_what_was_asked_and_how_to_get_it() {
        let memlock = Memlock {
            asked: 8 << 20,
            in_use: 1 << 20,
            configured: 576 << 20,
            soft: Some(64 << 10),
            hard: None,
        };
        let reason = Unavailable::Memlock(memlock);
        assert_eq!(
            reason.to_string(),
            "locked-memory limit: 8192 KiB asked, 1024 KiB in use, soft limit 64 KiB, hard limit unlimited, \
             9152 KiB missing"
        );
        let remedy = reason.remedy();
        for part in [
            "`ulimit -l 598016`",
            "LimitMEMLOCK=infinity",
            "--ulimit memlock=-1",
            "hard limit, which is unlimited",
        ] {
            assert!(remedy.contains(part), "{part}: {remedy}");
        }
        let more_is_in_use = Memlock { in_use: 1 << 30, ..memlock };
        assert!(more_is_in_use.remedy().contains("`ulimit -l 1056768`"), "{}", more_is_in_use.remedy());
    }

    #[test]
    fn refusal_says_what_was_asked_what_it_means_and_what_to_do() {
        let error = DeviceError { device: "mlx5_0".into(), operation: "ibv_create_qp", errno: 12 };
        let why = transport::Unavailable::from(Unavailable::from(error));
        assert_eq!(why.reason, Reason::Device);
        for part in
            ["mlx5_0: ibv_create_qp failed", "locked-memory limit", "Cannot allocate memory", "`ulimit -l`"]
        {
            assert!(why.detail.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn permission_names_the_node() {
        let reason = Unavailable::NoPermission { path: "/dev/infiniband/uverbs3".into() };
        assert!(reason.to_string().contains("/dev/infiniband/uverbs3"));
        assert!(reason.remedy().contains("/dev/infiniband/uverbs3"));
    }

    #[test]
    fn a_statically_linked_program_is_not_told_to_install_a_library() {
        assert!(absent_library(false).contains("install"));
        let remedy = absent_library(true);
        assert!(remedy.contains("linked statically") && !remedy.contains("install"), "{remedy}");
    }
}
