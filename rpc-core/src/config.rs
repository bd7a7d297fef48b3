//! Limits and time limits, as configuration.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::compress::Compression;
use crate::status::Status;

/// What one side accepts from the other. Each side tells its peer, which keeps to it: a message over a limit is not sent,
/// and its call fails with RESOURCE_EXHAUSTED and a message that names the setting and the side. All limits but
/// `connections` are per connection. Results are held against the client's limits, arguments against the server's.
///
/// A peer that does not keep to them loses its connection. What one can make this side keep is bounded by `max_assembly`
/// for what arrives and, for answers that it does not read, by `concurrent_calls` of them.
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
    /// The longest message (arguments or result, and about 20 bytes more) that is accepted, in bytes. Default 64 MiB; from 1024 to 4294967295.
    pub max_message: u64,
    /// How many bytes of messages may be arriving at once in fragments, on one connection. Default 256 MiB; at
    /// least `max_message`.
    pub max_assembly: u64,
    /// How many calls of the client one connection may have in progress at once, from the request until its answer has
    /// left, or, where the client reads a long one itself, until it has read it. Default 4096; at least 1. A client waits for a free place, as long as its deadline allows.
    pub concurrent_calls: u32,
    /// How much metadata a call or an answer may have, in bytes: for each value its own, those of its key, and 3. Default
    /// 16 KiB; at 0 there are none.
    pub max_metadata: u32,
    /// How far the sender of a stream may be ahead of its reader, in bytes: a stream begins with 64 KiB, and gets more as
    /// its reader waits for it. What is sent together goes beyond: an item of any length, or several, 128 KiB of them by TCP and
    /// 1 MiB by RDMA. Default 4 MiB; below 64 KiB it means that.
    pub stream_window: u64,
    /// By how much the windows of all streams of a connection may have grown, in bytes. Default 64 MiB.
    pub stream_memory: u64,
    /// How many connections a server has at once; to one more it says that it is overloaded, and calls on that fail as not
    /// executed. Default 16,384; at least 1. A client's setting means nothing.
    pub connections: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_message: 64 << 20,
            max_assembly: 256 << 20,
            concurrent_calls: 4096,
            max_metadata: 16 << 10,
            stream_window: 4 << 20,
            stream_memory: 64 << 20,
            connections: 16 << 10,
        }
    }
}

impl Limits {
    /// Says what is wrong with them, if anything is.
    pub fn check(&self) -> Result<(), String> {
        if self.max_message < 1024 || self.max_message > u64::from(u32::MAX) {
            return Err("limits.max_message must be from 1024 to 4294967295 bytes".into());
        }
        if self.max_assembly < self.max_message {
            return Err("limits.max_assembly must be at least limits.max_message".into());
        }
        for (name, value) in [("concurrent_calls", self.concurrent_calls), ("connections", self.connections)]
        {
            if value == 0 {
                return Err(format!("limits.{name} must be at least 1"));
            }
        }
        Ok(())
    }
}

/// How long to wait for a peer.
///
/// A server that falls silent while calls wait (its process is stopped, its host is gone) is found after at most
/// `ping_ms * (missed_pings + 2)`, 10 s by default; its calls end UNAVAILABLE, perhaps executed. A handler that takes
/// long is not taken for that: its process answers. While no call waits nothing is sent; an idle connection is looked
/// after by the transport (TCP's keepalive).
///
/// A network that comes back within half of that costs no connection. The half, because TCP repeats what is lost after 0.2 s
/// and then waits twice as long each time: after an outage calls may stand for as long again. Where outages are longer
/// than 4 s and connections are to outlast them, raise `missed_pings`, and above 20 s `tcp.user_timeout_ms` too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Liveness {
    /// How long each step of connecting may take (connecting, HELLO, preparing RDMA, moving to it), in milliseconds.
    /// Default 3000.
    pub connect_ms: u64,
    /// While calls wait and the peer is silent for so long, it is asked whether it is there, in milliseconds.
    /// Default 2000.
    pub ping_ms: u64,
    /// After so many unanswered questions the connection is given up. Default 3.
    pub missed_pings: u32,
    /// When RDMA was lost, or could not be had although both sides have it, the client tries again: after 100 ms, then after twice as long each time,
    /// up to this, in milliseconds. Calls go by TCP meanwhile. 0: it does not try again. Default 30,000.
    pub retry_ms: u64,
    /// The pause after a client's first failed attempt to connect, in milliseconds, from 1 on. Calls fail at once meanwhile.
    /// Each further failure doubles it, and each pause is up to a quarter shorter or longer, so that the clients of a server
    /// that was away do not come back at once. Default 50.
    pub reconnect_ms: u64,
    /// The longest such pause, in milliseconds, at least `reconnect_ms`. A client that is connected to a later address of a list
    /// looks for the first ones as often. Default 2000.
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
    /// Says what is wrong with them, if anything is.
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

    /// The longest pause before RDMA is tried again; zero: it is not.
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

    /// How long a silence is before it is looked into.
    pub fn ping(&self) -> Duration {
        Duration::from_millis(self.ping_ms.max(1))
    }

    /// The longest silence that is borne while calls wait: one interval may pass before it begins to count, and another
    /// before the first ping.
    pub fn silence(&self) -> Duration {
        self.ping().saturating_mul(self.missed_pings.max(1).saturating_add(2))
    }
}

/// How calls are made, and answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Calls {
    /// A client's: whether calls that set nothing else [wait](crate::client::Call::wait_for_ready) for the server where it
    /// can't be reached. Default false: they fail.
    pub wait_for_ready: bool,
    /// A client's: the [timeout](crate::client::Call::timeout) of calls that set none, in milliseconds, streams included. A
    /// call without a limit sets `Duration::MAX`. Default 0: calls that set none have none.
    pub timeout_ms: u64,
    /// A server's: whether each handler begins in a task of its own, as
    /// [`spawn_handlers`](crate::middleware::ServiceExt::spawn_handlers) has it for a service. Default false.
    pub spawn_handlers: bool,
    /// A server's: whether its clients learn what the statuses that its handlers return were [caused
    /// by](crate::status::Status::with_source). Default true; false is for one that strangers call.
    pub causes: bool,
    /// What this side compresses: a client the arguments of its calls, a server its results, streams included, where the call
    /// or the handler does not say otherwise. `none`, `lz4` or `zstd`, of which the latter two are features of the crate.
    /// Default `none`.
    pub compress: Compression,
}

impl Calls {
    /// Says what is wrong with it, if anything is.
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
            timeout_ms: 0,
            spawn_handlers: false,
            causes: true,
            compress: Compression::None,
        }
    }
}

/// Which transport to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Policy {
    /// RDMA where both ends have it, else TCP; [`Connection::transport`](crate::connection::Connection::transport)
    /// says which, and why.
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
