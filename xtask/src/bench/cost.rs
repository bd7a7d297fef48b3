//! A guard against calls that become dearer: instructions and allocations, which are the same on every machine.

use super::count::{self, Ends, What};
use super::peers::{Frameworks, Peers};
use crate::failure::{Failure, Result};
use crate::packages;

/// What a call of 64 bytes takes by TCP, one connection, both ends on a thread each that never spins. Whoever makes it
/// cheaper writes down what it takes now.
const TAKES: &[Takes] = &[
    Takes { in_flight: 1, instructions: [11_500, 7_650], allocations: [6, 5] },
    Takes { in_flight: 32, instructions: [8_480, 5_450], allocations: [6, 5] },
];

struct Takes {
    in_flight: usize,
    /// Of client and server.
    instructions: [u32; 2],
    allocations: [u32; 2],
}

/// In hundredths. Compilers and C libraries differ by a little, and with many in flight the length of batches does.
const TOLERANCE: f64 = 5.0;

/// In blocks per call: what grows once in a while, a table for example.
const SLACK: f64 = 0.05;

/// Counts, prints, and fails if anything takes more than it did.
pub(crate) fn check() -> Result<()> {
    packages::ensure(packages::COUNTING)?;
    let peers = Peers::build(Frameworks::Without)?;
    println!(
        "{:>9}  {:<12} {:>8} {:>8} {:>8} {:>8}",
        "in flight", "per call", "client", "was", "server", "was"
    );
    let mut dearer = Vec::new();
    for takes in TAKES {
        let counts = [(What::Instructions, takes.instructions, 0), (What::Allocations, takes.allocations, 2)];
        for (what, was, digits) in counts {
            let now = count::per_call(&peers, what, "farcall", takes.in_flight)?;
            let was = Ends { client: f64::from(was[0]), server: f64::from(was[1]) };
            let name = what.name();
            println!(
                "{:>9}  {name:<12} {:>8.digits$} {:>8} {:>8.digits$} {:>8}",
                takes.in_flight, now.client, was.client, now.server, was.server
            );
            for (end, now, was) in [("client", now.client, was.client), ("server", now.server, was.server)] {
                if now > allowed(what, was) {
                    dearer.push(format!("{name} of the {end} with {} in flight", takes.in_flight));
                }
            }
        }
    }
    if dearer.is_empty() {
        Ok(())
    } else {
        Err(Failure::failed(format!("more than it was: {}", dearer.join(", "))))
    }
}

fn allowed(what: What, was: f64) -> f64 {
    match what {
        What::Allocations => was + SLACK,
        What::Instructions | What::SystemCalls => was * (1.0 + TOLERANCE / 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_more_on_each_call_is_too_much_and_one_in_a_while_is_not() {
        assert!(2.01 <= allowed(What::Allocations, 2.0) && 3.0 > allowed(What::Allocations, 2.0));
        assert!(
            1_030.0 <= allowed(What::Instructions, 1_000.0) && 1_060.0 > allowed(What::Instructions, 1_000.0)
        );
    }
}
