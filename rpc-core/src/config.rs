//! Limits and time limits, as configuration.

mod admission;
mod balance;
mod method;
mod retry;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::compress::Compression;
use crate::status::Status;

pub use self::admission::{Admission, Priority};
pub use self::balance::{Balance, BalancePolicy, ResolveBy};
pub use self::method::MethodPolicy;
pub(crate) use self::method::parts;
pub use self::retry::Retry;

/// Limits on what one side accepts from the other. Each side announces its limits, and its peer keeps to them. A
/// message over a limit is not sent: its call fails RESOURCE_EXHAUSTED with a message that names the setting and the
/// side. Limits apply to each connection, unless they say otherwise. The client's limits apply to results, the
/// server's to arguments.
///
/// A peer that exceeds a limit loses its connection. `max_assembly` bounds the memory that a peer can fill with partly
/// received messages. `concurrent_calls` bounds how many answers it can leave unread.
///
/// ```
/// # use farcall_core::config::Limits;
/// let mut limits = Limits::default();
/// limits.max_message = 256 << 20;
/// assert!(limits.check().is_ok());
/// limits.max_assembly = 1 << 20;
/// assert!(limits.check().unwrap_err().contains("limits.max_assembly"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Limits {
    /// The longest message that is accepted, in bytes: arguments or result, and about 20 bytes more. Default 64 MiB;
    /// from 1024 to 4294967295.
    pub max_message: u64,
    /// How many bytes of messages may be arriving at once in fragments, on one connection. Default 256 MiB; at
    /// least `max_message`.
    pub max_assembly: u64,
    /// How many calls one connection may have in progress at once. A call is in progress from its request until its
    /// answer has been sent. If the client pulls a long answer, the call is in progress until the client has read it.
    /// Further calls wait, as long as their deadlines allow. Default 4096; at least 1.
    pub concurrent_calls: u32,
    /// How much metadata a call or an answer may have, in bytes. Each entry counts its key, its value, and 3 bytes
    /// more. Default 16 KiB; 0 allows none.
    pub max_metadata: u32,
    /// How far the sender of a stream may be ahead of its reader, in bytes. The window of a stream begins at 64 KiB and
    /// grows when its reader waits for the sender. Items that are sent together may exceed it: a single item of any
    /// length, or several items of together 128 KiB by TCP and 1 MiB by RDMA. Default 4 MiB. Smaller values than 64 KiB
    /// mean 64 KiB.
    pub stream_window: u64,
    /// By how much the windows of all streams of a connection may grow together, in bytes. Default 64 MiB.
    pub stream_memory: u64,
    /// For clients: how many bytes of arguments the calls in progress of one channel and class may have together, to all of its
    /// servers. They are kept until the call ends, because it may have to be sent again. Further calls wait or,
    /// [by choice](Calls::wait_for_room), fail. So a slow or absent server does not use up the client's memory. Arguments below 4 KiB
    /// count, as 4 KiB, only if their call waits for a connection; longer ones than this go alone. Items of streams are not counted:
    /// each stream keeps one message of them, until that is sent. Default 256 MiB; at least 64 KiB.
    pub request_memory: u64,
    /// For servers: how much memory all clients together may make the process hold, in bytes. Counted are messages that
    /// have arrived in part with the buffers that they are read to, arguments of handlers that run and their decoded form beyond
    /// 8 KiB, what handlers have read of the clients' memory and hold, items and answers that were not read, and the connections
    /// themselves. Default 0: a quarter of what the machine, the control group and the limit on address space (`ulimit -v`) allow,
    /// shared by all servers of the process that leave this at 0. The decoded values of one message may take an eighth of it.
    ///
    /// Above five eighths of it, connections that hold more than their share are not read; after a second their calls fail
    /// RESOURCE_EXHAUSTED, not executed. Above seven eighths, an eighth of a share is too much already, and the connection that holds
    /// most is closed, and told why. The last eighth is for what is under way then. A share is that of one client address among all, and of one connection among those
    /// from its address.
    pub memory: u64,
    /// How many connections a server has at once, and an eighth more that are leaving. A further client is told that the server is
    /// overloaded, and its calls fail as not executed. But if another address has at least two connections more than the client's,
    /// the newest of the address that has most makes room: the server drains it, and closes it if its calls go on for longer than a
    /// second. Clients ignore this setting. Default 16,384; at least 1.
    pub connections: u32,
    /// How many of those may come from one address, or, for IPv6, from one network whose prefix has 64 bits. Further ones are
    /// refused. Default 4096; at least 1.
    pub connections_per_address: u32,
    /// For servers: how many connections may be there whose HELLO has not arrived. When there are more, the oldest such
    /// connection of the address that has most of them is closed. Default 1024; at least 1.
    pub handshakes: u32,
    /// For servers: how long a client may stop in the middle of a message, in milliseconds. Then its connection is closed. Less
    /// than 4 KiB in this time, of all such messages together, are a stop; pings and messages that come whole do not count.
    /// Default 30,000; 0: for ever.
    pub stall_ms: u64,
    /// For servers: how long a connection may be idle, in milliseconds: without a call, a stream, or a message of its client. Then
    /// the server closes it as when it drains, so no call is lost: the client connects again for its next call. A connection by RDMA
    /// whose client has used a region is not idle until the region is revoked, because the client's device may be using it. Default 0:
    /// for ever.
    pub idle_ms: u64,
    /// For servers: how old a connection may become, in milliseconds; up to a tenth shorter or longer at random. Then the server
    /// closes it as when it drains, so no call is lost: the client connects again, perhaps to another server behind the same
    /// address. So load spreads over servers that were added. Streams without an end [learn of it](crate::context::Context::draining).
    /// Default 0: any age.
    pub max_connection_age_ms: u64,
    /// For servers: how long calls of a connection that is too old may go on, in milliseconds. Then they fail, perhaps executed.
    /// Default 0: as long as they take.
    pub max_connection_age_grace_ms: u64,
}

