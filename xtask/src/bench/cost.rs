//! A guard against calls that become dearer: instructions and allocations, which are the same on every machine.

use super::count::{self, Ends, What};
use super::peers::{Frameworks, Peers};
use crate::failure::{Failure, Result};
use crate::packages;

/// The cost of a call of 64 bytes by TCP, one connection, both ends on a thread each that never spins, with so many calls
/// in flight. Whoever makes it cheaper writes down what it takes now; docs/BENCHMARKS.md says why if it is more.
const TAKES: &[(usize, What, Ends)] = &[
    (1, What::Instructions, Ends { client: 6_230.0, server: 5_285.0 }),
    (1, What::Allocations, Ends { client: 0.0, server: 1.0 }),
    (32, What::Instructions, Ends { client: 2_775.0, server: 1_760.0 }),
    (32, What::Allocations, Ends { client: 0.0, server: 1.0 }),
];

/// Compilers and C libraries differ by a little.
const INSTRUCTIONS_MORE: f64 = 1.05;

/// A table that grows once in a while is not part of a call.
const ALLOCATIONS_MORE: f64 = 0.2;

/// With many in flight, how much gathers for one write depends on how the tools slow the ends down. It evens out, but what
/// is dearer is dearer each time.
const ATTEMPTS: usize = 3;

/// Counts, prints, and fails if anything takes more than it did. `long`: compares builds with and without TLS, too.
pub(crate) fn check(long: bool) -> Result<()> {
    packages::ensure(packages::COUNTING)?;
    let peers = Peers::build(Frameworks::Counted)?;
    println!("in flight  per call       client      was   server      was");
    let mut dearer = Vec::new();
    for (in_flight, what, was) in TAKES {
        let name = what.name();
        for attempt in 1..=ATTEMPTS {
            let now = count::per_call(&peers, *what, "farcall", *in_flight)?;
            println!(
                "{in_flight:>9}  {name:<12} {:>8.1} {:>8} {:>8.1} {:>8}",
                now.client, was.client, now.server, was.server
            );
            if !is_dearer(*what, now, *was) {
                break;
            }
            if attempt == ATTEMPTS {
                dearer.push(format!("{name} with {in_flight} in flight"));
            }
        }
    }
    dearer.extend(balanced(&peers)?);
    if long {
        dearer.extend(with_tls(&peers)?);
    }
    let more = || Failure::failed(format!("calls take more than they did: {}", dearer.join(", ")));
    if dearer.is_empty() { Ok(()) } else { Err(more()) }
}

/// The most that the client's part of a lone call may cost with a choice of servers, by policy, as a multiple of its cost without. The
/// aim is 3 % of both ends' parts, 1.055 here. A choice by load reads the clock twice.
const CHOICE: [(&str, f64); 3] = [("round-robin", 1.055), ("least-loaded", 1.1), ("by-key", 1.055)];

/// Counts what it takes to choose a server. Returns the policies that take more than they may.
fn balanced(peers: &Peers) -> Result<Vec<String>> {
    let plain = count::per_call(peers, What::Instructions, "farcall", 1)?.client;
    let mut dearer = Vec::new();
    println!("to choose a server, of {plain:.0} instructions");
    for (policy, most) in CHOICE {
        let settings = ["--set".to_owned(), format!("balance.policy={policy}")];
        let now = count::per_call_with(peers, What::Instructions, "farcall", 1, &settings)?.client;
        println!("          {policy:<12} {:>8.1} more", now - plain);
        if now > plain * most {
            dearer.push(format!("choosing a server ({policy})"));
        }
    }
    Ok(dearer)
}

/// The most that a call in the clear may cost in a build with TLS, as a multiple of its cost in a build without.
const TLS_MORE: f64 = 1.01;

/// Counts what TLS costs the calls of connections without it. Returns the ends where it is more than it may be.
fn with_tls(peers: &Peers) -> Result<Vec<String>> {
    let without = Peers::build(Frameworks::CountedWithoutTls)?;
    let count = |peers| count::per_call(peers, What::Instructions, "farcall", 1);
    println!("in the clear, built with TLS and without");
    let mut dearer = Vec::new();
    for _ in 0..ATTEMPTS {
        let (with, without) = (count(peers)?, count(&without)?);
        let ends = [("client", with.client, without.client), ("server", with.server, without.server)];
        dearer.clear();
        for (end, with, without) in ends {
            println!("          {end:<12} {with:>8.1} {without:>8.1}");
            if with > without * TLS_MORE {
                dearer.push(format!("the {end} of a build with TLS, in the clear"));
            }
        }
        if dearer.is_empty() {
            break;
        }
    }
    Ok(dearer)
}

/// Whether either end takes more than is allowed.
fn is_dearer(what: What, now: Ends, was: Ends) -> bool {
    let allowed = |was: f64| match what {
        What::Allocations => was + ALLOCATIONS_MORE,
        What::Instructions | What::SystemCalls => was * INSTRUCTIONS_MORE,
    };
    now.client > allowed(was.client) || now.server > allowed(was.server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_end_can_be_dearer_and_by_how_much_depends_on_what_is_counted() {
        let was = Ends { client: 1.0, server: 2.0 };
        let now = |client, server| is_dearer(What::Allocations, Ends { client, server }, was);
        assert!(!now(1.1, 2.1) && now(1.5, 2.0) && now(1.0, 3.0));
        let was = Ends { client: 1000.0, server: 2000.0 };
        let now = |client, server| is_dearer(What::Instructions, Ends { client, server }, was);
        assert!(!now(1040.0, 2080.0) && now(1060.0, 2000.0) && now(1000.0, 2120.0));
    }
}
