//! Limits of the process, and of its control group.

use super::Finding;
use super::Severity::Fault;
use super::finding::kinds;
use super::view::View;
use crate::Unavailable;
use crate::config::RdmaConfig;
use crate::device::{is_first_namespace, lockable, memlock as memlock_of};

kinds! { KINDS:
    MEMLOCK_LOW = "memlock-low", Warning, Limits,
        "Devices work in memory that is locked. The first registrations fit below the limit; as much as the configuration \
         allows does not. Then some peers stay on TCP, or long messages are copied.",
        "raise the limit to `rdma.memory` and `rdma.bulk_memory` together (`ulimit -l`, LimitMEMLOCK=infinity, \
         `docker run --cap-add=IPC_LOCK --ulimit memlock=-1`), or lower the settings";
    FILES = "few-files", Warning, Limits,
        "Each connection, and each device, is an open file.",
        "raise the limit on open files: `ulimit -n NUMBER`, or LimitNOFILE=NUMBER in a systemd unit";
    CGROUP = "rdma-cgroup", Warning, Limits,
        "The control group limits how many devices and objects of theirs (queue pairs, queues, regions) its processes have. When the \
         limit is reached, further peers stay on TCP.",
        "raise the limit: `echo 'DEVICE hca_object=max' > /sys/fs/cgroup/GROUP/rdma.max`";
    HUGE_PAGES = "no-huge-pages", Note, Limits,
        "Registered memory lies in huge pages where there are any, which devices look up faster. Without them it lies in ordinary ones.",
        "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`, or reserve some: `sysctl vm.nr_hugepages`";
}

pub(super) fn check(view: &View<'_>) -> Vec<Finding> {
    // Without a device that could be used, limits are not what is in the way.
    if view.summaries.iter().all(|device| device.unsuited.is_some()) {
        return Vec::new();
    }
    let mut found: Vec<_> = [memlock(view), files(view), huge_pages(view)].into_iter().flatten().collect();
    found.extend(cgroup(view));
    found
}

/// Finds a limit on locked memory that is lower than what is configured.
fn memlock(view: &View<'_>) -> Option<Finding> {
    let most = view.config.most_memory();
    let soft = lockable(view.machine)?;
    let memlock = memlock_of(view.machine, RdmaConfig::LEAST_MEMORY, most);
    if soft < memlock.in_use.saturating_add(memlock.asked) {
        let mut finding = Finding::from(&Unavailable::Memlock(memlock));
        finding.fix.push_str(for_container(view));
        return Some(finding);
    }
    if soft >= most {
        return None;
    }
    let kib = most.div_ceil(1024);
    let seen = format!(
        "{} KiB may be locked, the configuration allows {kib} KiB (`rdma.memory` and `rdma.bulk_memory`)",
        soft / 1024
    );
    let mut fix = format!(
        "`ulimit -l {kib}`, a `memlock` line in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit, or \
         `docker run --cap-add=IPC_LOCK --ulimit memlock=-1`; or lower the settings"
    );
    fix.push_str(for_container(view));
    Some(Finding::new(&MEMLOCK_LOW, seen, fix))
}

