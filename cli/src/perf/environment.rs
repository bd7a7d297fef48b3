//! The machine and process that a measurement was made on.

use std::collections::BTreeMap;

use farcall::Config;
use farcall::rdma::RdmaConfig;
use farcall::rdma::probe::{self, Machine};
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    /// Threads that call, or that serve.
    #[serde(default)]
    pub(crate) threads: u16,
    /// The rule by which the CPUs change their speed. Empty: it is not known.
    #[serde(default)]
    pub(crate) governor: String,
    /// The largest packets of the network interfaces, in bytes.
    #[serde(default)]
    pub(crate) mtu: BTreeMap<String, u64>,
    /// The settings that are not the default ones, by their names in a configuration, without those of encryption.
    #[serde(default)]
    pub(crate) configuration: BTreeMap<String, String>,
    /// The process's command line.
    #[serde(default)]
    pub(crate) command: String,
}

impl Environment {
    /// Returns that of this process. Blocks: it takes a look at the machine.
    pub(crate) fn here(threads: u16, config: &Config) -> Self {
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
            threads,
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            mtu: mtu(),
            configuration: configuration(config),
            command: std::env::args_os()
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect::<Vec<_>>()
                .join(" "),
        }
    }

    /// Returns it in one line.
    pub(crate) fn line(&self) -> String {
        let devices =
            if self.devices.is_empty() { "no RDMA device".to_owned() } else { self.devices.join(", ") };
        let governor = match self.governor.as_str() {
            "" => String::new(),
            governor => format!(" ({governor})"),
        };
        let settings: String =
            self.configuration.iter().map(|(name, value)| format!(", {name} = {value}")).collect();
        format!(
            "{}: {}, {} CPUs{governor}, Linux {}, {devices}, farcall {}, threads: {}{settings}",
            self.host, self.processor, self.cpus, self.kernel, self.version, self.threads
        )
    }

    /// Returns the facts that differ: the name, the other run's value, and this run's. Command lines, which say where results go, are left
    /// out, and so are numbers of threads that an earlier version did not note.
    pub(crate) fn differences(&self, other: &Self) -> Vec<(String, String, String)> {
        let facts = |environment: &Self| {
            let mut facts = BTreeMap::new();
            flatten("", &serde_json::to_value(environment).unwrap_or_default(), &mut facts);
            facts.remove("command");
            if environment.threads == 0 {
                facts.remove("threads");
            }
            facts
        };
        let (theirs, ours) = (facts(other), facts(self));
        let names: std::collections::BTreeSet<_> = theirs.keys().chain(ours.keys()).collect();
        let value = |facts: &BTreeMap<String, String>, name: &str| {
            facts.get(name).filter(|value| !value.is_empty()).cloned().unwrap_or_else(|| "-".to_owned())
        };
        let both = names.into_iter().map(|name| (name.clone(), value(&theirs, name), value(&ours, name)));
        both.filter(|(_, theirs, ours)| theirs != ours).collect()
    }
}

/// Returns what a file contains, without white space around it.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn devices() -> Vec<String> {
    let report = probe::examine(&Machine::this(), &RdmaConfig::default());
    let describe = |device: probe::DeviceView| {
        let driver = device.driver.unwrap_or_default();
        let rate = device.ports.into_iter().find_map(|port| port.rate).unwrap_or_default();
        format!("{} ({driver}, {rate})", device.name)
    };
    report.devices.into_iter().map(describe).collect()
}

/// Returns the MTU of each interface that is a device, which those of containers and tunnels are not.
fn mtu() -> BTreeMap<String, u64> {
    let interfaces = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mtu = |interface: std::fs::DirEntry| {
        let mtu = std::fs::read_to_string(interface.path().join("mtu")).ok()?;
        interface.path().join("device").exists().then_some(())?;
        Some((interface.file_name().into_string().ok()?, mtu.trim().parse().ok()?))
    };
    interfaces.filter_map(mtu).collect()
}

/// Returns the settings that are not the default ones. Those of encryption are nobody else's business.
fn configuration(config: &Config) -> BTreeMap<String, String> {
    let settings = |config: &Config| {
        let mut settings = BTreeMap::new();
        let mut all = serde_json::to_value(config).unwrap_or_default();
        if let Value::Object(sections) = &mut all {
            sections.remove("tls");
        }
        flatten("", &all, &mut settings);
        settings
    };
    let default = settings(&Config::default());
    let mut settings = settings(config);
    settings.retain(|name, value| default.get(name) != Some(value));
    settings
}

/// Adds the values of a tree by their paths.
fn flatten(path: &str, value: &Value, facts: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, facts);
            }
        }
        Value::Array(items) => {
            let items: Vec<_> = items
                .iter()
                .map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned))
                .collect();
            facts.insert(path.to_owned(), items.join(", "));
        }
        Value::String(text) => drop(facts.insert(path.to_owned(), text.clone())),
        Value::Null => {}
        other => drop(facts.insert(path.to_owned(), other.to_string())),
    }
}

/// Returns the time that processors have worked for this process, in microseconds. 0: it is not known on this platform.
pub(crate) fn processor_micros() -> u64 {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
    }
    #[cfg(not(target_os = "linux"))]
    0
}
