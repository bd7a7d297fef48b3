//! Counting what does not depend on how fast a machine is, nor on what else runs there.
//!
//! A count per call is the difference between a run with many calls and one with few, divided by the difference of the
//! calls. So the costs of starting and ending cancel out.

use std::fs;
use std::path::Path;

use super::peers::{Peers, Run};
use super::plan::{self, COUNTED_IN_FLIGHT, Part, words};
use super::progress::Progress;
use super::results::{Counted, Results};
use crate::failure::{Context, Failure, Result};
use crate::host::TempDir;

/// The quantities that are counted, each by a tool that runs client or server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// In user space.
    Instructions,
    /// Blocks taken from the heap.
    Allocations,
    SystemCalls,
}

/// Per call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ends {
    pub(super) client: f64,
    pub(super) server: f64,
}

/// Enough for buffers and tables to have their size.
const FEW: u64 = 2_000;
const MANY: u64 = 8_000;

/// Everything, of everyone.
pub(super) fn all(peers: &Peers, results: &mut Results) -> Result<()> {
    const WHAT: [What; 3] = [What::Instructions, What::Allocations, What::SystemCalls];
    let mut progress = Progress::new(WHAT.len() * COUNTED_IN_FLIGHT.len() * plan::ALL.len());
    for what in WHAT {
        for concurrency in COUNTED_IN_FLIGHT {
            for contestant in plan::ALL {
                progress.step(&format!("{}, {concurrency} in flight, {contestant}", what.name()));
                let Ends { client, server } = per_call(peers, what, contestant, *concurrency)?;
                let (counted, contestant) = (what.name().to_owned(), (*contestant).to_owned());
                results.add_counted(Counted {
                    counted,
                    contestant,
                    concurrency: *concurrency,
                    client,
                    server,
                })?;
            }
        }
    }
    progress.end();
    Ok(())
}

/// Counts what a call of 64 bytes takes of a contestant.
pub(super) fn per_call(peers: &Peers, what: What, contestant: &str, in_flight: usize) -> Result<Ends> {
    per_call_with(peers, what, contestant, in_flight, &[])
}

/// Counts what a call of 64 bytes takes of a contestant with further options.
pub(super) fn per_call_with(
    peers: &Peers,
    what: What,
    contestant: &str,
    in_flight: usize,
    more: &[String],
) -> Result<Ends> {
    let mut options = Part::Counts.options();
    options.extend(words(&format!("--concurrency {in_flight}")));
    options.extend_from_slice(more);
    let few = count(peers, what, contestant, &options, FEW)?;
    let many = count(peers, what, contestant, &options, MANY)?;
    let per_call = |few: u64, many: u64| (many as f64 - few as f64) / (MANY - FEW) as f64;
    Ok(Ends { client: per_call(few.0, many.0), server: per_call(few.1, many.1) })
}

/// The client's and the server's count of a run with so many calls.
fn count(peers: &Peers, what: What, contestant: &str, options: &[String], calls: u64) -> Result<(u64, u64)> {
    let dir = TempDir::new_in(&std::env::temp_dir())?;
    let logs = ["client", "server"].map(|end| dir.path().join(end));
    let [under_client, under_server] = [&logs[0], &logs[1]].map(|log| what.command(log));
    let client = Run { contestant, under: &under_client, options };
    let server = peers.server(&Run { under: &under_server, ..client })?;
    peers.client(&client, &server, &["--calls".to_owned(), calls.to_string()])?;
    server.end()?;
    Ok((what.read(&logs[0])?, what.read(&logs[1])?))
}

impl What {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Allocations => "allocations",
            Self::SystemCalls => "system calls",
        }
    }

    /// The command that counts and writes the count to `log`.
    fn command(self, log: &Path) -> Vec<String> {
        let log = log.display();
        match self {
            Self::Instructions => vec![
                "valgrind".into(),
                "--tool=callgrind".into(),
                "--callgrind-out-file=/dev/null".into(),
                format!("--log-file={log}"),
            ],
            Self::Allocations => vec![
                "valgrind".into(),
                "--tool=dhat".into(),
                "--dhat-out-file=/dev/null".into(),
                format!("--log-file={log}"),
            ],
            Self::SystemCalls => {
                ["strace", "-f", "-c", "-U", "name,calls", "-o", &log.to_string()].map(str::to_owned).to_vec()
            }
        }
    }

    fn read(self, log: &Path) -> Result<u64> {
        let said = fs::read_to_string(log).context(log.display())?;
        self.parse(&said).ok_or_else(|| Failure::failed(format!("{self:?}: there is no count in\n{said}")))
    }

    fn parse(self, said: &str) -> Option<u64> {
        let number = |text: &str| text.replace(',', "").parse().ok();
        match self {
            // ==1== Collected : 123456
            Self::Instructions => number(said.split_once("Collected : ")?.1.split_whitespace().next()?),
            // ==1== Total:     12,345 bytes in 678 blocks
            Self::Allocations => {
                let total = said.split_once("Total:")?.1;
                number(total.split_once(" bytes in ")?.1.split_whitespace().next()?)
            }
            // total   123
            Self::SystemCalls => {
                number(said.lines().find_map(|line| line.trim_start().strip_prefix("total"))?.trim())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::What;

    #[test]
    fn counts_are_found_in_what_the_tools_say() {
        let callgrind = "==7== Events    : Ir\n==7== Collected : 26789123\n==7== \n";
        assert_eq!(What::Instructions.parse(callgrind), Some(26_789_123));
        let dhat = "==7== Total:     1,052,301 bytes in 4,099 blocks\n==7== At t-gmax: 9 bytes in 1 blocks\n";
        assert_eq!(What::Allocations.parse(dhat), Some(4_099));
        let strace = "syscall       calls\n--------- ---------\nsendto          2000\ntotal           6130\n";
        assert_eq!(What::SystemCalls.parse(strace), Some(6_130));
        for what in [What::Instructions, What::Allocations, What::SystemCalls] {
            assert_eq!(what.parse("==7== \n"), None, "{what:?}");
        }
    }
}
