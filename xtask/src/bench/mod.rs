//! How fast calls are, and what they take. `docs/BENCHMARKS.md` says what is measured and how.

pub(crate) mod cost;
mod count;
mod goals;
mod options;
mod peers;
mod perftest;
mod plan;
mod plot;
mod progress;
mod results;
mod rounds;
mod table;
mod vm;

use std::fs;
use std::path::Path;

use crate::failure::{Context, Failure, Result};
use crate::host;
use crate::packages;
use options::Options;
use peers::{Frameworks, Peers};
use plan::Part;
use results::Results;

/// Runs `cargo xtask bench` with these arguments.
pub(crate) fn command(args: impl Iterator<Item = String>) -> Result<u8> {
    let options = options::parse(args)?;
    if let Some(peers) = &options.guest {
        return vm::inside(peers, &options).map(|()| 0);
    }
    let dir = host::target_dir()?.join("bench");
    fs::create_dir_all(&dir).context(dir.display())?;
    let file = dir.join("results.jsonl");
    if options.report {
        return report(&Results::read(&file)?, &dir);
    }
    let mut results = Results::create(&file)?;
    let measured = measure(&options, &mut results);
    // The results so far are worth something.
    let reported = report(&results, &dir);
    measured.and(reported)
}

fn measure(options: &Options, results: &mut Results) -> Result<()> {
    packages::ensure(packages::COUNTING)?;
    // They take most of the time to build.
    let with = [Part::Counts, Part::Pinned, Part::Unpinned].into_iter().any(|part| options.includes(part));
    let peers = Peers::build(if with { Frameworks::With } else { Frameworks::Without })?;
    if options.includes(Part::Counts) {
        count::all(&peers, results)?;
    }
    rounds::run(&peers, &plan::native(options), options, results)?;
    if Part::GUEST.iter().any(|part| options.includes(*part)) {
        vm::run(&peers, options, results)?;
    }
    Ok(())
}

/// Tables to standard output, plots into `dir`.
fn report(results: &Results, dir: &Path) -> Result<u8> {
    print!("{}", table::all(results));
    for (name, plot) in plot::all(results) {
        let path = dir.join(name);
        fs::write(&path, plot).context(path.display())?;
        println!("plot: {}", path.display());
    }
    match results.failures() {
        [] => Ok(0),
        failures => Err(Failure::failed(format!("not measured:\n  {}", failures.join("\n  ")))),
    }
}
