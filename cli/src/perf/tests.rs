use anstream::adapter::strip_str;
use serde_json::json;

use super::*;
use crate::mutations;

/// Results as `--json` writes them: of two measurements, of which the first takes half as long.
fn results() -> serde_json::Value {
    let environment = |threads: u16| {
        json!({
            "host": "db1", "kernel": "6.8.0", "processor": "AMD EPYC 7763", "cpus": 64, "version": "0.1.0",
            "devices": ["mlx5_0 (mlx5_core, 100 Gb/sec (4X EDR))"], "threads": threads, "governor": "performance",
            "mtu": { "ens1f0np0": 9000 }, "configuration": { "rdma.memory": "134217728" },
            "command": "farcall perf db1 --json old.json",
        })
    };
    let outcome = |by: &str, p50: f64| {
        json!({
            "by": by, "pattern": "echo", "size": 64, "in_flight": 1, "connections": 1, "rate": null, "transport": by,
            "seconds": 2.0, "calls": 200_000, "errors": 0, "not_begun": 0, "error": null, "calls_per_second": 1e6 / p50,
            "megabytes_per_second": 12.8, "latency": {
                "mean": p50, "p50": p50, "p90": p50, "p99": 2.0 * p50, "p999": 3.0 * p50, "max": 100.0,
                "distribution": [[0.0, 1.0], [50.0, p50], [100.0, 100.0]],
            }, "client_cpu": 4.0, "server_cpu": 3.0,
        })
    };
    json!({
        "date": "2026-01-02T03:04:05Z", "client": environment(1), "server": environment(2),
        "outcomes": [outcome("rdma", 10.0), outcome("tcp", 20.0)], "missing": [],
    })
}

fn parsed(results: serde_json::Value) -> Results {
    serde_json::from_value(results).unwrap()
}

#[test]
fn the_chart_has_a_bar_for_each_median_and_the_longest_for_the_slowest() {
    let table = strip_str(&table::render(&parsed(results()))).to_string();
    let chart: Vec<_> = table.lines().skip_while(|line| *line != "median latency").skip(1).take(2).collect();
    let bars = [
        format!("  rdma echo 64 B x1 {:<28} 10.0 us", "█".repeat(14)),
        format!("  tcp echo 64 B x1  {} 20.0 us", "█".repeat(28)),
    ];
    assert_eq!(chart, bars);
    // Without times there is nothing to compare, and nothing to divide by.
    let mut nothing = results();
    for outcome in nothing["outcomes"].as_array_mut().unwrap() {
        outcome["latency"]["p50"] = json!(0.0);
    }
    let table = table::render(&parsed(nothing));
    assert!(table.contains(" 0.0 us"), "{table}");
}

#[test]
fn differences_of_two_runs_are_named() {
    let now = parsed(results());
    assert!(!compare::render(&now, &now).contains("then,"), "{}", compare::render(&now, &now));
    let mut earlier = results();
    earlier["client"]["governor"] = json!("powersave");
    earlier["client"]["mtu"]["ens1f0np0"] = json!(1500);
    earlier["client"]["command"] = json!("farcall perf");
    earlier["server"]["threads"] = json!(4);
    earlier["server"]["configuration"] = json!({});
    let text = strip_str(&compare::render(&parsed(earlier), &now)).to_string();
    let named: Vec<_> = text.lines().filter(|line| line.contains(" then, ")).collect();
    assert_eq!(
        named,
        [
            "  client governor: powersave then, performance now",
            "  client mtu.ens1f0np0: 1500 then, 9000 now",
            "  server configuration.rdma.memory: - then, 134217728 now",
            "  server threads: 4 then, 2 now",
        ]
    );
    assert!(text.starts_with("against the run of 2026-01-02T03:04:05Z"), "{text}");
}

#[test]
fn results_of_an_earlier_version_are_read() {
    let mut earlier = results();
    earlier.as_object_mut().unwrap().remove("date");
    for side in ["client", "server"] {
        for new in ["threads", "governor", "mtu", "configuration", "command"] {
            earlier[side].as_object_mut().unwrap().remove(new);
        }
    }
    let text = compare::render(&parsed(earlier), &parsed(results()));
    assert!(text.contains("client threads: - then, 1 now"), "{text}");
}

#[test]
fn every_report_names_what_it_was_measured_on() {
    let results = parsed(results());
    for report in [table::render(&results), html::render(&results)] {
        for part in ["db1", "AMD EPYC 7763", "performance", "threads: 2", "rdma.memory = 134217728"] {
            assert!(report.contains(part), "{part}: {report}");
        }
    }
    let page = html::render(&results);
    assert!(
        page.contains("farcall perf db1 --json old.json") && page.contains("2026-01-02T03:04:05Z"),
        "{page}"
    );
}

#[test]
fn the_table_for_programs_has_all_that_is_known_of_both_sides() {
    let text = csv::render(&parsed(results()));
    let mut lines = text.split("\r\n");
    let fields = |line: &str| {
        let mut is_quoted = false;
        let ends = |c: char| {
            is_quoted ^= c == '"';
            c == ',' && !is_quoted
        };
        line.split(ends).map(|field| field.trim_matches('"').to_owned()).collect::<Vec<_>>()
    };
    let names = fields(lines.next().unwrap());
    for line in lines.by_ref().take(2) {
        let values = fields(line);
        assert_eq!(values.len(), names.len(), "{line}");
        let value = |name: &str| &values[names.iter().position(|known| known == name).unwrap()];
        for (name, expected) in [
            ("client_threads", "1"),
            ("server_threads", "2"),
            ("date", "2026-01-02T03:04:05Z"),
            ("client_kernel", "6.8.0"),
            ("server_processor", "AMD EPYC 7763"),
            ("client_cpus", "64"),
            ("server_devices", "mlx5_0 (mlx5_core, 100 Gb/sec (4X EDR))"),
            ("client_governor", "performance"),
            ("server_mtu", "ens1f0np0 = 9000"),
            ("client_configuration", "rdma.memory = 134217728"),
            ("client_command", "farcall perf db1 --json old.json"),
        ] {
            assert_eq!(value(name), expected, "{name}");
        }
    }
    assert_eq!(lines.next(), Some(""));
}

#[test]
fn no_file_of_results_panics() {
    let (text, now) = (format!("{:#}", results()), parsed(results()));
    let mut accepted = 0;
    for mutation in mutations::of(&text, 1).take(10_000) {
        let Ok(earlier) = serde_json::from_str::<Results>(&mutation) else { continue };
        accepted += 1;
        let _ = (compare::render(&earlier, &now), compare::render(&now, &earlier));
        let _ = (table::render(&earlier), html::render(&earlier), csv::render(&earlier));
    }
    assert!(accepted > 500, "{accepted}");
}
