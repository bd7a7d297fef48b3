//! The things that are measured, and their results.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::target::By;

/// The link that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Link {
    /// calls by TCP
    Tcp,
    /// calls by RDMA
    Rdma,
    /// calls by RDMA where both ends have it, else by TCP
    Auto,
    /// no calls: the RDMA devices alone, by SEND (echo), READ (read) and WRITE (write), polled for
    Verbs,
}

impl Link {
    /// Returns the link of the calls. The devices alone are asked for by TCP.
    pub(crate) fn by(self) -> By {
        match self {
            Self::Tcp | Self::Verbs => By::Tcp,
            Self::Rdma => By::Rdma,
            Self::Auto => By::Auto,
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// The use of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pattern {
    /// a call with a payload that comes back
    Echo,
    /// a call with a payload
    Put,
    /// a call that gets a payload
    Get,
    /// a stream of 64 payloads from the server
    StreamDown,
    /// a stream of 64 payloads to the server
    StreamUp,
    /// a call that lends memory, which the server reads
    Lend,
    /// a call that lends memory, which the server writes
    Fill,
    /// a one-sided read of the server's memory
    Read,
    /// a one-sided write to the server's memory
    Write,
    /// a one-sided addition to a number of the server's
    Add,
}

impl Pattern {
    /// Returns how many payloads one call moves.
    pub(crate) fn payloads(self) -> u64 {
        match self {
            Self::Echo => 2,
            Self::StreamDown | Self::StreamUp => u64::from(STREAM),
            _ => 1,
        }
    }
}

/// Items of a stream.
pub(crate) const STREAM: u32 = 64;

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) by: Link,
    pub(crate) pattern: Pattern,
    /// Bytes of a payload.
    pub(crate) size: usize,
    /// Calls at a time, over all connections.
    pub(crate) in_flight: usize,
    pub(crate) connections: usize,
    /// Calls a second that were begun. `None`: each call began when the one before it had ended.
    pub(crate) rate: Option<u32>,
}

impl Case {
    /// Returns the case without what all cases of a run have in common.
    pub(crate) fn name(&self) -> String {
        let connections = if self.connections == 1 {
            String::new()
        } else {
            format!(" over {} connections", self.connections)
        };
        let rate = self.rate.map_or_else(String::new, |rate| format!(" at {rate}/s"));
        format!("{} {} {} x{}{connections}{rate}", self.by, self.pattern, bytes(self.size), self.in_flight)
    }
}

/// The result of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    #[serde(flatten)]
    pub(crate) case: Case,
    /// The transport that calls went by, in words, with the reason if it was not RDMA.
    pub(crate) transport: String,
    /// The time that was measured, in seconds.
    pub(crate) seconds: f64,
    /// Calls that were due in this time, and were answered.
    pub(crate) calls: u64,
    /// Calls that failed. They are in no other number.
    pub(crate) errors: u64,
    /// Calls that were due by the schedule, and had not begun at the end: the rate is too high for the server, or for the callers.
    pub(crate) not_begun: u64,
    /// The first failure.
    pub(crate) error: Option<String>,
    pub(crate) calls_per_second: f64,
    /// Payload that was moved, in both directions together, in millions of bytes a second.
    pub(crate) megabytes_per_second: f64,
    /// Latency in microseconds, from when the call was due.
    pub(crate) latency: Latency,
    /// Processor time of the client for one call, in microseconds. `None`: unknown, as always with a rate, because waiting for the
    /// schedule takes the processor, too.
    pub(crate) client_cpu: Option<f64>,
    pub(crate) server_cpu: Option<f64>,
}

/// Latencies in microseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    /// The distribution: pairs of a share of the calls, in percent, and the latency that this share did not exceed.
    pub(crate) distribution: Vec<(f64, f64)>,
}

/// Returns a size in words.
pub(crate) fn bytes(size: usize) -> String {
    match size {
        _ if size >= 1 << 20 && size.is_multiple_of(1 << 20) => format!("{} MiB", size >> 20),
        _ if size >= 1 << 10 && size.is_multiple_of(1 << 10) => format!("{} KiB", size >> 10),
        _ => format!("{size} B"),
    }
}

/// Reads a size such as `64`, `4K`, `1M` or `1MiB`.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        unknown => return Err(format!("`{unknown}` is no unit: write 64, 4K or 1M")),
    };
    let number: usize = digits.parse().map_err(|_| "write a number such as 64, 4K or 1M".to_owned())?;
    let most = super::service::MOST;
    number
        .checked_mul(unit)
        .filter(|size| (1..=most).contains(size))
        .ok_or_else(|| format!("from 1 byte to {}", bytes(most)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, number, written) in
            [("64", 64, "64 B"), ("4K", 4096, "4 KiB"), ("1MiB", 1 << 20, "1 MiB"), ("1000", 1000, "1000 B")]
        {
            assert_eq!(size(text), Ok(number));
            assert_eq!(bytes(number), written);
        }
        for wrong in ["", "K", "0", "-1", "1G", "65M", "99999999999999999999", "ä", "1ä"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
