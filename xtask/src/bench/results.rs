//! The measurements: in memory, and line by line in a file as soon as it is there.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::plan::Place;
use crate::failure::{Context, Result};

/// One measurement. The fields are those that the programs of `benches/peers` report; the file has the others, too.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) round: u32,
    pub(super) contestant: String,
    #[serde(flatten)]
    pub(super) place: Place,
    rps: f64,
    mb_per_s: f64,
    load_mb_per_s: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    // A contestant that measures itself by other means has no more fields.
    client_cpu_us_per_call: Option<f64>,
    server_cpu_us_per_call: Option<f64>,
    client_csw_per_call: Option<f64>,
    server_csw_per_call: Option<f64>,
    #[serde(default)]
    pub(super) distribution_us: Vec<f64>,
    #[serde(flatten)]
    rest: serde_json::Map<String, serde_json::Value>,
}

/// The counts of a contestant with so many calls in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Counted {
    pub(super) counted: String,
    pub(super) contestant: String,
    pub(super) concurrency: usize,
    pub(super) client: f64,
    pub(super) server: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Row(Box<Row>),
    Counted(Counted),
    Failure { failure: String },
}

/// A figure of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metric {
    CallsPerSecond,
    Bandwidth,
    /// The bandwidth of the load beside.
    Load,
    P50,
    P99,
    /// The CPU of both ends, per call.
    Cpu,
    Sleeps,
}

impl Row {
    fn get(&self, metric: Metric) -> Option<f64> {
        let both = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        match metric {
            Metric::CallsPerSecond => Some(self.rps),
            Metric::Bandwidth => Some(self.mb_per_s),
            Metric::Load => self.load_mb_per_s.filter(|_| self.place.load > 0),
            Metric::P50 => self.p50_us,
            Metric::P99 => self.p99_us,
            Metric::Cpu => both(self.client_cpu_us_per_call, self.server_cpu_us_per_call),
            Metric::Sleeps => both(self.client_csw_per_call, self.server_csw_per_call),
        }
    }
}

#[derive(Default)]
pub(super) struct Results {
    rows: Vec<Row>,
    counted: Vec<Counted>,
    failures: Vec<String>,
    out: Option<Box<dyn Write>>,
}

impl Results {
    /// Begins anew.
    pub(super) fn create(path: &Path) -> Result<Self> {
        Ok(Self::into(File::create(path).context(path.display())?))
    }

    /// Lines go to `out`, each at once.
    pub(super) fn into(out: impl Write + 'static) -> Self {
        Self { out: Some(Box::new(out)), ..Self::default() }
    }

    /// A line that another process has written.
    pub(super) fn add_line(&mut self, line: &str) -> Result<()> {
        self.write(serde_json::from_str(line).context(line)?)
    }

    pub(super) fn read(path: &Path) -> Result<Self> {
        let mut results = Self::default();
        for line in fs::read_to_string(path).context(path.display())?.lines() {
            results.keep(serde_json::from_str(line).context(path.display())?);
        }
        Ok(results)
    }

    /// A client's report, in which part and round it was made.
    pub(super) fn add(&mut self, report: &str, place: &Place, contestant: &str, round: u32) -> Result<()> {
        let mut fields: serde_json::Map<_, _> = serde_json::from_str(report).context(report)?;
        let ours = serde_json::json!({ "part": place.part, "round": round, "contestant": contestant });
        if let serde_json::Value::Object(ours) = ours {
            fields.extend(ours);
        }
        let row = serde_json::from_value(fields.into()).context(report)?;
        self.write(Line::Row(Box::new(row)))
    }

    pub(super) fn add_counted(&mut self, counted: Counted) -> Result<()> {
        self.write(Line::Counted(counted))
    }

    pub(super) fn add_failure(&mut self, failure: String) -> Result<()> {
        self.write(Line::Failure { failure })
    }

    fn write(&mut self, line: Line) -> Result<()> {
        if let Some(out) = &mut self.out {
            let text = serde_json::to_string(&line).context("a result")?;
            writeln!(out, "{text}").and_then(|()| out.flush()).context("writing results")?;
        }
        self.keep(line);
        Ok(())
    }

    fn keep(&mut self, line: Line) {
        match line {
            Line::Row(row) => self.rows.push(*row),
            Line::Counted(counted) => self.counted.push(counted),
            Line::Failure { failure } => self.failures.push(failure),
        }
    }

    /// Why something was not measured.
    pub(super) fn failures(&self) -> &[String] {
        &self.failures
    }

    pub(super) fn counted(&self) -> &[Counted] {
        &self.counted
    }

    /// Where something was measured, in order.
    pub(super) fn places(&self) -> Vec<&Place> {
        let mut places: Vec<_> = self.rows.iter().map(|row| &row.place).collect();
        places.sort();
        places.dedup();
        places
    }

