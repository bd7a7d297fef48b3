//! The kernel's figures about locked memory.

use crate::machine::Machine;
use crate::unavailable::Memlock;

/// The limit and its use, for an error about a registration of `asked` bytes, where so many are `configured` in all. A limit
/// that cannot be read counts as unlimited.
pub(crate) fn memlock(machine: &Machine, asked: u64, configured: u64) -> Memlock {
    let limits = machine.read("/proc/self/limits").unwrap_or_default();
    Memlock { asked, configured, ..parse(&limits, &status(machine)) }
}

/// Returns the limit, if it explains why the kernel had no memory for a registration of `asked` bytes. Otherwise the device has no room.
pub(crate) fn memlock_reached(machine: &Machine, asked: u64, configured: u64) -> Option<Memlock> {
    /// Bytes that a registration takes more at most, because it takes whole pages.
    const PAGES: u64 = 128 << 10;
    let limit = lockable(machine)?;
    let memlock = memlock(machine, asked, configured);
    let needed = memlock.in_use.saturating_add(asked).saturating_add(PAGES);
    (needed > limit).then_some(memlock)
}

/// How many bytes this process may lock in all; `None`: as many as there are.
pub(crate) fn lockable(machine: &Machine) -> Option<u64> {
    if has_ipc_lock(&status(machine)) && is_first_namespace(machine) {
        None
    } else {
        memlock(machine, 0, 0).soft
    }
}

/// Whether this is the first user namespace: in others the kernel does not count the capability.
pub(crate) fn is_first_namespace(machine: &Machine) -> bool {
    let map = machine.read("/proc/self/uid_map").unwrap_or_default();
    map.is_empty() || map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn status(machine: &Machine) -> String {
    machine.read("/proc/self/status").unwrap_or_default()
}

/// Whether the limit does not apply: CAP_IPC_LOCK, as root has it.
fn has_ipc_lock(status: &str) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let effective = line(status, "CapEff:").next().and_then(|hex| u64::from_str_radix(hex, 16).ok());
    effective.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

/// Returns the limit and its use, about no registration.
fn parse(limits: &str, status: &str) -> Memlock {
    let mut values = line(limits, "Max locked memory").map(str::parse::<u64>);
    // "unlimited" is not a number, and so becomes `None`.
    let (soft, hard) = (values.next().and_then(Result::ok), values.next().and_then(Result::ok));
    let pinned_kib = line(status, "VmPin:").next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
    Memlock { asked: 0, in_use: pinned_kib.saturating_mul(1024), configured: 0, soft, hard }
}

/// The words after `name` on the line that begins with it.
fn line<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().split_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     
Max processes             96365                96365                processes 
Max locked memory         8388608              unlimited            bytes     
";

    #[test]
    fn limits_and_use_are_read() {
        let m = parse(LIMITS, "VmLck:\t       0 kB\nVmPin:\t    2048 kB\n");
        assert_eq!((m.in_use, m.soft, m.hard), (2 << 20, Some(8 << 20), None));
    }

    #[test]
    fn capability_lifts_the_limit() {
        assert!(has_ipc_lock("CapEff:\t000001ffffffffff\n"));
        assert!(!has_ipc_lock("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n"));
        assert!(!has_ipc_lock(""));
    }

    #[test]
    fn capability_of_another_namespace_lifts_nothing() {
        let recording = |map: &str| {
            format!(
                "== /proc/self/limits\n{LIMITS}== /proc/self/status\nCapEff:\t000001ffffffffff\n== /proc/self/uid_map\n{map}\n"
            )
        };
        let lockable = |map: &str| lockable(&Machine::recorded(&recording(map)).unwrap());
        assert_eq!(lockable("         0          0 4294967295"), None);
        assert_eq!(lockable("         0       1000          1"), Some(8 << 20));
    }

    #[test]
    fn the_limit_is_the_reason_only_where_it_is_reached() {
        let recording = |capabilities: &str| {
            let status = format!("CapEff:\t{capabilities}\nVmPin:\t2048 kB\n");
            let text = format!("== /proc/self/limits\n{LIMITS}== /proc/self/status\n{status}");
            Machine::recorded(&text).unwrap()
        };
        let (user, root) = (recording("0000000000000000"), recording("000001ffffffffff"));
        let reached = memlock_reached(&user, 7 << 20, 9 << 20).unwrap();
        assert_eq!((reached.asked, reached.in_use, reached.configured), (7 << 20, 2 << 20, 9 << 20));
        assert!(memlock_reached(&user, 6 << 20, 9 << 20).is_some(), "whole pages are more");
        assert_eq!(memlock_reached(&user, 5 << 20, 9 << 20), None);
        assert_eq!(memlock_reached(&root, 7 << 20, 9 << 20), None);
    }

    #[test]
    fn unreadable_is_unlimited() {
        let m = parse("", "");
        assert_eq!((m.in_use, m.soft, m.hard), (0, None, None));
    }
}