/// The least value of `limits.memory` but 0, in bytes: room for some hundred idle connections.
const MIN_MEMORY: u64 = 16 << 20;

/// The least value of `limits.request_memory`, in bytes.
const MIN_REQUEST_MEMORY: u64 = 64 << 10;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_message: 64 << 20,
            max_assembly: 256 << 20,
            concurrent_calls: 4096,
            max_metadata: 16 << 10,
            stream_window: 4 << 20,
            stream_memory: 64 << 20,
            request_memory: 256 << 20,
            memory: 0,
            connections: 16 << 10,
            connections_per_address: 4096,
            handshakes: 1024,
            stall_ms: 30_000,
            idle_ms: 0,
            max_connection_age_ms: 0,
            max_connection_age_grace_ms: 0,
        }
    }
}

impl Limits {
    /// Checks that the settings are in range and do not contradict each other.
    ///
    /// # Errors
    ///
    /// A message that begins with the setting's name and says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.max_message < 1024 || self.max_message > u64::from(u32::MAX) {
            return Err("limits.max_message must be from 1024 to 4294967295 bytes".into());
        }
        if self.max_assembly < self.max_message {
            return Err("limits.max_assembly must be at least limits.max_message".into());
        }
        if self.request_memory < MIN_REQUEST_MEMORY {
            return Err(format!("limits.request_memory must be at least {MIN_REQUEST_MEMORY} bytes"));
        }
        if self.memory != 0 && self.memory < MIN_MEMORY {
            return Err(format!("limits.memory must be 0 or at least {MIN_MEMORY} bytes"));
        }
        for (name, value) in [
            ("concurrent_calls", self.concurrent_calls),
            ("connections", self.connections),
            ("connections_per_address", self.connections_per_address),
            ("handshakes", self.handshakes),
        ] {
            if value == 0 {
                return Err(format!("limits.{name} must be at least 1"));
            }
        }
        Ok(())
    }

    /// How long a client may stop in the middle of a message. `None`: for ever.
    pub fn stall(&self) -> Option<Duration> {
        unless_zero(self.stall_ms)
    }

    /// How long a connection may be idle. `None`: for ever.
    pub fn idle(&self) -> Option<Duration> {
        unless_zero(self.idle_ms)
    }

    /// How old a connection may become, on average. `None`: any age.
    pub fn max_connection_age(&self) -> Option<Duration> {
        unless_zero(self.max_connection_age_ms)
    }

    /// How long calls of a connection that is too old may go on. `None`: as long as they take.
    pub fn max_connection_age_grace(&self) -> Option<Duration> {
        unless_zero(self.max_connection_age_grace_ms)
    }
}

