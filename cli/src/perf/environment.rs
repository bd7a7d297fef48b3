//! The machine and process that a measurement was made on.

use serde::{Deserialize, Serialize};

/// A machine and a process on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Environment {
    pub(crate) host: String,
    /// The kernel's version.
    pub(crate) kernel: String,
    /// The processor's name.
    pub(crate) processor: String,
    /// CPUs that the process may use.
    pub(crate) cpus: u32,
    /// The version of `farcall`.
    pub(crate) version: String,
    /// RDMA devices, each with its driver and rate.
    pub(crate) devices: Vec<String>,
}

impl Environment {
    /// Returns that of this process. Blocks: it takes a look at the machine.
    pub(crate) fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let processor = read("/proc/cpuinfo").lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == "model name").then(|| value.trim().to_owned())
        });
        Self {
            host: read("/proc/sys/kernel/hostname"),
            kernel: read("/proc/sys/kernel/osrelease"),
            processor: processor.unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(0, |cpus| cpus.get() as u32),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            devices: devices(),
        }
    }

    /// Returns it in one line.
    pub(crate) fn line(&self) -> String {
        let devices =
            if self.devices.is_empty() { "no RDMA device".to_owned() } else { self.devices.join(", ") };
        format!(
            "{}: {}, {} CPUs, Linux {}, {devices}, farcall {}",
            self.host, self.processor, self.cpus, self.kernel, self.version
        )
    }
}

fn devices() -> Vec<String> {
    use farcall::rdma::probe::{self, Machine};
    let report = probe::examine(&Machine::this(), &farcall::RdmaConfig::default());
    let describe = |device: probe::DeviceView| {
        let driver = device.driver.unwrap_or_default();
        let rate = device.ports.into_iter().find_map(|port| port.rate).unwrap_or_default();
        format!("{} ({driver}, {rate})", device.name)
    };
    report.devices.into_iter().map(describe).collect()
}

/// Returns the time that processors have worked for this process, in microseconds. 0: it is not known on this platform.
pub(crate) fn processor_micros() -> u64 {
    // The kernel counts in hundredths of a second in this file, whatever it ticks in: proc_pid_stat(5), USER_HZ.
    const MICROS: u64 = 10_000;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may contain anything. utime and stime are the 12th and 13th fields behind it.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks * MICROS
}
