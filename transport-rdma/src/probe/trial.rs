//! Has a device do what farcall asks of devices, with itself.

mod pair;

use std::thread;
use std::time::Instant;

use self::pair::Pair;
use super::addresses::mtu_mismatch;
use super::examine::open;
use super::finding::kinds;
use super::report::{DeviceView, Step, StepResult};
use super::stop::Stop;
use super::unseen::{self, Unseen};
use super::{Finding, Report};
use crate::config::RdmaConfig;
use crate::device::{Device, Host, LocalPath};
use crate::machine::Machine;
use crate::resources::Memory;
use crate::verbs::SystemHost;

kinds! { KINDS:
    FAILED = "trial-failed", Fault, Trial,
        "The device failed at something that farcall needs of it. Connections would fail over to TCP, or go by TCP from the beginning.",
        "see the kernel's log and the status that the finding names; `farcall explain` has it";
    NO_WINDOWS = "no-windows", Note, Trial,
        "Without memory windows that belong to one queue pair (type 2B), no memory is exposed to peers. Long messages are copied, and the \
         owner's runtime does what peers ask of regions.",
        "if that is too slow, use a device and a driver that have them";
    NO_ATOMICS = "no-atomics", Note, Trial,
        "The device changes no numbers for peers. The owner's runtime does it.",
        "if that is too slow, use a device and a driver that have them";
    FEW_QPS = "few-queue-pairs", Warning, Trial,
        "Each peer has a queue pair of the device, and other programs have some, too. Peers for which none is left stay on TCP.",
        "see who has them: `rdma resource show qp`; or lower `rdma.connections`";
    FEW_REGIONS = "few-memory-regions", Warning, Trial,
        "Memory is registered with the device step by step, as peers come. When it takes no more, further peers stay on TCP, and long \
         messages are copied.",
        "see who has them: `rdma resource show mr`; or lower `rdma.memory`";
}

/// Has the device that a connection would use send, read, write, change a number, wake this process, and let go of memory; and adds to
/// the report what it did, and what failed first.
///
/// Opens the device and connects two of its queue pairs with each other. Blocks for up to some seconds. Does nothing if the report has
/// no address that a connection would leave from.
pub fn trial(report: &mut Report, config: &RdmaConfig) {
    if report.chosen.is_some() {
        const PROGRAM: &[&str] = &["rdma", "resource", "show"];
        let resources = Machine::this().run(PROGRAM);
        let unseen = resources.as_ref().err().and_then(|why| Unseen::new(PROGRAM, *why));
        report.extend(unseen::finding(&unseen.into_iter().collect()));
        try_host(&SystemHost::default(), report, config, &resources.unwrap_or_default());
    }
}

/// Tries the device of a host. `resources` are as in rdma-resource(8): a line `INDEX: DEVICE: pd N cq N qp N …` for each device.
pub(super) fn try_host(host: &dyn Host, report: &mut Report, config: &RdmaConfig, resources: &str) {
    let mut steps = Steps::default();
    // Waiting for events takes a runtime. The caller may be within one, which must not be blocked by another.
    let devices = &report.devices;
    let findings = thread::scope(|scope| {
        let tried = scope.spawn(|| run(host, config, devices, resources, &mut steps));
        tried.join().unwrap_or_else(|_| {
            vec![Finding::new(&FAILED, "the trial panicked", "report this, with the command's output")]
        })
    });
    report.tried = steps.0;
    let is_known = |new: &Finding| {
        report.findings.iter().any(|known| (known.code, known.severity) == (new.code, new.severity))
    };
    let findings: Vec<_> = findings.into_iter().filter(|finding| !is_known(finding)).collect();
    report.extend(findings);
}

/// The steps so far.
#[derive(Debug, Default)]
struct Steps(Vec<Step>);

impl Steps {
    /// Does one thing, and notes what came of it.
    fn step<T>(&mut self, what: &'static str, step: impl FnOnce() -> Result<T, Stop>) -> Result<T, Stop> {
        let began = Instant::now();
        let done = step();
        let result = if done.is_ok() { StepResult::Worked } else { StepResult::Failed };
        self.0.push(Step { what, result, micros: began.elapsed().as_micros() as u64 });
        done
    }

    fn skip(&mut self, what: &'static str) {
        self.0.push(Step { what, result: StepResult::Skipped, micros: 0 });
    }
}

