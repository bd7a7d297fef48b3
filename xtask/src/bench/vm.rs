//! The measurements that need an RDMA device: this program again, in a VM that has one.

use std::path::Path;
use std::time::Duration;

use super::options::Options;
use super::peers::Peers;
use super::plan::Part;
use super::results::Results;
use super::{plan, rounds};
use crate::failure::{Context, Failure, Result};
use crate::host;
use crate::packages;
use crate::vm::{self, Stream, Vm};

/// For a round on an emulated processor that has to share its host.
const PATIENCE: Duration = Duration::from_secs(900);

/// From outside: boots, and takes the results that are printed inside.
pub(super) fn run(peers: &Peers, options: &Options, results: &mut Results) -> Result<()> {
    packages::ensure(packages::PERFTEST)?;
    let xtask = std::env::current_exe().context("finding this program")?;
    // Little is done in a second there.
    let (rounds, seconds) = (options.rounds, 2.0 * options.seconds);
    let [xtask, peers] = [&xtask, peers.program()].map(|path| host::quote(&path.display().to_string()));
    let parts = Part::GUEST.iter().filter(|part| options.includes(**part));
    let only: String = parts.map(|part| format!(" --only {}", part.name())).collect();
    let command = format!("{xtask} bench --guest {peers} --rounds {rounds} --seconds {seconds}{only}");
    let vm = Vm { timeout: PATIENCE * rounds, ..Vm::default() };
    let mut taken = Ok(());
    let status = vm.run(&command, |line| {
        if line.stream == Stream::Err {
            return vm::print(line);
        }
        let text = String::from_utf8_lossy(line.text);
        if taken.is_ok() {
            taken = results.add_line(text.trim_end());
        }
        Ok(())
    })?;
    taken?;
    if status == 0 { Ok(()) } else { Err(Failure::failed(format!("in the VM: exit status {status}"))) }
}

/// Inside: prints results.
pub(super) fn inside(peers: &Path, options: &Options) -> Result<()> {
    let mut results = Results::into(std::io::stdout());
    rounds::run(&Peers::built(peers), &plan::guest(options), options, &mut results)
}
