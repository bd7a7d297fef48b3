//! Results as pictures.

mod chart;

use super::plan::{BULK_SIZES, IN_FLIGHT, Part, Place, SIZES};
use super::results::{Metric, Results, spread};
use super::table::bytes;
use chart::{Chart, Series, Tick, Unit};

/// Every plot for which there are measurements, by the name of its file.
pub(super) fn all(results: &Results) -> Vec<(String, String)> {
    let mut plots = Vec::new();
    for part in [Part::Pinned, Part::Unpinned] {
        let name = part.name();
        for in_flight in [1, 32] {
            let place = Place::echo(part, 64, in_flight, 1);
            plots.push((format!("latency-{name}-{in_flight}.svg"), latency(results, &place)));
        }
        plots.push((format!("throughput-{name}.svg"), throughput(results, part)));
        plots.push((format!("bandwidth-{name}.svg"), bandwidth(results, part)));
    }
    plots.push(("latency-rdma-1.svg".to_owned(), latency(results, &Place::echo(Part::Rdma, 64, 1, 1))));
    plots.push(("bandwidth-rdma.svg".to_owned(), bulk(results)));
    let drawn = |(name, chart): (String, Chart)| (!chart.series.is_empty()).then(|| (name, chart.svg()));
    plots.into_iter().filter_map(drawn).collect()
}

/// Results have MB/s.
const BYTES_PER_SECOND: Unit = Unit { name: "B/s", factor: 1e6 };

/// The programs of `benches/peers` report the time within which all but one in `10^(i / 8)` calls ended.
const STEPS_PER_DIGIT: usize = 8;

/// Beyond, a measurement has too few calls.
const DIGITS: usize = 4;

fn latency(results: &Results, place: &Place) -> Chart {
    let mut series = Vec::new();
    for name in results.contestants(place) {
        let point = |i: usize| {
            let at = results.rows(place, name).filter_map(|row| row.distribution_us.get(i).copied());
            Some((i as f64, spread(at)?))
        };
        let points: Vec<_> = (0..=DIGITS * STEPS_PER_DIGIT).map_while(point).collect();
        // perftest does not say.
        if !points.is_empty() {
            series.push(Series { name: name.to_owned(), points });
        }
    }
    let labels = ["0", "90 %", "99 %", "99.9 %", "99.99 %"];
    let x = labels
        .iter()
        .enumerate()
        .map(|(i, label)| Tick { at: (i * STEPS_PER_DIGIT) as f64, label: (*label).to_owned() });
    Chart {
        title: format!("{}: {}", place.part.title(), place.title()),
        x: x.collect(),
        x_title: "part of the calls".to_owned(),
        y_title: "time within which they ended".to_owned(),
        y_unit: Unit { name: "s", factor: 1e-6 },
        series,
    }
}

fn throughput(results: &Results, part: Part) -> Chart {
    let places: Vec<_> = IN_FLIGHT.iter().map(|n| Place::echo(part, 64, *n, 1)).collect();
    Chart {
        title: format!("{}: echo of 64 B", part.title()),
        x: IN_FLIGHT.iter().map(|n| Tick { at: (*n as f64).log2(), label: n.to_string() }).collect(),
        x_title: "calls in flight".to_owned(),
        y_title: "calls per second".to_owned(),
        y_unit: Unit { name: "", factor: 1.0 },
        series: over(results, &places, Metric::CallsPerSecond, |place| place.concurrency),
    }
}

fn bandwidth(results: &Results, part: Part) -> Chart {
    let places: Vec<_> = SIZES.iter().map(|size| Place::echo(part, *size, 32, 1)).collect();
    Chart {
        title: format!("{}: echo, 32 in flight", part.title()),
        x: SIZES.iter().map(|size| Tick { at: (*size as f64).log2(), label: bytes(*size) }).collect(),
        x_title: "payload".to_owned(),
        y_title: "throughput in each direction".to_owned(),
        y_unit: BYTES_PER_SECOND,
        series: over(results, &places, Metric::Bandwidth, |place| place.size),
    }
}

/// Put, get and READ over size, by those that wait for events.
fn bulk(results: &Results) -> Chart {
    let mut series = Vec::new();
    for (method, name) in [("read", "raw-verbs event"), ("put", "farcall event"), ("get", "farcall event")] {
        let places: Vec<_> = BULK_SIZES.iter().map(|size| Place::bulk(method, *size)).collect();
        let lines = over(results, &places, Metric::Bandwidth, |place| place.size).into_iter();
        series.extend(
            lines
                .filter(|line| line.name == name)
                .map(|line| Series { name: format!("{method}, {name}"), ..line }),
        );
    }
    Chart {
        title: format!("{}: 8 in flight", Part::Rdma.title()),
        x: BULK_SIZES.iter().map(|size| Tick { at: (*size as f64).log2(), label: bytes(*size) }).collect(),
        x_title: "payload".to_owned(),
        y_title: "throughput".to_owned(),
        y_unit: BYTES_PER_SECOND,
        series,
    }
}

/// A line for each contestant over the logarithm of something of the places.
fn over(results: &Results, places: &[Place], metric: Metric, x: fn(&Place) -> usize) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for place in places {
        for name in results.contestants(place) {
            let Some(y) = results.figure(place, name, metric) else { continue };
            let point = ((x(place) as f64).log2(), y);
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => series.push(Series { name: name.to_owned(), points: vec![point] }),
            }
        }
    }
    series
}