fn run(
    host: &dyn Host,
    config: &RdmaConfig,
    devices: &[DeviceView],
    resources: &str,
    steps: &mut Steps,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(stop) = run_steps(host, config, devices, resources, steps, &mut findings) {
        let at = steps.0.last().map_or("the trial", |step| step.what);
        findings.push(match stop {
            Stop::Unavailable(unavailable) => Finding::from(&unavailable),
            Stop::Completion(error) => {
                Finding::new(&FAILED, format!("{at} failed: {error}"), error.status.remedy())
            }
            Stop::Other(why) => {
                Finding::new(&FAILED, format!("{at} failed: {why}"), "see the kernel's log, and report this")
            }
        });
    }
    findings
}

fn run_steps(
    host: &dyn Host,
    config: &RdmaConfig,
    devices: &[DeviceView],
    resources: &str,
    steps: &mut Steps,
    findings: &mut Vec<Finding>,
) -> Result<(), Stop> {
    let (device, path) = steps.step("open the device", || Ok(open(host, config, None)?))?;
    findings.extend(missing(&*device));
    findings.extend(objects(&*device, resources, config));
    findings.extend(mtu(devices, device.name(), &path));
    steps.step("register memory", || Ok(Memory::try_out(&*device)?))?;
    let mut pair = steps.step("connect", || Pair::new(&device, &path))?;
    steps.step("SEND", || pair.send())?;
    steps.step("wake up by an event", || pair.event())?;
    let limits = device.limits();
    if limits.windows == 0 || limits.reads == 0 {
        ["READ", "WRITE", "atomic addition", "end access"].into_iter().for_each(|what| steps.skip(what));
        return Ok(());
    }
    let read = steps.step("READ", || pair.read())?;
    let words = pair.words()?;
    steps.step("WRITE", || pair.write(&words))?;
    match limits.atomics {
        true => steps.step("atomic addition", || pair.add(&words))?,
        false => steps.skip("atomic addition"),
    }
    // The refusal is the end of both queue pairs.
    steps.step("end access", || pair.end_access(read))
}

/// Finds what the device can't do, and farcall does without.
fn missing(device: &dyn Device) -> Vec<Finding> {
    let (limits, name) = (device.limits(), device.name());
    let mut found = Vec::new();
    let fix = "if that is too slow, use a device and a driver that have it";
    if limits.windows == 0 {
        found.push(Finding::new(&NO_WINDOWS, format!("{name} has no memory windows of type 2B"), fix));
    }
    if !limits.atomics {
        found.push(Finding::new(&NO_ATOMICS, format!("{name} has no atomic operations"), fix));
    }
    found
}

/// Finds that the device has fewer objects left than the configuration allows this process.
fn objects(device: &dyn Device, resources: &str, config: &RdmaConfig) -> Vec<Finding> {
    let (name, limits) = (device.name(), device.limits());
    let used = |object: &str| -> Option<u64> {
        let mut lines = resources.lines().filter_map(|line| line.split_once(": ")?.1.strip_prefix(name));
        let objects = lines.find_map(|line| line.strip_prefix(": "))?;
        objects.split_whitespace().skip_while(|word| *word != object).nth(1)?.parse().ok()
    };
    let left = |kind, object, what, most: u32, need: u64, setting| {
        let left = u64::from(most).saturating_sub(used(object)?);
        let seen = format!("{name} has {left} of {most} {what} left, `{setting}` allows this process {need}");
        let fix = format!("see who has them: `rdma resource show {object}`; or lower `{setting}`");
        (left < need).then(|| Finding::new(kind, seen, fix))
    };
    // Each step of memory is two regions. Long messages have few: each is as large as all before it.
    let regions = 2 * config.memory.div_ceil(RdmaConfig::LEAST_MEMORY);
    let connections = u64::from(config.connections);
    let queue_pairs = left(&FEW_QPS, "qp", "queue pairs", limits.max_qp, connections, "rdma.connections");
    let regions = left(&FEW_REGIONS, "mr", "memory regions", limits.max_mr, regions, "rdma.memory");
    queue_pairs.into_iter().chain(regions).collect()
}

/// Finds that packets are smaller than the network interface's.
fn mtu(devices: &[DeviceView], name: &str, path: &LocalPath) -> Option<Finding> {
    let mut ports = devices.iter().filter(|device| device.name == name).flat_map(|device| &device.ports);
    let port = ports.find(|port| port.number == path.port && port.link_layer == "Ethernet")?;
    let (netdev, netdev_mtu) = (port.netdev.as_deref()?, port.netdev_mtu?);
    mtu_mismatch(name, path.status.active_mtu.bytes() as u64, netdev, netdev_mtu)
}

#[cfg(test)]
mod tests;
