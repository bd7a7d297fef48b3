//! The report of a load.

use std::fmt;
use std::time::Duration;

/// The report of a load, printed as `name: value` lines.
#[derive(Debug, Default)]
pub struct Report {
    pub transport: String,
    pub encryption: String,
    pub calls: u64,
    pub files: u64,
    pub skipped: u64,
    pub bytes: u64,
    pub mismatches: u64,
    pub p50: Duration,
    pub p99: Duration,
    pub client_cpu_us: u64,
    pub server_cpu_us: u64,
    /// Packets that the device has sent and received by its own counters; `None` without a device.
    pub device_packets: Option<(u64, u64)>,
    pub qp_bytes: u64,
    pub tcp_bytes: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_call = |us: u64| us / self.calls.max(1);
        writeln!(f, "transport: {}", self.transport)?;
        writeln!(f, "encryption: {}", self.encryption)?;
        writeln!(f, "files: {}", self.files)?;
        writeln!(f, "files left out: {}", self.skipped)?;
        writeln!(f, "calls: {}", self.calls)?;
        writeln!(f, "payload bytes: {}", self.bytes)?;
        writeln!(f, "mismatches: {}", self.mismatches)?;
        writeln!(f, "p50: {:.1?}", self.p50)?;
        writeln!(f, "p99: {:.1?}", self.p99)?;
        writeln!(f, "client CPU per call: {} us", per_call(self.client_cpu_us))?;
        writeln!(f, "server CPU per call: {} us", per_call(self.server_cpu_us))?;
        match self.device_packets {
            Some((sent, received)) => writeln!(f, "device packets: {sent} sent, {received} received")?,
            None => writeln!(f, "device packets: no device")?,
        }
        writeln!(f, "bytes over the queue pair: {}", self.qp_bytes)?;
        writeln!(f, "bytes over TCP: {}", self.tcp_bytes)?;
        writeln!(f, "payload share of TCP: {:.3} %", 100.0 * self.tcp_bytes as f64 / self.bytes.max(1) as f64)
    }
}
