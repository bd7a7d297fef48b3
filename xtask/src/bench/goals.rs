//! Goals, and whether they are met.

mod rdma;

use super::plan::{
    self, BASE, BESIDE_LOAD, IN_FLIGHT, MANY, MANY_IN_FLIGHT, Part, Place, SIZES, STREAMED, STREAMS,
};
use super::results::{Metric, Results};

/// Something to be reached, with what was measured.
#[derive(Debug)]
pub(super) struct Goal {
    pub(super) what: String,
    pub(super) limit: Limit,
    pub(super) measured: f64,
    /// Least and most over the rounds.
    pub(super) range: Option<(f64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

use Limit::{AtLeast, AtMost};

impl Goal {
    pub(super) fn is_met(&self) -> bool {
        // To two digits, as it is shown.
        let measured = (self.measured * 100.0).round() / 100.0;
        match self.limit {
            AtMost(limit) => measured <= limit,
            AtLeast(limit) => measured >= limit,
        }
    }
}

/// Those for which there are measurements.
pub(super) fn all(results: &Results) -> Vec<Goal> {
    let mut goals = Vec::new();
    for part in [Part::Pinned, Part::Unpinned] {
        let against_base = |place: &Place| against_base(results, place);
        for in_flight in IN_FLIGHT {
            let place = Place::echo(part, 64, *in_flight, 1);
            goals.extend(against_base(&place));
        }
        for size in &SIZES[1..] {
            goals.extend(IN_FLIGHT.iter().flat_map(|n| against_base(&Place::echo(part, *size, *n, 1))));
        }
    }
    let streams =
        STREAMED.iter().flat_map(|size| STREAMS.iter().map(|n| Place::streams(Part::Streams, *size, *n)));
    goals.extend(streams.flat_map(|place| against_base(results, &place)));
    goals.extend(beside_stream(results));
    goals.extend(encrypted(results));
    goals.extend(lent(results));
    goals.extend(counts(results));
    goals.extend(rdma::all(results));
    goals.extend(connections(results, Part::Connections, BASE));
    goals.extend(connections(results, Part::Connections, "farcall"));
    goals.extend([Part::Urgent, Part::Rdma].iter().filter_map(|part| urgent(results, *part)));
    goals
}

/// The cost of many connections, against as many calls over one. Where calls of one connection gather for a write, and
/// those of many can't, nobody reaches this: therefore it is asked of the base, too.
fn connections(results: &Results, part: Part, contestant: &str) -> Vec<Goal> {
    let goal = |in_flight: &usize| {
        let [one, many] = [1, MANY].map(|connections| Place::echo(part, 64, *in_flight, connections));
        let what = format!("{}, {contestant}: {} to one", many.title(), Metric::Cpu.title());
        ratio(results, what, Metric::Cpu, (&many, contestant), (&one, contestant), AtMost(1.25))
    };
    MANY_IN_FLIGHT.iter().filter_map(goal).collect()
}

/// The goal for a short call of one class beside long ones of another: as much as if they were another channel's.
fn urgent(results: &Results, part: Part) -> Option<Goal> {
    let place = Place::beside_load(part);
    let [own, second] = [BESIDE_LOAD[0], BESIDE_LOAD[1]];
    let what = format!("{}, {}, {own}: {} to {second}", part.title(), place.title(), Metric::P99.title());
    ratio(results, what, Metric::P99, (&place, own), (&place, second), AtMost(2.0))
}

/// The goal for calls beside a stream on their connection that nobody reads.
fn beside_stream(results: &Results) -> Option<Goal> {
    let [with, without] = [1, 0].map(Place::beside_stream);
    let metric = Metric::P99;
    let what = format!("{}, {}: {} to without", with.part.title(), with.title(), metric.title());
    ratio(results, what, metric, (&with, "farcall"), (&without, "farcall"), AtMost(1.5))
}

/// The goals of encrypted calls: short ones against those in the clear, long ones against rustls on a bare socket.
fn encrypted(results: &Results) -> Vec<Goal> {
    let limits = [AtLeast(0.6), AtLeast(0.8)];
    let goal = |((place, base), limit): ((&Place, &&str), Limit)| {
        let metric = Metric::CallsPerSecond;
        let what = format!("{}, {}: {} to {base}", place.part.title(), place.title(), metric.title());
        ratio(results, what, metric, (place, "farcall tls"), (place, base), limit)
    };
    let places = plan::encrypted();
    places.iter().zip(plan::TLS_BASE).zip(limits).filter_map(goal).collect()
}

/// The goals of memory that is lent, against the same payload in a call.
fn lent(results: &Results) -> Vec<Goal> {
    let goal = |(method, size): (&str, usize)| {
        let place = Place::lent(Part::Memory, method, size);
        let (unary, contestant) = place.base("farcall");
        let metric = Metric::CallsPerSecond;
        let what =
            format!("{}, {}: {} to {}", place.part.title(), place.title(), metric.title(), unary.method);
        ratio(results, what, metric, (&place, &contestant), (&unary, &contestant), AtLeast(1.0))
    };
    plan::LENT.iter().filter_map(|method| goal((method, 1 << 20))).collect()
}

/// The goals of farcall in a place, compared with the base.
fn against_base(results: &Results, place: &Place) -> Vec<Goal> {
    let asked: &[_] = match (place.part, place.size, place.concurrency) {
        (Part::Pinned, 64, 1) => &[(Metric::P50, AtMost(1.05))],
        (Part::Pinned, 64, _) => &[(Metric::CallsPerSecond, AtLeast(0.8))],
        (Part::Unpinned, 64, 1) => &[(Metric::P50, AtMost(0.95)), (Metric::Cpu, AtMost(1.3))],
        (Part::Unpinned, 64, _) => &[],
        (Part::Streams, 64, _) => &[(Metric::CallsPerSecond, AtLeast(0.8))],
        _ => &[(Metric::CallsPerSecond, AtLeast(1.0))],
    };
    let goal = |(metric, limit): &(Metric, Limit)| {
        let what = format!("{}, {}: {} to {BASE}", place.part.title(), place.title(), metric.title());
        ratio(results, what, *metric, (place, "farcall"), (place, BASE), *limit)
    };
    asked.iter().filter_map(goal).collect()
}

fn ratio(
    results: &Results,
    what: String,
    metric: Metric,
    of: (&Place, &str),
    to: (&Place, &str),
    limit: Limit,
) -> Option<Goal> {
    let ratio = results.ratio(metric, of, to)?;
    Some(Goal { what, limit, measured: ratio.median, range: Some((ratio.least, ratio.most)) })
}

fn counts(results: &Results) -> Vec<Goal> {
    let find = |what: &str, contestant: &str, in_flight: usize| {
        let mut all = results.counted().iter();
        all.find(|c| c.counted == what && c.contestant == contestant && c.concurrency == in_flight)
    };
    let mut goals = Vec::new();
    let mut goal = |what: String, measured: Option<f64>, limit| {
        goals.extend(measured.map(|measured| Goal { what, limit, measured, range: None }));
    };
    for (in_flight, limit) in [(1, 9_000.0), (32, 2_400.0)] {
        let counted = find("instructions", "farcall", in_flight).map(|c| c.client + c.server);
        goal(format!("instructions per call, {in_flight} in flight"), counted, AtMost(limit));
    }
    let allocations = find("allocations", "farcall", 1);
    goal("allocations per call, client".into(), allocations.map(|c| c.client), AtMost(1.0));
    goal("allocations per call, server".into(), allocations.map(|c| c.server), AtMost(2.0));
    let calls = |contestant| find("system calls", contestant, 1).map(|c| c.client + c.server);
    let ratio = calls("farcall").zip(calls(BASE)).map(|(ours, base)| ours / base);
    goal(format!("system calls per call, 1 in flight, to {BASE}"), ratio, AtMost(1.0));
    for in_flight in plan::COUNTED_IN_FLIGHT.iter().filter(|n| **n > 1) {
        let counted = find("system calls", "farcall", *in_flight).map(|c| c.client + c.server);
        goal(format!("system calls per call, {in_flight} in flight"), counted, AtMost(0.4));
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_met(limit: Limit, measured: f64) -> bool {
        Goal { what: String::new(), limit, measured, range: None }.is_met()
    }

    #[test]
    fn a_goal_is_met_up_to_its_limit() {
        assert!(is_met(AtMost(1.05), 1.054) && !is_met(AtMost(1.05), 1.06));
        assert!(is_met(AtLeast(0.8), 0.796) && !is_met(AtLeast(0.8), 0.79));
    }

    #[test]
    fn a_number_that_was_not_measured_is_no_goal() {
        assert!(all(&Results::default()).is_empty());
    }
}
