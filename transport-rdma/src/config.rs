//! How RDMA is configured.

use std::net::IpAddr;

use farcall_core::class::ByClass;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The device, port and address that RDMA uses, and how much it may use of them. The default leaves every choice to
/// farcall, which is right on most machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RdmaConfig {
    /// Whether sessions that TLS encrypts may go by RDMA in the clear. Default: RDMA is encrypted with keys of the TLS session,
    /// which must be of TLS 1.3. `trusted-fabric` on both sides saves the work of encryption, and the copy of long messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plaintext: Option<Plaintext>,
    /// The kernel's name of the device, as in `/sys/class/infiniband` (`mlx5_0`). Default: chosen with the peer, as
    /// for [`subnet`](Self::subnet).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The device's port, counted from 1. Default: any that is active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u8>,
    /// Index in the port's GID table. Default: chosen with the peer, as for [`subnet`](Self::subnet).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u8>,
    /// The address of the RDMA device to use, as in the port's GID table: an IP address on RoCE. Default: chosen with the peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<IpAddr>,
    /// The network whose addresses may be used, as in `10.1.0.0/16`, for machines whose RDMA devices are on several networks.
    /// Default: any. A link joins the TCP connection's own addresses if both belong to devices. Otherwise it joins two addresses
    /// of one network, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnet: Option<String>,
    /// Index in the port's partition key table. Default 0.
    pub pkey_index: u16,
    /// The DSCP of what this side sends by RoCE for the connections of each class, 0 to 63. Default 0: nothing is marked.
    /// Switches keep packets of some DSCPs from loss and others not, so every class needs one that they know: ask who runs
    /// the network.
    pub dscp: ByClass,
    /// Lets switches mark RoCE packets where they queue (ECN), for devices that slow down then. Where others ask for a traffic
    /// class of 106, that is a `dscp` of 26 with `ecn`. Default `false`.
    pub ecn: bool,
    /// InfiniBand's service level for each class's connections, 0 to 15. Default 0.
    pub service_level: ByClass,
    /// Lets the device write payloads to memory in any order, which some machines (AMD's) need for full speed.
    /// Writes of peers to regions keep their order. Ignored by devices and libraries that do not know it. Default `false`.
    pub relaxed_ordering: bool,
    /// How the end of a wait for the network is noticed. Default `adaptive`.
    pub completion: Completion,
    /// The CPU that `completion = "busy"` runs on, as the kernel counts them. Default: the scheduler's choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_cpu: Option<u16>,
    /// The most memory that is registered per device and runtime, in bytes. It grows with the number of peers, by some
    /// 112 KiB each, and with what busy ones use, in steps of [`LEAST_MEMORY`](Self::LEAST_MEMORY). A peer for which none is
    /// left, though idle ones have given back what they can, stays on TCP. Default 64 MiB, enough for 550 peers.
    pub memory: u64,
    /// The most memory that is registered per device for messages of 16 KiB and more, which are read from the sender's
    /// memory instead of being sent, in bytes. It grows with need, from 8 MiB; half of it is for requests and
    /// [buffers of the application's](crate::Registered), half for responses. A message for which none is left is copied.
    /// The first user of a device decides. 0: none. Default 512 MiB.
    pub bulk_memory: u64,
    /// How many bytes of long messages and of regions a link may be reading and writing at a time, both together. A short
    /// message waits behind them: 128 KiB take 10 us at 100 Gb/s. Raise it where one connection is to fill a faster network,
    /// or a round trip takes longer. One chunk of 64 KiB is read or written in any case. Default 128 KiB.
    pub bulk_window: u32,
    /// How many peers per device and runtime at most. Another one stays on TCP, unless its host has at least two fewer than the
    /// host with most: then a connection of that host goes on by TCP instead. Where that is more than the device's completion queues have room
    /// for, each peer has fewer sends on their way. Default 256.
    pub connections: u32,
    /// How many messages a busy peer may have on their way to this side, at most; fewer when memory is short. An idle one
    /// has 4. Default 64.
    pub window: u32,
    /// For tests: a message for which the peer has no buffer fails the connection at once. Such a message means that
    /// flow control is broken. Default `false`: it is repeated for a while.
    pub strict_credits: bool,
}

/// How the end of a wait for the network is noticed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Completion {
    /// Asks the device again and again as long as that tends to find something within 50 microseconds, or, where waking takes
    /// long, in at most three quarters of the time of a sleep, and within a millisecond; then sleeps. A caller that waits alone
    /// asks too.
    #[default]
    Adaptive,
    /// Sleeps whenever there is nothing to do: least work, more latency.
    Event,
    /// Never sleeps: least latency, and a CPU at 100 % whether or not there is anything to do. It has a thread of its own for
    /// each device and runtime; with two CPUs or fewer, and without [`busy_cpu`](RdmaConfig::busy_cpu), it is a task that keeps
    /// a thread of the runtime from sleeping. Handlers run there until they first wait, so they should not be long. Callers
    /// that wait ask, too, a millisecond at most.
    Busy,
}

impl RdmaConfig {
    /// The part of [`memory`](Self::memory) that the first peer needs, in bytes: 2.5 MiB.
    pub const LEAST_MEMORY: u64 = 2_621_440;

    /// Returns the memory that the pools of one runtime register with a device at most, in bytes: [`memory`](Self::memory) and
    /// [`bulk_memory`](Self::bulk_memory). The limit on locked memory (`ulimit -l`) should be as high. Exported regions come on top,
    /// and another `memory` for each further runtime.
    pub fn most_memory(&self) -> u64 {
        self.memory.saturating_add(self.bulk_memory)
    }

    /// Whether anything can be done with it.
    ///
    /// # Errors
    ///
    /// The first setting that is wrong, by its name in a configuration, with what it may be.
    pub fn check(&self) -> Result<(), String> {
        if self.memory < Self::LEAST_MEMORY {
            return Err(format!("rdma.memory must be at least {} bytes", Self::LEAST_MEMORY));
        }
        for (name, value) in
            [("bulk_window", self.bulk_window), ("connections", self.connections), ("window", self.window)]
        {
            if value == 0 {
                return Err(format!("rdma.{name} must be at least 1"));
            }
        }
        if let Some(subnet) = &self.subnet
            && subnet.parse::<IpNet>().is_err()
        {
            return Err(format!("rdma.subnet must be a network, as in \"10.1.0.0/16\", not {subnet:?}"));
        }
        if self.port == Some(0) {
            return Err("rdma.port is counted from 1".to_owned());
        }
        self.dscp.check("rdma.dscp", 63)?;
        self.service_level.check("rdma.service_level", 15)
    }
}

/// A network on which bytes may go unencrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Plaintext {
    /// Nobody can read or inject packets on the RDMA network who may not read and change what calls say.
    TrustedFabric,
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self {
            plaintext: None,
            device: None,
            port: None,
            gid_index: None,
            gid: None,
            subnet: None,
            pkey_index: 0,
            dscp: ByClass::default(),
            ecn: false,
            service_level: ByClass::default(),
            relaxed_ordering: false,
            completion: Completion::Adaptive,
            busy_cpu: None,
            memory: 64 << 20,
            bulk_memory: 512 << 20,
            bulk_window: 128 << 10,
            connections: 256,
            window: 64,
            strict_credits: false,
        }
    }
}
