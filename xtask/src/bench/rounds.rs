//! Interleaved rounds: in each, all contestants are measured in every place, one right after the other, so that what else
//! the machine does meets all of them; and the first of one round is the last of the next.

use super::options::Options;
use super::peers::{Peers, Run};
use super::perftest;
use super::plan::{Group, Place, words};
use super::progress::Progress;
use super::results::Results;
use crate::failure::Result;
use crate::host;

pub(super) fn run(peers: &Peers, groups: &[Group], options: &Options, results: &mut Results) -> Result<()> {
    let per_round: usize = groups.iter().map(|group| group.contestants.len()).sum();
    let mut progress = Progress::new(per_round * options.rounds as usize);
    for round in 0..options.rounds {
        for Group { place, contestants } in groups {
            let first = round as usize % contestants.len();
            for contestant in contestants[first..].iter().chain(&contestants[..first]) {
                progress.step(&format!("round {}: {}, {contestant}", round + 1, place.title()));
                match measure(peers, place, contestant, options.seconds) {
                    Ok(report) => results.add(&report, place, contestant, round)?,
                    // The others may still be measured, unless it was the user who ended it.
                    Err(failure) => {
                        host::check_signals()?;
                        results.add_failure(format!("{}, {contestant}: {failure}", place.title()))?;
                    }
                }
            }
        }
    }
    progress.end();
    Ok(())
}

/// One measurement, with processes of its own.
fn measure(peers: &Peers, place: &Place, contestant: &str, seconds: f64) -> Result<String> {
    let (name, mode) = contestant.split_once(' ').unwrap_or((contestant, ""));
    if name == "perftest" {
        return perftest::measure(place, mode, seconds);
    }
    let under = place.part.under();
    let mut options = [place.part.options(), place.options()].concat();
    match mode {
        "" => {}
        "tls" => options.extend(peers.certificates()?),
        mode => options.extend(place.mode(mode)),
    }
    let run = Run { contestant: name, under: &under, options: &options };
    let server = peers.server(&run)?;
    let seconds = place.seconds(seconds);
    let asked = format!("--seconds {seconds} --warmup {} --server-pid {}", seconds / 3.0, server.pid());
    let report = peers.client(&run, &server, &words(&asked))?;
    server.end()?;
    Ok(report)
}
