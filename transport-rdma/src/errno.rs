//! The meaning of error numbers of verbs: whose fault one is, and what to do.
//!
//! The numbers are Linux's, and stand here by themselves because the crate compiles elsewhere, too.

/// Whose fault something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// A bug of this program's.
    Bug,
    /// The peer broke the protocol.
    Peer,
    /// Network, device, driver, limits, or how they are set up.
    Environment,
}

impl From<Blame> for farcall_core::status::Blame {
    fn from(blame: Blame) -> Self {
        match blame {
            Blame::Bug => Self::Bug,
            Blame::Peer => Self::Peer,
            Blame::Environment => Self::Environment,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Meaning {
    /// The verb's beginning; empty: any.
    verb: &'static str,
    pub(crate) errno: i32,
    pub(crate) blame: Blame,
    pub(crate) text: &'static str,
    pub(crate) remedy: &'static str,
}

/// The row for this error of this verb.
pub(crate) fn meaning(verb: &str, errno: i32) -> &'static Meaning {
    TABLE.iter().find(|row| row.errno == errno && verb.starts_with(row.verb)).unwrap_or(&UNKNOWN)
}

/// All rows, each with its name: the error's, and the verb's if it is of one.
pub(crate) fn meanings() -> impl Iterator<Item = (String, &'static Meaning)> {
    TABLE.iter().map(|row| {
        let name = NAMES.iter().find(|(number, _)| *number == row.errno).map_or("error", |(_, name)| name);
        let of = if row.verb.is_empty() { String::new() } else { format!(" of {}", row.verb) };
        (format!("{name}{of}"), row)
    })
}

/// The names of Linux's error numbers that have a row.
const NAMES: &[(i32, &str)] = &[
    (1, "EPERM"),
    (2, "ENOENT"),
    (4, "EINTR"),
    (5, "EIO"),
    (6, "ENXIO"),
    (9, "EBADF"),
    (11, "EAGAIN"),
    (12, "ENOMEM"),
    (13, "EACCES"),
    (14, "EFAULT"),
    (16, "EBUSY"),
    (19, "ENODEV"),
    (22, "EINVAL"),
    (23, "ENFILE"),
    (24, "EMFILE"),
    (28, "ENOSPC"),
    (38, "ENOSYS"),
    (93, "EPROTONOSUPPORT"),
    (95, "EOPNOTSUPP"),
    (99, "EADDRNOTAVAIL"),
    (100, "ENETDOWN"),
    (101, "ENETUNREACH"),
    (110, "ETIMEDOUT"),
    (113, "EHOSTUNREACH"),
];

const fn row(
    verb: &'static str,
    errno: i32,
    blame: Blame,
    text: &'static str,
    remedy: &'static str,
) -> Meaning {
    Meaning { verb, errno, blame, text, remedy }
}

const LOG: &str = "see the kernel's log; check that driver, firmware and rdma-core go together";
const BUG: &str = "report this as a bug, with the kernel's log";
const GONE: &str =
    "see the kernel's log for why the device was reset or removed; it is opened again when it is back";
const ROUTE: &str = "check route and neighbour of the peer's address (`ip route get`, `ip neigh`), or set `rdma.gid_index` to another \
     address";
const DESCRIPTORS: &str = "raise the limit on open files: `ulimit -n`, LimitNOFILE= in a systemd unit";

const DMA_BUF: &str = "have it return an open dma-buf that has the words at its beginning";

static UNKNOWN: Meaning = row("", 0, Blame::Environment, "the device or its driver refused", LOG);

/// For an error the first row that fits: those of one verb stand before the one for all.
#[rustfmt::skip]
static TABLE: &[Meaning] = {
    use Blame::{Bug, Environment};
    &[
        row("", 1, Environment, "not permitted",
            "give the process access to /dev/infiniband and CAP_IPC_LOCK if it lacks it; check the container's device rules"),
        row("", 2, Environment, "the device's file is gone", GONE),
        row("", 4, Environment, "a signal came in between", "try again"),
        row("", 5, Environment, "the device or its driver does not answer any more", GONE),
        row("", 6, Environment, "the device is gone", GONE),
        row("ibv_reg_dmabuf_mr", 9, Bug, "what `Exportable::dma_buf` returned is not open", DMA_BUF),
        row("", 9, Bug, "a descriptor is closed that is in use", BUG),
        row("ibv_create", 11, Environment, "a limit of the rdma cgroup, or the device, is reached",
            "raise `rdma.max` of the process's cgroup (hca_handle, hca_object), or lower `rdma.connections`"),
        row("ibv_reg_mr", 11, Environment, "a limit of the rdma cgroup is reached",
            "raise hca_object in `rdma.max` of the process's cgroup, or lower `rdma.memory`"),
        row("starting a thread", 11, Environment, "as many threads run as may",
            "raise the limit on threads: `ulimit -u`, pids.max of the process's cgroup (TasksMax= in a systemd unit), or the \
             sysctl kernel.threads-max"),
        row("ibv_post", 11, Bug, "a queue is full that should have room", BUG),
        row("", 11, Environment, "a resource is short for the moment",
            "raise `rdma.max` of the process's cgroup if it is set; else try again"),
        row("ibv_create", 12, Environment,
            "no memory for its queues: the locked-memory limit is reached, or the device's table of queues is full",
            "raise the limit (`ulimit -l`), lower `rdma.connections`, or see who uses the device: `rdma resource show`"),
        row("ibv_alloc_mw", 12, Environment, "the device's table of memory windows is full",
            "long messages are copied instead; see who uses the device: `rdma resource show`"),
        row("ibv_reg_mr", 12, Environment, "no memory can be locked, or the device's table of regions is full",
            "raise the limit (`ulimit -l`), lower `rdma.memory`, or see who uses the device: `rdma resource show`"),
        row("ibv_post", 12, Bug, "a queue is full that should have room", BUG),
        row("mmap", 12, Environment, "the machine or the process is out of memory",
            "lower `rdma.memory`, or raise the limit on address space (`ulimit -v`) or of the container"),
        row("", 12, Environment, "out of memory", "lower `rdma.memory` and `rdma.connections`"),
        row("", 13, Environment, "no permission",
            "give this user read and write access to /dev/infiniband/uverbs* (group, udev rule, docker --device)"),
        row("", 14, Bug, "a buffer does not exist", BUG),
        row("", 16, Environment, "the device is in use in a way that excludes this", LOG),
        row("", 19, Environment, "the device is gone", GONE),
        row("ibv_modify_qp", 22, Environment,
            "the device does not take the connection: the address is gone from the port, or the peer's is of another kind",
            "check `rdma link`, and that both ends use addresses of one kind; `rdma.gid_index` chooses another"),
        row("ibv_create_qp", 22, Environment, "the device has no queue pair of this size left",
            "lower `rdma.connections`, or see who uses the device: `rdma resource show`"),
        row("ibv_reg_mr", 22, Environment, "the device does not take a region of this kind or size",
            "set `rdma.relaxed_ordering` to false, or lower `rdma.memory`"),
        row("ibv_reg_dmabuf_mr", 22, Bug,
            "what `Exportable::dma_buf` returned is no dma-buf, or is shorter than the words", DMA_BUF),
        row("", 22, Bug, "the device does not take the request", BUG),
        row("", 23, Environment, "the machine has too many open files", "raise fs.file-max (sysctl)"),
        row("", 24, Environment, "the process has too many open files", DESCRIPTORS),
        row("", 28, Environment, "the device's table is full",
            "lower `rdma.connections`, or see who uses the device: `rdma resource show`"),
        row("ibv_reg_dmabuf_mr", 38, Environment, "libibverbs does not know memory of other devices",
            "install rdma-core 34 or later"),
        row("", 38, Environment, "the driver does not know this verb", "install current drivers and rdma-core"),
        row("", 93, Environment, "the device does not speak this protocol", "use a RoCE v2 address: `rdma.gid_index`"),
        row("ibv_reg_dmabuf_mr", 95, Environment, "the RDMA device, or its driver, can't use the memory of another device",
            "export memory of the host, or use a device whose driver registers dma-bufs (mlx5 does, since Linux 5.12)"),
        row("", 95, Environment, "the device can't do this", "install current drivers and rdma-core, or use TCP"),
        row("", 99, Environment, "the address is gone from the port", ROUTE),
        row("", 100, Environment, "the network interface is down", "bring it up: `ip link set NETDEV up`"),
        row("", 101, Environment, "there is no route to the peer's address", ROUTE),
        row("", 110, Environment, "the peer's address was not resolved in time, or the device did not answer", ROUTE),
        row("", 113, Environment, "the peer's host does not answer", ROUTE),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    const VERBS: [&str; 14] = [
        "ibv_open_device",
        "ibv_query_port",
        "ibv_create_comp_channel",
        "ibv_create_cq",
        "ibv_create_srq",
        "ibv_create_qp",
        "ibv_modify_qp",
        "ibv_reg_mr",
        "ibv_reg_dmabuf_mr",
        "ibv_alloc_mw",
        "ibv_post_send",
        "ibv_poll_cq",
        "ibv_req_notify_cq",
        "mmap",
    ];

    /// The numbers that the kernel's RDMA core and drivers return from these calls.
    const ERRORS: [i32; 24] =
        [1, 2, 4, 5, 6, 9, 11, 12, 13, 14, 16, 19, 22, 23, 24, 28, 38, 93, 95, 99, 100, 101, 110, 113];

    #[test]
    fn every_error_of_every_verb_has_a_meaning_and_a_remedy() {
        for verb in VERBS {
            for errno in ERRORS {
                let row = meaning(verb, errno);
                assert_eq!(row.errno, errno, "{verb} has no row for {errno}");
                assert!(!row.text.is_empty() && !row.remedy.is_empty());
            }
        }
        assert_eq!(meaning("ibv_reg_mr", 9999).text, UNKNOWN.text);
    }

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let names: Vec<_> = meanings().map(|(name, _)| name).collect();
        let unique: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        assert!(names.iter().all(|name| !name.starts_with("error")), "{names:?}");
        assert!(names.contains(&"ENOMEM of ibv_create".to_owned()));
    }

    #[test]
    fn no_row_hides_behind_a_wider_one() {
        for (i, row) in TABLE.iter().enumerate() {
            let found = meaning(row.verb, row.errno);
            assert!(std::ptr::eq(found, &TABLE[i]), "{} {} is never found", row.verb, row.errno);
        }
    }

    #[test]
    fn one_number_means_different_things() {
        assert!(meaning("ibv_create_qp", 12).text.contains("locked-memory limit"));
        assert!(meaning("ibv_create_qp", 11).remedy.contains("cgroup"));
        assert_eq!(meaning("ibv_post_send", 12).blame, Blame::Bug);
        assert!(meaning("ibv_modify_qp", 110).text.contains("not resolved"));
    }
}
