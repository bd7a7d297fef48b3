//! `farcall serve` and `farcall perf`, by TCP.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod common;
mod files;
mod serving;

use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use common::{complaint, farcall, printed};
use files::path;
use serving::Server;

/// Writes a file in a directory for temporary files.
fn file(name: &str, content: &str) -> std::path::PathBuf {
    let path = path(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// Measures for a short time, with these further arguments. Returns the results.
fn measured(server: &Server, name: &str, arguments: &[&str]) -> Value {
    measured_for("0.2", server, name, arguments)
}

fn measured_for(seconds: &str, server: &Server, name: &str, arguments: &[&str]) -> Value {
    let json = path(name);
    let first = [
        "perf",
        &server.address,
        "--transport",
        "tcp",
        "--seconds",
        seconds,
        "--json",
        json.to_str().unwrap(),
    ];
    let output = farcall(&[&first[..], arguments].concat());
    assert!(output.status.success(), "{}{}", printed(&output), complaint(&output));
    serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap()
}

fn outcomes(results: &Value) -> &Vec<Value> {
    results["outcomes"].as_array().unwrap()
}

#[test]
fn each_pattern_makes_calls_and_counts_their_bytes() {
    let server = Server::start(&[]);
    let patterns = "echo,put,get,stream-down,stream-up,lend,fill,read,write,add";
    let results = measured(&server, "patterns.json", &["--pattern", patterns, "--size", "16K"]);
    let names: Vec<_> =
        outcomes(&results).iter().map(|outcome| outcome["pattern"].as_str().unwrap()).collect();
    assert_eq!(names.join(","), patterns);
    for outcome in outcomes(&results) {
        let number = |name: &str| outcome[name].as_f64().unwrap();
        assert!(number("calls") > 0.0 && number("errors") == 0.0, "{outcome:#}");
        let payloads = match outcome["pattern"].as_str().unwrap() {
            "echo" => 2.0,
            "stream-down" | "stream-up" => 64.0,
            _ => 1.0,
        };
        let moved = number("calls_per_second") * payloads * number("size") / 1e6;
        assert!((number("megabytes_per_second") / moved - 1.0).abs() < 1e-6, "{outcome:#}");
        let latency = |name: &str| outcome["latency"][name].as_f64().unwrap();
        let order = ["p50", "p90", "p99", "p999", "max"].map(latency);
        assert!(order.is_sorted() && order[0] > 0.0, "{outcome:#}");
        // Both processes have worked for it.
        if cfg!(target_os = "linux") {
            assert!(number("client_cpu") > 0.0 && number("server_cpu") > 0.0, "{outcome:#}");
        }
    }
}

#[test]
fn all_combinations_are_measured() {
    let server = Server::start(&["--threads", "2"]);
    let arguments = [
        "--size",
        "64,1K",
        "--in-flight",
        "2,8",
        "--connections",
        "1,2",
        "--rate",
        "1000,2000",
        "--threads",
        "2",
        "--seconds",
        "0.05",
    ];
    let first = ["perf", &server.address, "--transport", "tcp", "--csv"];
    let csv = path("all.csv");
    let output = farcall(&[&first[..], &[csv.to_str().unwrap()], &arguments].concat());
    assert!(output.status.success(), "{}", complaint(&output));
    let csv = std::fs::read_to_string(csv).unwrap();
    // Commas within quotation marks are parts of values.
    let columns_of =
        |line: &str| line.split('"').step_by(2).map(|part| part.matches(',').count()).sum::<usize>();
    let columns = columns_of(csv.lines().next().unwrap());
    assert_eq!(csv.lines().count(), 1 + 16);
    assert!(csv.lines().all(|line| columns_of(line) == columns), "{csv}");
    let table = printed(&output);
    for column in ["conns", "rate", "p99.9 us"] {
        assert!(table.contains(column), "{column}: {table}");
    }
}

#[test]
fn a_schedule_shows_the_stall_that_a_closed_loop_hides() {
    let server = Server::start(&[]);
    let stall = |process: u32| {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(500));
            let signal = |name: &str| {
                assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
            };
            signal("-STOP");
            thread::sleep(Duration::from_millis(700));
            signal("-CONT");
        })
    };
    let p90 = |name: &str, arguments: &[&str]| {
        let stalled = stall(server.process.id());
        let results = measured_for("1.5", &server, name, arguments);
        stalled.join().unwrap();
        outcomes(&results)[0]["latency"]["p90"].as_f64().unwrap()
    };
    let (closed, open) = (p90("closed.json", &[]), p90("open.json", &["--rate", "500", "--in-flight", "4"]));
    // Nearly half of the calls that were due came in the stall, and waited for its end. In the closed loop it was one of thousands: a
    // tenth of them could not have been slow.
    assert!(open > 10.0 * closed, "open {open} us, closed {closed} us");
}

