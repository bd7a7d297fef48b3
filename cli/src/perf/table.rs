//! Results for a terminal: a table, and bars that compare.

use std::fmt::Write;

use super::Results;
use super::case::{Outcome, bytes};
use crate::output::{BAD, BOLD, FAINT, foreign};

/// Characters of the longest bar.
const BAR: usize = 28;

pub(super) fn render(results: &Results) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text, results);
    text
}

fn write(text: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(
        text,
        "{FAINT}client  {}\nserver  {}{FAINT:#}\n",
        results.client.line(),
        foreign(&results.server.line())
    )?;
    if !results.outcomes.is_empty() {
        write_table(text, results)?;
        write_bars(text, results)?;
    }
    for missing in &results.missing {
        writeln!(text, "{BAD}not measured{BAD:#}  {}", foreign(missing))?;
    }
    for outcome in results.outcomes.iter().filter(|outcome| outcome.not_begun > 0) {
        let name = outcome.case.name();
        writeln!(
            text,
            "{BAD}{} calls not begun{BAD:#}  {name}: the rate is too high; more callers (--in-flight) may help",
            outcome.not_begun
        )?;
    }
    for outcome in results.outcomes.iter().filter(|outcome| outcome.errors > 0) {
        let why = foreign(outcome.error.as_deref().unwrap_or_default());
        writeln!(text, "{BAD}{} calls failed{BAD:#}  {}: {why}", outcome.errors, outcome.case.name())?;
    }
    Ok(())
}

fn write_table(text: &mut String, results: &Results) -> std::fmt::Result {
    // Columns that would say the same in each line are left out.
    let connections = results.outcomes.iter().any(|outcome| outcome.case.connections != 1);
    let rates = results.outcomes.iter().any(|outcome| outcome.case.rate.is_some());
    write!(text, "{BOLD}{:<5} {:<11} {:>8} {:>6}", "link", "pattern", "size", "flight")?;
    if connections {
        write!(text, " {:>5}", "conns")?;
    }
    if rates {
        write!(text, " {:>9}", "rate")?;
    }
    for name in ["calls/s", "MB/s", "p50 us", "p99 us", "p99.9 us", "max us"] {
        write!(text, " {name:>9}")?;
    }
    writeln!(text, " {:>7} {:>7}{BOLD:#}", "cpu us", "srv us")?;
    for Outcome { case, latency, calls_per_second, megabytes_per_second, client_cpu, server_cpu, .. } in
        &results.outcomes
    {
        write!(text, "{:<5} {:<11} {:>8} {:>6}", case.by, case.pattern, bytes(case.size), case.in_flight)?;
        if connections {
            write!(text, " {:>5}", case.connections)?;
        }
        if rates {
            write!(text, " {:>9}", case.rate.map_or_else(|| "most".to_owned(), |rate| rate.to_string()))?;
        }
        write!(text, " {calls_per_second:>9.0}")?;
        for number in [*megabytes_per_second, latency.p50, latency.p99, latency.p999, latency.max] {
            write!(text, " {number:>9.1}")?;
        }
        let cpu =
            |micros: &Option<f64>| micros.map_or_else(|| "-".to_owned(), |micros| format!("{micros:.1}"));
        writeln!(text, " {:>7} {:>7}", cpu(client_cpu), cpu(server_cpu))?;
    }
    writeln!(text)
}

/// Writes a bar for each median, the longest for the slowest.
fn write_bars(text: &mut String, results: &Results) -> std::fmt::Result {
    let longest = results.outcomes.iter().map(|outcome| outcome.latency.p50).fold(0.0, f64::max);
    let width = results.outcomes.iter().map(|outcome| outcome.case.name().chars().count()).max().unwrap_or(0);
    writeln!(text, "{BOLD}median latency{BOLD:#}")?;
    for Outcome { case, latency, .. } in &results.outcomes {
        let length = (latency.p50 / longest * BAR as f64).round().max(1.0) as usize;
        writeln!(
            text,
            "  {:<width$} {:<BAR$} {:.1} us",
            case.name(),
            "█".repeat(length.min(BAR)),
            latency.p50
        )?;
    }
    writeln!(text)
}
