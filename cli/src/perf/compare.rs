//! Two runs beside each other.

use std::fmt::Write;

use super::Results;
use crate::output::{BAD, BOLD, FAINT, GOOD, foreign};

/// Changes below this share are noise on most machines.
const NOISE: f64 = 0.05;

pub(super) fn render(earlier: &Results, now: &Results) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text, earlier, now);
    text
}

fn write(text: &mut String, earlier: &Results, now: &Results) -> std::fmt::Result {
    let width = now.outcomes.iter().map(|outcome| outcome.case.name().chars().count()).max().unwrap_or(0);
    let title = match earlier.date.as_str() {
        "" => "against an earlier run".to_owned(),
        date => format!("against the run of {date}"),
    };
    let columns = format!("{:width$}  {:>7}  {:>7}  {:>7}", "", "calls/s", "p50", "p99");
    writeln!(text, "{BOLD}{}\n  {columns}{BOLD:#}", foreign(&title))?;
    for outcome in &now.outcomes {
        let name = outcome.case.name();
        let Some(old) = earlier.outcomes.iter().find(|old| old.case == outcome.case) else {
            writeln!(text, "  {name:<width$}  {FAINT}was not measured then{FAINT:#}")?;
            continue;
        };
        write!(text, "  {name:<width$}")?;
        write_ratio(text, old.calls_per_second, outcome.calls_per_second, true)?;
        write_ratio(text, old.latency.p50, outcome.latency.p50, false)?;
        write_ratio(text, old.latency.p99, outcome.latency.p99, false)?;
        writeln!(text)?;
    }
    for (name, then, now) in
        [("client", &earlier.client, &now.client), ("server", &earlier.server, &now.server)]
    {
        for (fact, then, now) in now.differences(then) {
            writeln!(text, "  {}", foreign(&format!("{name} {fact}: {then} then, {now} now")))?;
        }
    }
    Ok(())
}

fn write_ratio(text: &mut String, old: f64, new: f64, more_is_better: bool) -> std::fmt::Result {
    if old <= 0.0 || new <= 0.0 {
        return write!(text, "  {:>7}", "-");
    }
    let change = new / old - 1.0;
    let style = match () {
        () if change.abs() < NOISE => FAINT,
        () if (change > 0.0) == more_is_better => GOOD,
        () => BAD,
    };
    write!(text, "  {style}{:>+6.1}%{style:#}", change * 100.0)
}
