//! The result, as one line of JSON.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::args::Args;
use crate::load;
use crate::process::{Process, Usage};

/// The resources used at some moment, here and at the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) calls: u64,
    /// Bytes of the load.
    beside: u64,
    client: Usage,
    server: Option<Usage>,
}

impl Moment {
    pub(crate) fn now(calls: u64, args: &Args) -> Self {
        let server = args.server_pid.map(|pid| Process::Other(pid).usage());
        Self { calls, beside: load::beside(), client: Process::Own.usage(), server }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    contestant: String,
    method: &'static str,
    size: usize,
    concurrency: usize,
    connections: usize,
    pause_ms: u128,
    load: usize,
    load_size: usize,
    load_method: &'static str,
    /// The payload of the load.
    load_mb_per_s: f64,
    stalled: usize,
    current_thread: bool,
    seconds: f64,
    calls: u64,
    rps: f64,
    /// Payload in one direction, of a million bytes each.
    mb_per_s: f64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    client_cpu_us_per_call: f64,
    server_cpu_us_per_call: Option<f64>,
    client_csw_per_call: f64,
    server_csw_per_call: Option<f64>,
    client_peak_rss_kib: u64,
    server_peak_rss_kib: Option<u64>,
    /// Microseconds within which so many calls ended: all but one in `10^(i / 8)`.
    distribution_us: Vec<f64>,
}

impl Report {
    pub(crate) fn new(args: Args, from: Moment, to: Moment, took: Duration, times: &Histogram<u64>) -> Self {
        let calls = to.calls - from.calls;
        let seconds = took.as_secs_f64();
        let rps = calls as f64 / seconds;
        let within = |part: f64| round(times.value_at_quantile(part) as f64 / 1e3);
        let cpu =
            |from: Usage, to: Usage| round(to.cpu_ns.saturating_sub(from.cpu_ns) as f64 / 1e3 / calls as f64);
        // Threads that have ended take their counts with them.
        let csw = |from: Usage, to: Usage| round(to.sleeps.saturating_sub(from.sleeps) as f64 / calls as f64);
        let server = from.server.zip(to.server);
        Self {
            method: args.method.name(),
            size: args.size,
            concurrency: args.concurrency,
            connections: args.connections,
            pause_ms: args.pause.as_millis(),
            load: args.load,
            load_size: args.load_size,
            load_method: args.load_method.name(),
            load_mb_per_s: round((to.beside - from.beside) as f64 / seconds / 1e6),
            stalled: args.stalled,
            current_thread: args.current_thread,
            contestant: args.contestant,
            seconds: round(seconds),
            calls,
            rps: round(rps),
            mb_per_s: round(rps * args.size as f64 / 1e6),
            p50_us: within(0.5),
            p90_us: within(0.9),
            p99_us: within(0.99),
            p999_us: within(0.999),
            max_us: round(times.max() as f64 / 1e3),
            client_cpu_us_per_call: cpu(from.client, to.client),
            server_cpu_us_per_call: server.map(|(from, to)| cpu(from, to)),
            client_csw_per_call: csw(from.client, to.client),
            server_csw_per_call: server.map(|(from, to)| csw(from, to)),
            client_peak_rss_kib: Process::Own.peak_memory(),
            server_peak_rss_kib: args.server_pid.map(|pid| Process::Other(pid).peak_memory()),
            distribution_us: (0..=40).map(|i| within(1.0 - 10f64.powf(f64::from(-i) / 8.0))).collect(),
        }
    }
}

fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}
