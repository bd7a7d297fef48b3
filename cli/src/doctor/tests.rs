//! Whatever a record, a configuration or another host says, nothing panics.

use std::path::Path;

use farcall::Config;
use serde_json::Value;

use super::*;
use crate::mutations;

/// The records of the transport's tests.
fn records() -> Vec<String> {
    let hosts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../transport-rdma/tests/hosts");
    let mut files: Vec<_> = fs::read_dir(hosts).unwrap().map(|entry| entry.unwrap().path()).collect();
    // The numbers of mutations go with the order.
    files.sort();
    files.into_iter().map(|file| fs::read_to_string(file).unwrap()).collect()
}

/// Looks at a record as the command does. `None`: it is none.
fn look(record: &str, config: &RdmaConfig) -> Option<Report> {
    let machine = Machine::recorded(record).ok()?;
    let report = probe::examine(&machine, config);
    assert!(text::render(&report, true).contains('\n'));
    json(&report).unwrap_or_else(|why| panic!("{}", why.text()));
    Some(report)
}

#[test]
fn no_record_panics() {
    let (records, config) = (records(), RdmaConfig::default());
    assert!(records.len() >= 8);
    let each = 10_000_usize.div_ceil(records.len());
    let mut accepted = 0;
    for (record, seed) in records.iter().zip(1..) {
        let counters = Counters::read(&Machine::recorded(record).unwrap(), &config);
        for mutation in mutations::of(record, seed).take(each) {
            let Some(_) = look(&mutation, &config) else { continue };
            accepted += 1;
            if accepted % 8 != 0 {
                continue;
            }
            // Counters that shrink, grow to the largest number, and come and go.
            let others = Counters::read(&Machine::recorded(&mutation).unwrap(), &config);
            let _ = (others.grown_since(&counters), counters.grown_since(&others));
        }
    }
    assert!(accepted > 5000, "{accepted}");
}

#[test]
fn every_entry_of_a_record_may_be_missing() {
    for record in records() {
        let entries: Vec<_> = record.split("\n== ").collect();
        for missing in 1..entries.len() {
            let others = [&entries[..missing], &entries[missing + 1..]].concat();
            assert!(look(&others.join("\n== "), &RdmaConfig::default()).is_some());
        }
    }
}

#[test]
fn no_configuration_panics() {
    const SETTINGS: &str = "transport = \"auto\"\n[limits]\nmax_message = 16777216\nmemory = 1000000000\n[liveness]\nconnect_ms = 1000\n\
        [retry]\n[admission]\n[server]\n[tcp]\n[rdma]\ndevice = \"mlx5_0\"\nport = 1\ngid_index = 3\ngid = \"10.1.2.3\"\n\
        subnet = \"10.1.0.0/16\"\npkey_index = 0\ncompletion = \"busy\"\nbusy_cpu = 7\nmemory = 67108864\nbulk_memory = 536870912\n\
        connections = 1024\necn = true\n[rdma.dscp]\nnormal = 26\n";
    let record = records().into_iter().find(|record| record.contains("rocep")).unwrap();
    let mut accepted = 0;
    for mutation in mutations::of(SETTINGS, 1).take(10_000) {
        let Ok(config) = Config::from_toml(&mutation) else { continue };
        accepted += 1;
        assert!(look(&record, &config.rdma).is_some());
    }
    assert!(accepted > 100, "{accepted}");
}

#[test]
fn no_other_host_panics() {
    let here = look(&records()[0], &RdmaConfig::default()).unwrap();
    let of_here = serde_json::to_value(&here).unwrap();
    for (record, seed) in records().iter().zip(1..) {
        let report = look(record, &RdmaConfig::default()).unwrap();
        let each = 10_000_usize.div_ceil(8);
        let mut accepted = 0;
        for mutation in mutations::of(&json(&report).unwrap_or_default(), seed).take(each) {
            let Ok(there) = serde_json::from_str::<Value>(&mutation) else { continue };
            accepted += 1;
            let mut between: Vec<_> = between::mtu(&of_here, &there).into_iter().collect();
            between.extend(between::mtu(&there, &there));
            let _ = way::ends_of(&there);
            let other = Other { there: Some(there), between, auto: mutation };
            let said = text::render_both(&here, &other, true);
            let is_moving = |c: char| c.is_control() && c != '\n' && c != '\t' && c != '\u{1b}';
            assert!(!said.contains(is_moving), "{said:?}");
            let _ = (other.there.as_ref().and_then(text::worst_of), text::render_both(&here, &other, false));
        }
        assert!(accepted > 100, "{accepted}");
    }
}