    /// Returns the contestants that were measured there, in the order of the first round.
    pub(super) fn contestants(&self, place: &Place) -> Vec<&str> {
        let mut names = Vec::new();
        for row in self.rows.iter().filter(|row| row.place == *place) {
            if !names.contains(&row.contestant.as_str()) {
                names.push(&row.contestant);
            }
        }
        names
    }

    pub(super) fn rows<'a>(
        &'a self,
        place: &'a Place,
        contestant: &'a str,
    ) -> impl Iterator<Item = &'a Row> + Clone {
        self.rows.iter().filter(move |row| row.place == *place && row.contestant == contestant)
    }

    /// The median over the rounds.
    pub(super) fn median(&self, place: &Place, contestant: &str, metric: Metric) -> Option<f64> {
        median(self.rows(place, contestant).filter_map(|row| row.get(metric)))
    }

    /// How one figure relates to another of the same round: median, least and most over the rounds.
    pub(super) fn ratio(&self, metric: Metric, of: (&Place, &str), to: (&Place, &str)) -> Option<Spread> {
        let ratios = self.rows(of.0, of.1).filter_map(|row| {
            let base = self.rows(to.0, to.1).find(|base| base.round == row.round)?.get(metric)?;
            Some(row.get(metric)? / base).filter(|ratio| ratio.is_finite())
        });
        spread(ratios)
    }

    /// A figure over the rounds.
    pub(super) fn figure(&self, place: &Place, contestant: &str, metric: Metric) -> Option<Spread> {
        spread(self.rows(place, contestant).filter_map(|row| row.get(metric)))
    }
}

/// A figure over the rounds: its median, least and most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

/// Returns the spread of values; `None` if there are none.
pub(super) fn spread(values: impl Iterator<Item = f64>) -> Option<Spread> {
    let values: Vec<_> = values.collect();
    Some(Spread {
        median: median(values.iter().copied())?,
        least: values.iter().copied().fold(f64::INFINITY, f64::min),
        most: values.iter().copied().fold(0.0, f64::max),
    })
}

/// Returns the median; for an even number of values, the mean of the two in the middle.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len().checked_sub(1)? / 2;
    Some((values[middle] + values[values.len() / 2]) / 2.0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::plan::Part;

    /// A measurement as a client reports it, with so many calls per second.
    pub(crate) fn report(rps: f64) -> String {
        format!(
            r#"{{"contestant":"x","method":"echo","size":64,"concurrency":1,"connections":1,"rps":{rps},
            "mb_per_s":{},"p50_us":{},"p99_us":9,"client_cpu_us_per_call":1,"server_cpu_us_per_call":2,
            "client_csw_per_call":1,"server_csw_per_call":1,"distribution_us":[1,2,3],"pause_ms":0,"load":0,"load_size":67108864,"load_method":"put","stalled":0,"more":7}}"#,
            rps * 64e-6,
            1e6 / rps
        )
    }

    #[test]
    fn medians_are_of_the_middle() {
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([3.0, 1.0, 100.0].into_iter()), Some(3.0));
        assert_eq!(median([4.0, 1.0, 2.0, 100.0].into_iter()), Some(3.0));
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let place = Place::echo(Part::Pinned, 64, 1, 1);
        let mut results = Results::default();
        for (round, base, other) in [(0, 100.0, 90.0), (1, 1000.0, 1100.0), (2, 10.0, 10.0)] {
            results.add(&report(base), &place, "base", round).unwrap();
            results.add(&report(other), &place, "other", round).unwrap();
        }
        // This one has no partner.
        results.add(&report(5.0), &place, "other", 3).unwrap();
        let ratio = results.ratio(Metric::CallsPerSecond, (&place, "other"), (&place, "base")).unwrap();
        assert_eq!(ratio, Spread { median: 1.0, least: 0.9, most: 1.1 });
        assert_eq!(results.ratio(Metric::P50, (&place, "other"), (&place, "nobody")), None);
    }

    #[test]
    fn a_written_value_is_read_again() {
        let place = Place::echo(Part::Pinned, 64, 1, 1);
        let dir = crate::host::TempDir::new_in(&std::env::temp_dir()).unwrap();
        let path = dir.path().join("results");
        let mut results = Results::create(&path).unwrap();
        results.add(&report(5.0), &place, "a", 0).unwrap();
        let counted =
            Counted { counted: "x".into(), contestant: "a".into(), concurrency: 1, client: 1.5, server: 2.0 };
        results.add_counted(counted.clone()).unwrap();
        results.add_failure("b".into()).unwrap();
        let again = Results::read(&path).unwrap();
        assert_eq!((again.places(), again.contestants(&place)), (vec![&place], vec!["a"]));
        assert_eq!(again.median(&place, "a", Metric::Sleeps), Some(2.0));
        assert_eq!((again.counted(), again.failures()), (&[counted][..], &["b".to_owned()][..]));
        assert!(fs::read_to_string(&path).unwrap().contains(r#""more":7"#));
    }
}
