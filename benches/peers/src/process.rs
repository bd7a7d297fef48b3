//! The resources that a process has used, as the kernel counts.

use std::fs;
use std::path::PathBuf;

/// This process, or another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Process {
    Own,
    Other(u32),
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Time on a CPU, user and system, of the threads that are there.
    pub(crate) cpu_ns: u64,
    /// How often they have slept.
    pub(crate) sleeps: u64,
}

impl Process {
    fn path(self, name: &str) -> PathBuf {
        match self {
            Self::Own => PathBuf::from(format!("/proc/self/{name}")),
            Self::Other(pid) => PathBuf::from(format!("/proc/{pid}/{name}")),
        }
    }

    pub(crate) fn usage(self) -> Usage {
        let mut usage = Usage::default();
        for thread in fs::read_dir(self.path("task")).into_iter().flatten().flatten() {
            // Nanoseconds; stat has hundredths of a second.
            let schedstat = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            usage.cpu_ns += schedstat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            usage.sleeps += field(&status, "voluntary_ctxt_switches:");
        }
        usage
    }

    /// The most memory that it has had, in KiB.
    pub(crate) fn peak_memory(self) -> u64 {
        field(&fs::read_to_string(self.path("status")).unwrap_or_default(), "VmHWM:")
    }
}

/// The number behind a name that begins a line; 0 where there is none.
fn field(status: &str, name: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
