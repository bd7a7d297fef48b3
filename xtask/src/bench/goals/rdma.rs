//! Goals of RDMA, and of the baseline that it is measured by.

use super::Limit::{AtLeast, AtMost};
use super::{Goal, Limit, connections, ratio};
use crate::bench::plan::{BULK_SIZES, LENT, MODES, Part, Place};
use crate::bench::results::{Metric, Results};

pub(super) fn all(results: &Results) -> Vec<Goal> {
    let [one, window] = [1, 32].map(|in_flight| Place::echo(Part::Rdma, 64, in_flight, 1));
    let mut goals = Vec::new();
    let mut goal = |metric: Metric, of: (&Place, &str), to: (&Place, &str), limit: Limit| {
        let what = format!("RDMA, {}, {}: {} to {}", of.0.title(), of.1, metric.title(), named(of.0, to));
        goals.extend(ratio(results, what, metric, of, to, limit));
    };
    for mode in MODES {
        let [perftest, raw, farcall] =
            ["perftest", "raw-verbs", "farcall"].map(|name| format!("{name} {mode}"));
        goal(Metric::P50, (&one, &raw), (&one, &perftest), AtMost(1.05));
        let most = if *mode == "busy" { 1.3 } else { 1.2 };
        goal(Metric::P50, (&one, &farcall), (&one, &raw), AtMost(most));
        goal(Metric::CallsPerSecond, (&window, &farcall), (&window, &raw), AtLeast(0.8));
        let [stream, read] =
            [Place::streams(Part::Rdma, BULK_SIZES[0], 1), Place::bulk("read", BULK_SIZES[0])];
        goal(Metric::Bandwidth, (&stream, &farcall), (&read, &raw), AtLeast(0.85));
        for methods in [["peek", "read"], ["add", "add"], ["swap", "swap"]] {
            let [place, by_hand] = methods.map(|method| Place::region(Part::Rdma, method));
            goal(Metric::P50, (&place, &farcall), (&by_hand, &raw), AtMost(1.2));
        }
        let alone = Place::echo(Part::Beside, 64, 1, 1);
        for beside in LENT.map(Place::beside_lent) {
            goal(Metric::P50, (&beside, &farcall), (&alone, &farcall), AtMost(1.5));
        }
        for size in BULK_SIZES {
            let [read, put, get, chain] =
                ["read", "put", "get", "chain"].map(|method| Place::bulk(method, *size));
            goal(Metric::Bandwidth, (&read, &raw), (&read, &perftest), AtLeast(0.95));
            let least = if *size < 1 << 20 { 0.85 } else { 0.95 };
            for methods in [["lend", "read"], ["fill", "write"]] {
                let [place, by_hand] = methods.map(|method| Place::lent(Part::Rdma, method, *size));
                goal(Metric::Bandwidth, (&place, &farcall), (&by_hand, &raw), AtLeast(least));
            }
            for place in [&put, &get] {
                goal(Metric::Bandwidth, (place, &farcall), (&read, &raw), AtLeast(least));
                if *size < 1 << 20 {
                    goal(Metric::Bandwidth, (place, &farcall), (&chain, &raw), AtLeast(1.0));
                }
            }
        }
    }
    let rare = Place::rare();
    for (place, mode) in [(&one, "farcall busy"), (&rare, "farcall event")] {
        for metric in [Metric::P50, Metric::Cpu] {
            goal(metric, (place, "farcall adaptive"), (place, mode), AtMost(1.1));
        }
    }
    goals.extend(connections(results, Part::Rdma, "farcall adaptive"));
    goals
}

/// Returns the name of the other contestant, and of its place if that differs.
fn named(of: &Place, to: (&Place, &str)) -> String {
    match to {
        (place, name) if place == of => name.to_owned(),
        (place, name) if place.method == of.method => format!("{name} without"),
        (place, name) => format!("{} of {name}", place.method),
    }
}