/// Returns how a container is allowed to lock memory, as the end of a list of fixes. Empty if this is none.
fn for_container(view: &View<'_>) -> &'static str {
    match (view.in_container(), is_first_namespace(view.machine)) {
        (false, _) => "",
        (true, true) => {
            "; in Kubernetes add `securityContext: {capabilities: {add: [IPC_LOCK]}}` to the container, and set LimitMEMLOCK=infinity for \
             the container runtime if the container does not run as root"
        }
        (true, false) => {
            "; this container has its own user namespace, where IPC_LOCK does not count: start it with `docker run --ulimit memlock=-1`, \
             or in Kubernetes set LimitMEMLOCK=infinity for the container runtime"
        }
    }
}

/// Finds a limit on open files that is lower than the configured number of connections.
fn files(view: &View<'_>) -> Option<Finding> {
    // Standard streams, the runtime, listening sockets, and the device's own.
    const OTHERS: u64 = 64;
    let limits = view.machine.read("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft: u64 = line.split_whitespace().next()?.parse().ok()?;
    let need = u64::from(view.config.connections) + OTHERS;
    let seen = format!("{soft} files may be open, {} connections are configured", view.config.connections);
    let fix = format!(
        "raise it: `ulimit -n {0}`, or LimitNOFILE={0} in a systemd unit",
        (2 * need).next_power_of_two()
    );
    (soft < need).then(|| Finding::new(&FILES, seen, fix))
}

/// Finds limits of the control group, and of those above it, that are lower than what a few connections need. See the kernel's
/// Documentation/admin-guide/cgroup-v2.rst, "RDMA".
fn cgroup(view: &View<'_>) -> Vec<Finding> {
    // A protection domain, a completion channel's queues, a shared receive queue, regions; and a queue pair and windows for each peer.
    const OBJECTS: u64 = 128;
    let groups = view.machine.read("/proc/self/cgroup").unwrap_or_default();
    let of_group = groups.lines().find_map(|line| {
        let v2 = line.strip_prefix("0::").map(|path| ("/sys/fs/cgroup", path));
        v2.or_else(|| Some(("/sys/fs/cgroup/rdma", line.split_once(":rdma:")?.1)))
    });
    let Some((mount, mut path)) = of_group else { return Vec::new() };
    let mut found = Vec::new();
    loop {
        let directory = format!("{mount}{}", path.trim_end_matches('/'));
        let read = |file: &str| view.machine.read(&format!("{directory}/{file}")).unwrap_or_default();
        let (limits, current) = (read("rdma.max"), read("rdma.current"));
        for (device, name, limit) in numbers(&limits) {
            if !view.summaries.iter().any(|summary| summary.name == device) {
                continue;
            }
            let used = numbers(&current).find(|(of, what, _)| (*of, *what) == (device, name));
            let used = used.map_or(0, |(.., used)| used);
            let need = if name == "hca_object" { OBJECTS } else { 1 };
            if limit.saturating_sub(used) < need {
                let finding = Finding::new(
                    &CGROUP,
                    format!(
                        "{directory}/rdma.max allows {limit} {name} of {device}, {used} are in use; {need} or more are needed"
                    ),
                    format!("`echo '{device} {name}=max' > {directory}/rdma.max`"),
                );
                // Those in use may be the service's own.
                found.push(if limit == 0 { finding.but(Fault) } else { finding });
            }
        }
        match path.trim_end_matches('/').rsplit_once('/') {
            Some((above, _)) => path = above,
            None => return found,
        }
    }
}

/// Returns the numbers in the lines `DEVICE NAME=NUMBER …` of a file of the control group. A word `max` is no number, and no limit.
fn numbers(text: &str) -> impl Iterator<Item = (&str, &str, u64)> {
    text.lines().flat_map(|line| {
        let mut words = line.split_whitespace();
        let device = words.next().unwrap_or_default();
        words.filter_map(move |word| {
            let (name, number) = word.split_once('=')?;
            Some((device, name, number.parse().ok()?))
        })
    })
}

/// Finds that registered memory can't lie in huge pages. Emulated devices don't care.
fn huge_pages(view: &View<'_>) -> Option<Finding> {
    let (device, ..) = view.chosen()?;
    if view.is_software(device) {
        return None;
    }
    let memory = view.machine.read("/proc/meminfo")?;
    let line = memory.lines().find_map(|line| line.strip_prefix("HugePages_Total:"))?;
    let transparent = view.machine.read("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let is_off = transparent.is_empty() || transparent.contains("[never]");
    let seen = "no huge pages are reserved, and transparent ones are off";
    let size = memory
        .lines()
        .find_map(|line| line.strip_prefix("Hugepagesize:")?.split_whitespace().next()?.parse::<u64>().ok());
    let need = view.config.most_memory().div_ceil(1024);
    // Larger ones than 2 MiB would be many times what is needed.
    let reserve = size
        .filter(|kib| *kib == 2048)
        .map(|kib| format!("; or reserve some: `sysctl vm.nr_hugepages={}`", need.div_ceil(kib)));
    let fix =
        format!("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled{}", reserve.unwrap_or_default());
    (line.trim() == "0" && is_off).then(|| Finding::new(&HUGE_PAGES, seen, fix))
}
