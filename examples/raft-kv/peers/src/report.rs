//! The measurements, as tables in Markdown.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::Network;

/// The writes of one measurement.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    /// Writes per second.
    rate: f64,
    p50: Duration,
    p99: Duration,
}

impl Measured {
    pub(crate) fn new(mut times: Vec<Duration>, length: Duration) -> Result<Self> {
        ensure!(!times.is_empty(), "no write was answered in {length:?}");
        times.sort_unstable();
        let rate = times.len() as f64 / length.as_secs_f64();
        Ok(Self { rate, p50: times[times.len() / 2], p99: times[times.len() * 99 / 100] })
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} writes/s, p50 {:.2?}, p99 {:.2?}", self.rate, self.p50, self.p99)
    }
}

/// The measurements of all rounds, in their order, by clients and network.
#[derive(Default)]
pub(crate) struct Report(BTreeMap<u64, BTreeMap<Network, Vec<Measured>>>);

impl Report {
    pub(crate) fn add(&mut self, clients: u64, network: Network, measured: Measured) {
        self.0.entry(clients).or_default().entry(network).or_default().push(measured);
    }

    /// Prints medians, and the ratios of farcall's writes to those of the others within a round: median, least and most.
    pub(crate) fn print(&self) {
        println!(
            "| clients | network | writes/s | p50 | p99 | farcall's writes/s by these | farcall's p99 by this |"
        );
        println!("|---|---|---|---|---|---|---|");
        for (clients, networks) in &self.0 {
            let farcall = &networks[&Network::Farcall];
            for (network, rounds) in networks {
                let mid = |of: fn(&Measured) -> f64| median(rounds.iter().map(of).collect());
                let ratios = |of: fn(&Measured) -> f64| {
                    let ratios: Vec<_> =
                        farcall.iter().zip(rounds).map(|(ours, its)| of(ours) / of(its)).collect();
                    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
                    let most = ratios.iter().copied().fold(0.0, f64::max);
                    format!("{:.2} ({least:.2} to {most:.2})", median(ratios))
                };
                let ms = |of: fn(&Measured) -> f64| format!("{:.2} ms", mid(of) * 1000.0);
                let (rates, tails) = match network {
                    Network::Farcall => ("".to_owned(), "".to_owned()),
                    _ => (ratios(|of| of.rate), ratios(|of| of.p99.as_secs_f64())),
                };
                println!(
                    "| {clients} | {} | {:.0} | {} | {} | {rates} | {tails} |",
                    network.name(),
                    mid(|of| of.rate),
                    ms(|of| of.p50.as_secs_f64()),
                    ms(|of| of.p99.as_secs_f64()),
                );
            }
        }
    }
}

/// Returns the middle one of some numbers.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
