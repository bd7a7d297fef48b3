//! The CPUs that work near a device, and their speed.

use std::collections::BTreeSet;

use super::Finding;
use super::Severity::Fault;
use super::finding::kinds;
use super::view::View;
use crate::device::{DeviceSummary, ranges};

kinds! { KINDS:
    REMOTE = "remote-node", Warning, Placement,
        "Every access of the device to this process's memory, and every look at the device, crosses from one processor socket to another.",
        "`numactl --cpunodebind=NODE --membind=NODE PROGRAM`, with the device's node";
    BUSY_REMOTE = "remote-poller", Warning, Placement,
        "The CPU that polls the device is on another socket than the device.",
        "set `rdma.busy_cpu` to a CPU that the device is attached to";
    BUSY_ABSENT = "busy-cpu-not-allowed", Fault, Placement,
        "The thread that polls the device can't run on the CPU that the configuration names.",
        "set `rdma.busy_cpu` to one of the CPUs that this process may run on, or leave it out";
    ONE_CPU = "interrupts-on-one-cpu", Warning, Placement,
        "One CPU takes all interrupts of the device. In the completion modes `event` and `adaptive` it limits all wake-ups.",
        "spread the interrupts over the CPUs near the device, by /proc/irq/*/smp_affinity_list, and stop irqbalance, which undoes it";
    IRQ_REMOTE = "remote-interrupts", Warning, Placement,
        "The device's interrupts go to CPUs on another socket than the device.",
        "send the interrupts to CPUs near the device, by /proc/irq/*/smp_affinity_list, and stop irqbalance, which undoes it";
    GOVERNOR = "slow-governor", Note, Placement,
        "The CPUs sleep and change their speed to save power. A call that wakes one waits for that, up to some tens of microseconds.",
        "`cpupower frequency-set -g performance`";
}

pub(super) fn check(view: &View<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(busy_cpu(view));
    // Emulated devices are everywhere, and have no interrupts.
    let Some((device, ..)) = view.chosen().filter(|(device, ..)| !view.is_software(device)) else {
        return found;
    };
    found.extend(remote(view, device));
    found.extend(interrupts(view, device));
    found.extend(governor(view));
    found
}

/// Returns the CPUs that this process may run on.
fn allowed(view: &View<'_>) -> Option<String> {
    let status = view.machine.read("/proc/self/status")?;
    Some(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned())
}

/// Returns the CPUs in a list, of which no machine has more than some thousands.
fn cpus_of(list: &str) -> Vec<u32> {
    ranges(list).into_iter().flat_map(|(first, last)| first..=last).take(8192).collect()
}

fn contains(list: &str, cpu: u32) -> bool {
    ranges(list).iter().any(|(first, last)| (*first..=*last).contains(&cpu))
}

/// Returns the distance of one node from another. The kernel lists those of the nodes that are online, whose numbers may have gaps.
fn distance(view: &View<'_>, from: u32, to: u32) -> Option<String> {
    let online = view.machine.read("/sys/devices/system/node/online")?;
    let column = cpus_of(&online).iter().position(|node| *node == to)?;
    let distances = view.machine.read(&format!("/sys/devices/system/node/node{from}/distance"))?;
    distances.split_whitespace().nth(column).map(str::to_owned)
}

/// Finds that the process runs on another node than the device is attached to.
fn remote(view: &View<'_>, device: &DeviceSummary) -> Option<Finding> {
    let (cpus, of_device) = (allowed(view)?, device.numa_node?);
    let home = view.machine.node_of(&cpus).filter(|home| *home != of_device)?;
    let distance = distance(view, home, of_device)
        .map_or_else(String::new, |distance| format!(", at distance {distance} (10 is the same node)"));
    let seen = format!(
        "{} is on NUMA node {of_device}, this process may run on node {home} only (CPUs {cpus}){distance}",
        device.name
    );
    Some(Finding::new(
        &REMOTE,
        seen,
        format!("`numactl --cpunodebind={of_device} --membind={of_device} PROGRAM`"),
    ))
}

fn busy_cpu(view: &View<'_>) -> Option<Finding> {
    let cpu = view.config.busy_cpu?;
    let allowed = allowed(view)?;
    if !contains(&allowed, u32::from(cpu)) {
        let seen = format!("rdma.busy_cpu = {cpu}, this process may run on the CPUs {allowed}");
        return Some(
            Finding::new(&BUSY_ABSENT, seen, "set rdma.busy_cpu to one of these, or leave it out").but(Fault),
        );
    }
    let (device, ..) = view.chosen()?;
    let near =
        view.of_device(device, "device/local_cpulist").filter(|near| !contains(near, u32::from(cpu)))?;
    let seen = format!("rdma.busy_cpu = {cpu}, {} is attached to the CPUs {near}", device.name);
    Some(Finding::new(&BUSY_REMOTE, seen, "set rdma.busy_cpu to one of these"))
}

/// Finds interrupts that go to one CPU, or to CPUs of another node.
fn interrupts(view: &View<'_>, device: &DeviceSummary) -> Option<Finding> {
    // Of fewer interrupts than this, nothing need be spread.
    const SEVERAL: usize = 4;
    let numbers = view.machine.names(&format!("/sys/class/infiniband/{}/device/msi_irqs", device.name));
    let target = |number: &String| {
        let of = |file| view.machine.read(&format!("/proc/irq/{number}/{file}"));
        of("effective_affinity_list").or_else(|| of("smp_affinity_list"))
    };
    let targets: Vec<_> = numbers.iter().filter_map(target).collect();
    let cpus: BTreeSet<u32> = targets.iter().flat_map(|list| cpus_of(list)).collect();
    let near = view.of_device(device, "device/local_cpulist").unwrap_or_default();
    let spread = |to: &str| {
        let irqbalance = match view.machine.run(&["pidof", "irqbalance"]) {
            Ok(_) => "stop irqbalance, which undoes it, and ",
            Err(_) => "",
        };
        // One CPU for each: an interrupt stays where it is if that is among those that it may go to.
        let list: Vec<_> = cpus_of(to).iter().map(u32::to_string).collect();
        format!(
            "{irqbalance}spread them: `c=({}); n=0; for i in /sys/class/infiniband/{}/device/msi_irqs/*; do echo ${{c[n++ % ${{#c[@]}}]}} > \
             /proc/irq/${{i##*/}}/smp_affinity_list; done`",
            list.join(" "),
            device.name
        )
    };
    let all = allowed(view).unwrap_or_else(|| "0-63".to_owned());
    let to = if near.is_empty() { &all } else { &near };
    if !near.is_empty() && !cpus.is_empty() && !cpus.iter().any(|cpu| contains(&near, *cpu)) {
        let seen =
            format!("no interrupt of {} goes to the CPUs {near}, which it is attached to", device.name);
        return Some(Finding::new(&IRQ_REMOTE, seen, spread(to)));
    }
    let could_spread = cpus_of(to).len() > 1 && targets.len() >= SEVERAL;
    let only = cpus.iter().next().filter(|_| cpus.len() == 1 && could_spread)?;
    let seen = format!("all {} interrupts of {} go to CPU {only}", targets.len(), device.name);
    Some(Finding::new(&ONE_CPU, seen, spread(to)))
}

fn governor(view: &View<'_>) -> Option<Finding> {
    let governor = view.machine.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")?;
    let seen = format!("the CPUs' governor is {governor}");
    (governor != "performance")
        .then(|| Finding::new(&GOVERNOR, seen, "cpupower frequency-set -g performance"))
}
