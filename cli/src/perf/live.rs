//! The view of a case while it runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall::Channel;
use farcall::rdma::RdmaConfig;
use indicatif::{ProgressBar, ProgressStyle};

use super::case::{Case, Link, Outcome};
use super::load::{self, Length, Progress, SoFar};
use super::verbs;

/// Runs a case. Shows its progress if standard error is a terminal.
pub(super) async fn watched(
    case: &Case,
    channels: &[Channel],
    config: &RdmaConfig,
    seconds: f64,
) -> farcall::Result<Outcome> {
    let measured = Duration::from_secs_f64(seconds);
    let length = Length { warm_up: (measured / 5).min(Duration::from_secs(1)), measured };
    let progress = Arc::new(Progress::default());
    // Hidden where standard error is no terminal.
    let bar = ProgressBar::new(1000).with_style(
        ProgressStyle::with_template("{bar:24} {msg}").unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let whole = length.warm_up + length.measured;
    let begin = Instant::now();
    let mut run = std::pin::pin!(async {
        match case.by {
            Link::Verbs => verbs::run(case, &channels[0], config, length, &progress).await,
            _ => load::run(case, channels, length, &progress).await,
        }
    });
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let outcome = loop {
        tokio::select! {
            outcome = &mut run => break outcome,
            _ = tick.tick(), if !bar.is_hidden() => {
                let gone = begin.elapsed();
                bar.set_position((gone.as_secs_f64() / whole.as_secs_f64() * 1000.0) as u64);
                let counted = gone.saturating_sub(length.warm_up);
                bar.set_message(line(&case.name(), &progress.so_far(), counted));
            }
        }
    };
    bar.finish_and_clear();
    outcome
}

/// Returns the line beside the bar, after calls have been counted for this long.
fn line(case: &str, so_far: &SoFar, counted: Duration) -> String {
    if so_far.calls == 0 {
        return format!("{case}: no call counted yet");
    }
    let rate = so_far.calls as f64 / counted.as_secs_f64().max(0.001);
    format!("{case}: {rate:.0} calls/s, p50 {:.1} us, p99 {:.1} us", so_far.p50, so_far.p99)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::load::Run;

    #[test]
    fn the_line_has_the_rate_and_the_latencies_so_far() {
        let so_far = SoFar { calls: 5000, p50: 10.25, p99: 1234.56 };
        assert_eq!(
            line("tcp echo 64 B x1", &so_far, Duration::from_millis(500)),
            "tcp echo 64 B x1: 10000 calls/s, p50 10.2 us, p99 1234.6 us"
        );
        let nothing = SoFar { calls: 0, p50: 0.0, p99: 0.0 };
        assert_eq!(
            line("rdma put 64 B x1", &nothing, Duration::ZERO),
            "rdma put 64 B x1: no call counted yet"
        );
    }

    #[test]
    fn calls_are_seen_while_the_case_runs() {
        let progress = Arc::new(Progress::default());
        assert_eq!(progress.so_far().calls, 0);
        let length = Length { warm_up: Duration::ZERO, measured: Duration::from_secs(3600) };
        let run = Run::begin(length, None, &progress);
        let due = Instant::now();
        // A hundred calls, of which two took a hundred times as long.
        let took = |number: u64| Duration::from_micros(if number < 98 { 10 } else { 1000 });
        run.answered((0..100).map(|number| (due, due + took(number))));
        let SoFar { calls, p50, p99 } = progress.so_far();
        assert_eq!(calls, 100);
        assert!((9.9..10.1).contains(&p50) && (990.0..1010.0).contains(&p99), "{p50} {p99}");
    }
}