fn unless_zero(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms))
}

/// How long to wait for a peer.
///
/// A server may fall silent while calls wait, because its process is stopped or its host is gone. The client notices
/// after at most `ping_ms * (missed_pings + 2)`, 10 s by default. The calls end UNAVAILABLE, perhaps executed. A slow
/// handler is not mistaken for silence, because its process answers pings. No pings are sent while nothing waits for the
/// peer: TCP's keepalive looks after idle connections.
///
/// A network that comes back within half of that time costs no connection. TCP retransmits after 0.2 s, then waits
/// twice as long each time, so calls may stall after an outage for as long as it lasted. To outlast outages of more
/// than 4 s, raise `missed_pings`. Above 20 s, raise `tcp.user_timeout_ms`, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Liveness {
    /// How long each step of connecting may take (connecting, HELLO, preparing RDMA, moving to it), in milliseconds.
    /// Default 3000.
    pub connect_ms: u64,
    /// How long the peer may be silent while calls wait before it gets a ping, in milliseconds. Default 2000.
    pub ping_ms: u64,
    /// How many pings may go unanswered before the connection is closed. Default 3.
    pub missed_pings: u32,
    /// The longest pause before the client tries RDMA again, in milliseconds. It tries again if RDMA was lost, or could
    /// not be set up although both sides have it. The first pause is 100 ms, and each further one twice as long.
    /// Meanwhile calls go by TCP. 0 means never again. Default 30,000.
    pub retry_ms: u64,
    /// The pause after a client's first failed attempt to connect, in milliseconds; at least 1. During the pause calls
    /// fail at once. Each further failure doubles it. Each pause is up to a quarter shorter or longer at random, so
    /// that the clients of a restarted server do not all come back at once. Default 50.
    pub reconnect_ms: u64,
    /// The longest pause between attempts to connect, in milliseconds; at least `reconnect_ms`. A client that is
    /// connected to a later address of a list tries the earlier addresses again at this interval. Default 2000.
    pub reconnect_max_ms: u64,
}

impl Default for Liveness {
    fn default() -> Self {
        Self {
            connect_ms: 3000,
            ping_ms: 2000,
            missed_pings: 3,
            retry_ms: 30_000,
            reconnect_ms: 50,
            reconnect_max_ms: 2000,
        }
    }
}

