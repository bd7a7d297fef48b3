//! `farcall perf` by TCP and RDMA side by side.
//!
//! Runs in the VM as root, as `cargo xtask test vm` does it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod common;
mod files;
mod serving;

use serde_json::Value;

use common::{complaint, farcall, printed};
use files::path;
use serving::Server;

#[test]
fn both_links_are_measured_and_one_sided_work_costs_the_server_nothing() {
    let server = Server::start(&[]);
    let json = path("vm.json");
    let patterns = "echo,put,get,stream-down,stream-up,lend,fill,read,write,add";
    let arguments = [
        "perf",
        &server.address,
        "--pattern",
        patterns,
        "--size",
        "64K",
        "--seconds",
        // An emulated processor beside other work takes a second for some of the calls.
        "3",
        "--json",
        json.to_str().unwrap(),
    ];
    let output = farcall(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}{}", printed(&output), complaint(&output));
    let results: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let outcomes = results["outcomes"].as_array().unwrap();
    assert_eq!(outcomes.len(), 20);
    for outcome in outcomes {
        assert!(outcome["calls"].as_u64().unwrap() > 0 && outcome["errors"] == 0, "{outcome:#}");
        let transport = outcome["transport"].as_str().unwrap();
        assert!(transport.starts_with(outcome["by"].as_str().unwrap()), "{transport}");
        for side in ["client_cpu", "server_cpu"] {
            assert!(outcome[side].as_f64().is_some_and(|micros| micros > 0.0), "{side}: {outcome:#}");
        }
    }
    assert!(results["server"]["devices"][0].as_str().unwrap().starts_with("rxe0 (rxe, "), "{results:#}");
    // A tenth is what looking at the clock, keeping the connection alive and its files may take on an emulated processor.
    let by_device = |outcome: &&Value| {
        outcome["by"] == "rdma" && ["read", "write", "add"].contains(&outcome["pattern"].as_str().unwrap())
    };
    for outcome in outcomes.iter().filter(by_device) {
        let micros = outcome["server_cpu"].as_f64().unwrap() * outcome["calls"].as_f64().unwrap();
        let share = micros / 1e6 / outcome["seconds"].as_f64().unwrap();
        assert!(share < 0.1, "{outcome:#}");
    }
}
