//! How a channel shares its calls among servers, as configuration.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// How a channel shares its calls among several servers that are equivalent.
///
/// With any policy but [`First`](BalancePolicy::First) the channel keeps connections to all of them, and no call goes to a server that
/// is not connected. A server that sends nothing between a call and its deadline gets no calls until it answers a PING, as long as
/// another is ready. A server whose calls in progress hold a quarter of [`request_memory`](super::Limits::request_memory) gets no more of
/// them while another is ready that holds less.
///
/// With `First`, only the settings of names count. A warning in the log names others that are set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Balance {
    /// How the server of a call is chosen. Default `first`.
    pub policy: BalancePolicy,
    /// How many connections the channel has to each server, from 1 to 64. Several help where one core can't encrypt or read all
    /// that arrives. Default 1.
    pub connections: u32,
    /// How many servers of each tier the channel uses: a choice that is stable, and another for each channel. 0: all of them, which is
    /// the default.
    pub subset: u32,
    /// Where this client is. Servers of this locality are used as long as any of them is connected. Empty, as is the default: all
    /// are used alike.
    pub locality: String,
    /// After how many calls in a row that failed UNAVAILABLE, DEADLINE_EXCEEDED, INTERNAL, UNKNOWN or DATA_LOSS a server gets no calls for a
    /// while, although it is connected. Default 5; 0: however many.
    pub eject_after: u32,
    /// The part of its calls, in percent, that must fail like that for the server to get none for a while: of at least 20 calls within ten
    /// seconds. Default 50; 0: whatever part.
    pub eject_percent: u32,
    /// For how long that is the first time, in milliseconds. It is twice as long each further time, up to five minutes. Default 10,000.
    pub eject_ms: u64,
    /// The share of the servers that may be ejected at once, in percent. Default 50.
    pub max_ejected_percent: u32,
    /// The service that each server is asked about, as in `shop.v1.Kv`; the empty name stands for the server as a whole. Default: none, and
    /// no server is asked. gRPC calls this `healthCheckConfig`.
    ///
    /// The channel watches `farcall.health.v1.Health` of each server for as long as it is connected. A server that says `NotServing` gets no
    /// calls while another is ready. Where all say it, calls go to them all the same: a wrong check must not stop everything. The last
    /// word of a server counts until its next, also while it connects again. Until its first word a server counts as serving. So does one that
    /// knows nothing of the service. A server whose watch fails counts as serving, too, and a warning in the log names it. It is asked again
    /// after a pause with jitter, from one second to 30 s; a server without the health service is asked by its next connection.
    ///
    /// A watch is a call in progress: it counts in [`concurrent_calls`](super::Limits::concurrent_calls), pings keep testing the connection,
    /// and [`idle_ms`](super::Limits::idle_ms) does not end it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_service: Option<String>,
    /// How often names are looked up again, in seconds. A server that can't be reached is reason to do it earlier. So is an answer of DNS
    /// that has expired. Default 30; 0: never again.
    pub resolve_s: u64,
    /// How names are looked up. Default `system`. Names of services, as in `farcall://_rpc._tcp.example.com`, are always looked up by DNS.
    /// With the policy `first` the system looks up the other names.
    pub resolve_by: ResolveBy,
    /// The name servers for what is looked up by DNS, as in `["10.0.0.2:53", "[fd00::2]:53"]`. They are asked by UDP, and by TCP for long
    /// answers. Names must be complete then: nothing is appended to them. Default: empty, which stands for those that the system has.
    pub name_servers: Vec<SocketAddr>,
}

/// How the names of servers are looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ResolveBy {
    /// By the system (`getaddrinfo`), which does not say how long its answer is good for.
    #[default]
    System,
    /// By DNS, after the system's file of hosts. A name is looked up again when its answer expires, but not within two seconds, and at the
    /// latest after [`Balance::resolve_s`]. farcall needs the feature `dns` for it.
    Dns,
}

/// How the server of a call is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum BalancePolicy {
    /// The first that can be reached. There is one connection, which moves back when an earlier server can be reached again. It moves to
    /// another server if this one sends nothing between a call and its deadline, and does not answer a PING.
    #[default]
    First,
    /// One after the other. A server gets as many calls as its weight says.
    RoundRobin,
    /// Of two at random the one with less to do: calls in progress, times how long the latest ones took, by weight.
    LeastLoaded,
    /// By the [key](crate::client::Call::key) of the call: calls with one key go to one server for as long as it is connected and takes more
    /// calls (consistent hashing). Calls without a key go one after the other.
    ByKey,
}

impl Balance {
    /// Checks that the settings are in range.
    ///
    /// # Errors
    ///
    /// A message that begins with the setting's name and says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=64).contains(&self.connections) {
            return Err("balance.connections must be from 1 to 64".into());
        }
        for (name, percent) in
            [("eject_percent", self.eject_percent), ("max_ejected_percent", self.max_ejected_percent)]
        {
            if percent > 100 {
                return Err(format!("balance.{name} must be from 0 to 100"));
            }
        }
        if self.name_servers.iter().any(|server| server.port() == 0) {
            return Err("balance.name_servers must have ports, which are from 1 to 65535".into());
        }
        Ok(())
    }
}

impl Default for Balance {
    fn default() -> Self {
        Self {
            policy: BalancePolicy::default(),
            connections: 1,
            subset: 0,
            locality: String::new(),
            eject_after: 5,
            eject_percent: 50,
            eject_ms: 10_000,
            max_ejected_percent: 50,
            health_service: None,
            resolve_s: 30,
            resolve_by: ResolveBy::default(),
            name_servers: Vec::new(),
        }
    }
}