#[test]
fn a_report_needs_no_other_file_and_runs_are_compared() {
    let server = Server::start(&[]);
    let html = path("report.html");
    measured(&server, "old.json", &["--html", html.to_str().unwrap(), "--in-flight", "1,4"]);
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert_eq!(page.matches("<svg").count(), 4);
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert_eq!(page.matches("<polyline").count(), 2);
    for elsewhere in ["src=", "href=", "http:", "https:", "@import", "NaN", "inf"] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
    let old = path("old.json");
    let arguments = [
        "perf",
        &server.address,
        "--transport",
        "tcp",
        "--seconds",
        "0.1",
        "--in-flight",
        "1,2",
        "--compare",
    ];
    let output = farcall(&[&arguments[..], &[old.to_str().unwrap()]].concat());
    let text = printed(&output);
    let line = |name: &str| text.lines().rfind(|line| line.contains(name)).unwrap().to_owned();
    assert_eq!(line("tcp echo 64 B x1").matches('%').count(), 3, "{text}");
    assert!(line("tcp echo 64 B x2").contains("was not measured then"), "{text}");
}

#[test]
fn a_measurement_that_can_not_be_made_says_why() {
    let server = Server::start(&[]);
    let json = file("no-results.json", "{}");
    let address = server.address.as_str();
    let cases: [(&[&str], i32, &str); 10] = [
        (&["perf", "127.0.0.1:1", "--transport", "tcp"], 1, "Connection refused"),
        (&["perf", "127.0.0.1:1"], 1, "Fix: start `farcall serve` there"),
        (&["call", "127.0.0.1:1", "Perf/echo"], 1, "Fix: start `farcall serve` there"),
        (&["perf", address, "--compare", json.to_str().unwrap()], 64, "it is none of `farcall perf --json`"),
        (&["perf", address, "--size", "1G"], 64, "write 64, 4K or 1M"),
        (&["perf", address, "--pattern", "dance"], 64, "stream-down"),
        (&["perf", address, "--seconds", "0"], 64, "from 0.01 to 3600"),
        (&["perf", address, "--in-flight", "0"], 64, "0 is not in 1..=100000"),
        (&["connect", "http://x"], 64, "the scheme is not"),
        (&["serve", "--listen", address], 1, "in use"),
    ];
    for (arguments, status, says) in cases {
        let output = farcall(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", complaint(&output));
        assert!(complaint(&output).contains(says), "{arguments:?}: {}", complaint(&output));
    }
    let arguments = [
        "perf",
        address,
        "--transport",
        "tcp",
        "--pattern",
        "read,echo",
        "--size",
        "2M",
        "--seconds",
        "0.05",
    ];
    let output = farcall(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let text = printed(&output);
    assert!(
        text.contains("tcp   echo") && text.contains("not measured  tcp read 2 MiB x1: INVALID_ARGUMENT"),
        "{text}"
    );
}

#[test]
fn a_server_that_is_another_one_is_told_from_a_missing_one() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = runtime.block_on(async { farcall::Server::builder().bind("127.0.0.1:0").await }).unwrap();
    let address = server.local_addr().to_string();
    runtime.spawn(server.serve());
    let output = farcall(&["perf", &address, "--transport", "tcp"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(complaint(&output).contains("Run `farcall serve` there"), "{}", complaint(&output));
    let connected = farcall(&["connect", &format!("tcp://{address}")]);
    assert!(printed(&connected).contains("calls travel by tcp"), "{}", complaint(&connected));
}

#[test]
fn a_unix_socket_is_served_beside_a_port() {
    let socket = std::env::temp_dir().join(format!("farcall-{}.sock", std::process::id()));
    let address = format!("unix:{}", socket.display());
    let server = Server::start(&["--listen", &address]);
    for address in [&server.address, &address] {
        let output = farcall(&["list", address]);
        assert!(printed(&output).contains("farcall.perf"), "{}", complaint(&output));
    }
    assert!(printed(&farcall(&["connect", &address])).contains("unix"));
    let output = farcall(&["connect", "--rdma", &address]);
    assert!(complaint(&output).contains("never go by RDMA"), "{}", complaint(&output));
    drop(server);
    std::fs::remove_file(socket).unwrap();
}
