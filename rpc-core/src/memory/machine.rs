//! The memory that this process may have.

use std::fs;
use std::path::Path;

/// The memory to assume where the system does not say, in bytes.
const UNKNOWN: usize = 4 << 30;

/// Returns the least of the memory that the machine has, the memory that the control group allows, and the address space that
/// the process may have (`ulimit -v`), in bytes.
pub(super) fn memory() -> usize {
    allowed(Path::new("/")).unwrap_or(UNKNOWN)
}

/// Returns the memory that the system below this root allows. Sources: proc(5), Linux' cgroup-v2.rst ("memory.max") and
/// cgroup-v1/memory.rst ("memory.limit_in_bytes"), getrlimit(2) ("RLIMIT_AS").
fn allowed(root: &Path) -> Option<usize> {
    let info = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total = total.split_whitespace().next()?.parse::<usize>().ok()?.saturating_mul(1024);
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(|line| limits(root, line));
    Some(limits.chain(address_space(root)).fold(total, usize::min))
}

/// Returns the limit on the address space of the process, if there is one. The file has a line for each limit: its name, the
/// limit that counts now, the one that it may be raised to, the unit.
fn address_space(root: &Path) -> Option<usize> {
    let limits = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    // A process without a limit has the word `unlimited`.
    limit.split_whitespace().next()?.parse().ok()
}

/// Returns the limits of a control group and of those that it is in. `line` is of /proc/self/cgroup: a number, controllers,
/// and the path of the group, with colons between them.
fn limits(root: &Path, line: &str) -> Vec<usize> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { return Vec::new() };
    let (hierarchy, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        of if of.split(',').any(|of| of == "memory") => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return Vec::new(),
    };
    let group = Path::new(group.trim_start_matches('/'));
    let groups = group.ancestors().map(|group| root.join(hierarchy).join(group).join(file));
    // A group without a limit says `max`, or a number beyond any machine.
    groups.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes files below a new directory.
    fn tree(files: &[(&str, &str)]) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("farcall-memory-{:016x}", fastrand::u64(..)));
        for (name, content) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    #[test]
    fn the_least_of_machine_groups_and_process_counts() {
        const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:       8000000 kB\nMemFree: 1 kB\n");
        const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
            Max cpu time              unlimited            unlimited            seconds\n\
            Max address space         1073741824           unlimited            bytes\n";
        type Files = &'static [(&'static str, &'static str)];
        let cases: [(Files, Option<usize>); 8] = [
            (&[], None),
            (&[MACHINE], Some(8_192_000_000)),
            (
                &[MACHINE, ("proc/self/cgroup", "0::/a/b\n"), ("sys/fs/cgroup/a/b/memory.max", "max\n")],
                Some(8_192_000_000),
            ),
            (
                &[
                    MACHINE,
                    ("proc/self/cgroup", "0::/a/b\n"),
                    ("sys/fs/cgroup/a/memory.max", "1000000\n"),
                    ("sys/fs/cgroup/a/b/memory.max", "2000000\n"),
                ],
                Some(1_000_000),
            ),
            // In a container, the group is the root.
            (
                &[MACHINE, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "536870912\n")],
                Some(512 << 20),
            ),
            (
                &[
                    MACHINE,
                    ("proc/self/cgroup", "5:cpu,memory:/c\n1:name=systemd:/c\n"),
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                    ("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "3000000\n"),
                ],
                Some(3_000_000),
            ),
            (&[MACHINE, ("proc/self/limits", LIMITS), ("proc/self/cgroup", "0::/\n")], Some(1_073_741_824)),
            (
                &[
                    MACHINE,
                    (
                        "proc/self/limits",
                        "Max address space         unlimited            unlimited            bytes\n",
                    ),
                ],
                Some(8_192_000_000),
            ),
        ];
        for (files, expected) in cases {
            let root = tree(files);
            assert_eq!(allowed(&root), expected, "{files:?}");
            let _ = fs::remove_dir_all(root);
        }
    }
}
