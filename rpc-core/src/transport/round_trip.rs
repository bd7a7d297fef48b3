//! The time to a peer and back.

use std::time::Duration;

use tokio::time::Instant;

/// The measurement of how long a PING takes to the peer, and its PONG back.
#[derive(Debug, Default)]
pub struct RoundTrip {
    /// The time when the last PING left.
    left: Option<Instant>,
    /// Whether its PONG has not come.
    is_awaited: bool,
    took: Option<Duration>,
}

impl RoundTrip {
    /// A measurement is repeated after so long.
    const FRESH: Duration = Duration::from_secs(1);

    /// Whether to measure again: no PONG is awaited, and the last measurement is old.
    pub fn is_due(&self) -> bool {
        !self.is_awaited && self.left.is_none_or(|left| left.elapsed() >= Self::FRESH)
    }

    /// Notes that a PING leaves. Its PONG alone counts from now on.
    pub fn begin(&mut self) {
        (self.left, self.is_awaited) = (Some(Instant::now()), true);
    }

    /// Notes that the awaited PONG has come.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.is_awaited) {
            self.took = self.left.map(|left| left.elapsed());
        }
    }

    /// Returns how long the last one took. A PONG that is late counts as soon as it takes longer than the one before. `None`: nothing was
    /// measured yet.
    pub fn took(&self) -> Option<Duration> {
        let late = self.left.filter(|_| self.is_awaited).map(|left| left.elapsed());
        self.took.map(|took| late.map_or(took, |late| took.max(late)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_last_one_counts_until_the_next_takes_longer() {
        let mut way = RoundTrip::default();
        assert!(way.is_due() && way.took().is_none());
        way.begin();
        tokio::time::advance(Duration::from_micros(30)).await;
        assert!(!way.is_due() && way.took().is_none());
        way.end();
        assert_eq!(way.took(), Some(Duration::from_micros(30)));

        assert!(!way.is_due(), "it is fresh");
        tokio::time::advance(RoundTrip::FRESH).await;
        assert!(way.is_due());
        way.begin();
        assert_eq!(way.took(), Some(Duration::from_micros(30)));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(way.took(), Some(Duration::from_secs(5)));
        assert!(!way.is_due(), "its PONG may still come");
        way.end();
        assert_eq!(way.took(), Some(Duration::from_secs(5)));
        way.end();
        assert_eq!(way.took(), Some(Duration::from_secs(5)));
    }
}
