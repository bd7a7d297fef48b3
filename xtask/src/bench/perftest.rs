//! `ib_send_lat` and `ib_read_bw`: what others measure of the same device.

use std::fs;
use std::time::{Duration, Instant};

use super::plan::{Place, words};
use crate::failure::{Context, Failure, Result};
use crate::host::{self, Killed};

const DEVICE: &str = "rxe0";

/// How long a server may take until it listens, where nothing is fast.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the program that does what is done in this place; a report like those of `benches/peers`.
pub(super) fn measure(place: &Place, mode: &str, seconds: f64) -> Result<String> {
    // So many take about a second on an emulated processor.
    let (program, per_second) = match (place.method.as_str(), place.size) {
        ("echo", _) => ("ib_send_lat", 3_000.0),
        (_, size) => ("ib_read_bw", (64 << 20) as f64 / size as f64),
    };
    let calls = (per_second * seconds).max(20.0) as u64;
    let size = place.size;
    let mut options =
        format!("--ib-dev {DEVICE} --gid-index {} --size {size} --iters {calls} -F", gid_index()?);
    if mode == "event" {
        options += " --events";
    }
    if program == "ib_read_bw" {
        options += &format!(" --tx-depth {0} --outs {0}", place.concurrency);
    }
    let mut server = host::system(program);
    server.args(words(&options)).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut server = Killed(server.spawn().context(program)?);
    let begin = Instant::now();
    let said = loop {
        // It says nothing when it listens, and who comes too early is refused.
        let mut client = host::system(program);
        match host::output(client.args(words(&options)).arg("127.0.0.1")) {
            Ok(said) => break said,
            Err(failure) if begin.elapsed() > PATIENCE => return Err(failure),
            Err(_) => std::thread::sleep(host::TICK),
        }
        host::check_signals()?;
    };
    let _ = server.0.wait();
    let report = if program == "ib_send_lat" { latency(&said) } else { bandwidth(&said, size) };
    let mut report = report.ok_or_else(|| Failure::failed(format!("{program} said\n{said}")))?;
    let place = serde_json::to_value(place).context("a place")?;
    if let (Some(report), serde_json::Value::Object(place)) = (report.as_object_mut(), place) {
        report.extend(place);
    }
    Ok(report.to_string())
}

/// The index of the device's IPv4 address, which `farcall` prefers, too.
fn gid_index() -> Result<usize> {
    let gid = |index: &usize| {
        let path = format!("/sys/class/infiniband/{DEVICE}/ports/1/gids/{index}");
        fs::read_to_string(path).is_ok_and(|gid| gid.starts_with("0000:0000:0000:0000:0000:ffff:"))
    };
    (0..16).find(gid).ok_or_else(|| Failure::cannot_run(format!("{DEVICE} has no IPv4 address")))
}

/// The numbers of the table's only row.
fn numbers(said: &str) -> Option<Vec<f64>> {
    let after = said.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).nth(1)?;
    after.split_whitespace().map(|number| number.parse().ok()).collect()
}

/// It counts one way, half a round trip.
fn latency(said: &str) -> Option<serde_json::Value> {
    let [_, calls, _, _, typical, average, _, p99, ..] = numbers(said)?[..] else { return None };
    Some(serde_json::json!({
        "rps": 1e6 / (2.0 * average), "mb_per_s": 0.0, "calls": calls, "p50_us": 2.0 * typical, "p99_us": 2.0 * p99,
    }))
}

/// It counts in units of 2^20 bytes.
fn bandwidth(said: &str, size: usize) -> Option<serde_json::Value> {
    let [_, calls, _, average, ..] = numbers(said)?[..] else { return None };
    let bytes = average * f64::from(1 << 20);
    Some(serde_json::json!({ "rps": bytes / size as f64, "mb_per_s": bytes / 1e6, "calls": calls }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_round_trips_are_doubled() {
        let said = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n \
            64      3000          14.32          10343.53      30.53    \t       144.38      \t843.76 \t\t6028.99 \t\t10259.54\n----\n";
        let report = latency(said).unwrap();
        assert_eq!((report["p50_us"].as_f64(), report["p99_us"].as_f64()), (Some(61.06), Some(12_057.98)));
        assert_eq!(latency("Couldn't connect"), None);
    }

    #[test]
    fn bandwidth_is_in_millions_of_bytes() {
        let said = "----\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
            1048576    600              52.07              39.00  \t\t   0.000039\n----\n";
        let report = bandwidth(said, 1 << 20).unwrap();
        assert_eq!((report["rps"].as_f64(), report["mb_per_s"].as_f64()), (Some(39.0), Some(40.894_464)));
    }
}