impl Liveness {
    /// Checks that the settings are in range and do not contradict each other.
    ///
    /// # Errors
    ///
    /// A message that begins with the setting's name and says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        for (name, value) in [
            ("connect_ms", self.connect_ms),
            ("ping_ms", self.ping_ms),
            ("reconnect_ms", self.reconnect_ms),
            ("reconnect_max_ms", self.reconnect_max_ms),
        ] {
            if !(1..=86_400_000).contains(&value) {
                return Err(format!("liveness.{name} must be from 1 ms to a day"));
            }
        }
        if self.reconnect_max_ms < self.reconnect_ms {
            return Err("liveness.reconnect_max_ms must be at least liveness.reconnect_ms".into());
        }
        Ok(())
    }

    /// How long each step of connecting may take.
    pub fn connect(&self) -> Duration {
        Duration::from_millis(self.connect_ms)
    }

    /// The longest pause before RDMA is tried again. Zero means that it is not.
    pub fn retry(&self) -> Duration {
        Duration::from_millis(self.retry_ms)
    }

    /// The pause after the first failed attempt to connect.
    pub fn reconnect(&self) -> Duration {
        Duration::from_millis(self.reconnect_ms.max(1))
    }

    /// The longest pause between attempts to connect.
    pub fn reconnect_max(&self) -> Duration {
        Duration::from_millis(self.reconnect_max_ms).max(self.reconnect())
    }

    /// How long the peer may be silent before it gets a ping.
    pub fn ping(&self) -> Duration {
        Duration::from_millis(self.ping_ms.max(1))
    }

    /// The longest silence that is tolerated while calls wait. It is two intervals longer than the pings take: one may
    /// pass before the silence begins to count, and another before the first ping.
    pub fn silence(&self) -> Duration {
        self.ping().saturating_mul(self.missed_pings.max(1).saturating_add(2))
    }
}

/// How calls are made and answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Calls {
    /// For clients: whether calls [wait](crate::client::Call::wait_for_ready) for a server that can't be reached,
    /// unless the call says otherwise. Default false: they fail.
    pub wait_for_ready: bool,
    /// For clients: whether calls [wait](crate::client::Call::wait_for_room) while too many are in progress, unless the
    /// call says otherwise. Default true; otherwise they fail.
    pub wait_for_room: bool,
    /// For clients: the [timeout](crate::client::Call::timeout) of calls that set none, in milliseconds, streams
    /// included. A call that needs no limit sets `Duration::MAX`. Default 0: no timeout.
    pub timeout_ms: u64,
    /// For clients: the [progress timeout](crate::client::Call::progress_timeout) of calls that set none, in milliseconds:
    /// how long nothing of a call may move, streams included. A call that may be quiet for longer sets `Duration::MAX`.
    /// Default 0: no limit.
    pub progress_timeout_ms: u64,
    /// For servers: whether each handler starts in its own task, as with
    /// [`spawn_handlers`](crate::middleware::ServiceExt::spawn_handlers) for a single service. Default false.
    pub spawn_handlers: bool,
    /// For servers: whether clients get the [sources](crate::status::Status::with_source) of the statuses that handlers
    /// return. Set it to false on servers that untrusted clients can call. Default true.
    pub causes: bool,
    /// How a client compresses arguments and a server results, streams included, unless the call or handler chooses
    /// otherwise. `none`, `lz4` or `zstd`; the latter two are features of the crate. Default `none`.
    pub compress: Compression,
}

impl Calls {
    /// Checks that this build has the compression that is set.
    ///
    /// # Errors
    ///
    /// A message that begins with the setting's name and says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let wrong =
            |status: Status| format!("calls.compress = \"{}\": {}", self.compress.name(), status.message());
        self.compress.check().map_err(wrong)
    }
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            wait_for_ready: false,
            wait_for_room: true,
            timeout_ms: 0,
            progress_timeout_ms: 0,
            spawn_handlers: false,
            causes: true,
            compress: Compression::None,
        }
    }
}

/// The transport to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Policy {
    /// RDMA where both ends have it, else TCP. [`Connection::transport`](crate::connection::Connection::transport) says
    /// which is in use, and why.
    #[default]
    Auto,
    /// RDMA, or the connection fails with the reason.
    Rdma,
    /// TCP.
    Tcp,
}

impl std::str::FromStr for Policy {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "rdma" => Ok(Self::Rdma),
            "tcp" => Ok(Self::Tcp),
            other => Err(format!("transport `{other}` is unknown; it is `auto`, `rdma` or `tcp`")),
        }
    }
}
