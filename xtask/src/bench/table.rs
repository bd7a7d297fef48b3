//! Results as Markdown, to be read as it is and to be pasted.

use std::fmt::Write as _;

use super::goals::{self, Goal, Limit};
use super::plan::Place;
use super::results::{Metric, Results};

/// All that there are, the goals first.
pub(super) fn all(results: &Results) -> String {
    let mut text = String::new();
    let goals = goals::all(results);
    if !goals.is_empty() {
        section(&mut text, "Goals", &goals_table(&goals));
    }
    if !results.counted().is_empty() {
        section(&mut text, "Counts per call", &counts(results));
    }
    let places = results.places();
    for same_part in places.chunk_by(|a, b| a.part == b.part) {
        let part = same_part[0].part;
        let mut tables = format!("{}\n", part.compared());
        for same in same_part.chunk_by(|a, b| a.size == b.size) {
            let size = bytes(same[0].size);
            // Writing to a String does not fail.
            let _ = write!(tables, "\n{size}\n\n{}", measured(results, same));
        }
        section(&mut text, part.title(), &tables);
    }
    text
}

fn section(text: &mut String, title: &str, table: &str) {
    // Writing to a String does not fail.
    let _ = write!(text, "\n### {title}\n\n{table}");
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    format!("| {} |\n", cells.into_iter().collect::<Vec<_>>().join(" | "))
}

/// Names to the left, numbers to the right.
fn head(names: &[&str], numbers: &[&str]) -> String {
    let all = names.iter().chain(numbers).map(|cell| (*cell).to_owned());
    let lines = names.iter().map(|_| "---").chain(numbers.iter().map(|_| "---:")).map(str::to_owned);
    row(all) + &row(lines)
}

fn goals_table(goals: &[Goal]) -> String {
    let mut table = head(&["goal", "", "met"], &["measured", "least", "most"]);
    for goal in goals {
        let limit = match goal.limit {
            Limit::AtMost(limit) => format!("at most {limit}"),
            Limit::AtLeast(limit) => format!("at least {limit}"),
        };
        let met = if goal.is_met() { "yes" } else { "**no**" };
        let ends = goal.range.map_or([String::new(), String::new()], |(a, b)| [a, b].map(number));
        let names = [goal.what.clone(), limit, met.to_owned(), number(goal.measured)];
        table += &row(names.into_iter().chain(ends));
    }
    table
}

fn counts(results: &Results) -> String {
    let mut table = head(&["count", "in flight", ""], &["client", "server", "both"]);
    for c in results.counted() {
        let names = [c.counted.clone(), c.concurrency.to_string(), c.contestant.clone()];
        table += &row(names.into_iter().chain([c.client, c.server, c.client + c.server].map(number)));
    }
    table
}

const COLUMNS: &[Metric] = &[
    Metric::CallsPerSecond,
    Metric::Bandwidth,
    Metric::Load,
    Metric::P50,
    Metric::P99,
    Metric::Cpu,
    Metric::Sleeps,
];

fn measured(results: &Results, places: &[&Place]) -> String {
    let titles = COLUMNS.iter().map(|metric| metric.title()).chain(["ratio of calls/s", "of p50", "of CPU"]);
    let mut table = head(&["calls", ""], &titles.collect::<Vec<_>>());
    for place in places {
        for contestant in results.contestants(place) {
            let of = (*place, contestant);
            let medians = COLUMNS.iter().map(|metric| results.median(place, contestant, *metric));
            let (place_of_base, base) = place.base(contestant);
            let ratios = [Metric::CallsPerSecond, Metric::P50, Metric::Cpu]
                .map(|metric| results.ratio(metric, of, (&place_of_base, &base)).map(|ratio| ratio.median));
            let numbers = medians.chain(ratios).map(|n| n.map_or_else(|| "-".to_owned(), number));
            table += &row([place.calls(), contestant.to_owned()].into_iter().chain(numbers));
        }
    }
    table
}

impl Metric {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::CallsPerSecond => "calls/s",
            Self::Bandwidth => "MB/s",
            Self::Load => "MB/s beside",
            Self::P50 => "p50 us",
            Self::P99 => "p99 us",
            Self::Cpu => "CPU us per call",
            Self::Sleeps => "sleeps per call",
        }
    }
}

impl Place {
    pub(super) fn title(&self) -> String {
        format!("{}, {}", bytes(self.size), self.calls())
    }

    /// Returns the method and how many calls are made at a time.
    fn calls(&self) -> String {
        let Self {
            method, concurrency, connections, pause_ms, load, load_size, load_method, stalled, ..
        } = self;
        let how = match (connections, pause_ms, load) {
            (1, 0, 0) if *stalled > 0 => " beside a stream that nobody reads".to_owned(),
            (1, 0, 0) => String::new(),
            (1, 0, load) => format!(" beside {load} {load_method} of {}", bytes(*load_size)),
            (1, pause, _) => format!(", {pause} ms after the last"),
            (many, ..) => format!(" over {many} connections"),
        };
        format!("{method}, {concurrency} in flight{how}")
    }
}

pub(super) fn bytes(count: usize) -> String {
    match count {
        _ if count >= 1 << 20 => format!("{} MiB", count >> 20),
        _ if count >= 1 << 10 => format!("{} KiB", count >> 10),
        _ => format!("{count} B"),
    }
}

/// To three digits or so, thousands apart.
fn number(value: f64) -> String {
    let digits = match value {
        _ if value >= 99.5 => 0,
        _ if value >= 9.95 => 1,
        _ => 2,
    };
    let plain = format!("{value:.digits$}");
    if digits > 0 {
        return plain;
    }
    let groups: Vec<_> = plain.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::{BASE, Part};
    use crate::bench::results::tests::report;

    #[test]
    fn numbers_have_as_many_digits_as_they_deserve() {
        let shown = [0.0, 1.234, 12.34, 123.4, 1_234.5, 1_234_567.0].map(number);
        assert_eq!(shown, ["0.00", "1.23", "12.3", "123", "1,234", "1,234,567"]);
        assert_eq!([64, 4096, 1 << 20].map(bytes), ["64 B", "4 KiB", "1 MiB"]);
    }

    #[test]
    fn every_contestant_has_a_row_with_its_ratio() {
        let place = Place::echo(Part::Pinned, 64, 1, 1);
        let mut results = Results::default();
        results.add(&report(1000.0), &place, BASE, 0).unwrap();
        results.add(&report(500.0), &place, "farcall", 0).unwrap();
        let text = all(&results);
        assert!(
            text.contains("| echo, 1 in flight | farcall | 500 | 0.03 | - | 2,000 | 9.00 | 3.00 | 2.00 | 0.50 | 2.00 | 1.00 |"),
            "{text}"
        );
        assert!(
            text.contains("p50 us to raw-tokio | at most 1.05 | **no** | 2.00 | 2.00 | 2.00 |"),
            "{text}"
        );
    }
}
