//! The shortest time in which a method has been answered lately: a call that has less time left can't be done in time.

use std::time::Duration;

use tokio::time::Instant;

/// The length of a window. An answer counts for one to two of these.
const WINDOW: Duration = Duration::from_secs(10);

/// How many answers it takes to know the shortest time.
const ENOUGH: u32 = 20;

/// The shortest time of the latest answers of a method.
#[derive(Debug)]
pub(super) struct Shortest {
    began: Instant,
    this: Window,
    last: Window,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    answers: u32,
    shortest: Duration,
}

const EMPTY: Window = Window { answers: 0, shortest: Duration::MAX };

impl Shortest {
    pub(super) fn new(now: Instant) -> Self {
        Self { began: now, this: EMPTY, last: EMPTY }
    }

    pub(super) fn note(&mut self, took: Duration, now: Instant) {
        self.turn(now);
        self.this.answers = self.this.answers.saturating_add(1);
        self.this.shortest = self.this.shortest.min(took);
    }

    /// Returns the shortest time. `None`: there were too few answers lately.
    pub(super) fn time(&mut self, now: Instant) -> Option<Duration> {
        self.turn(now);
        let answers = self.this.answers.saturating_add(self.last.answers);
        (answers >= ENOUGH).then(|| self.this.shortest.min(self.last.shortest))
    }

    /// Begins a window when the last is over.
    fn turn(&mut self, now: Instant) {
        let windows = (now - self.began).as_secs() / WINDOW.as_secs();
        if windows == 0 {
            return;
        }
        self.last = if windows == 1 { self.this } else { EMPTY };
        (self.this, self.began) = (EMPTY, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn few_answers_say_nothing() {
        let now = Instant::now();
        let mut shortest = Shortest::new(now);
        for _ in 1..ENOUGH {
            shortest.note(ms(5), now);
        }
        assert_eq!(shortest.time(now), None);
        shortest.note(ms(7), now);
        assert_eq!(shortest.time(now), Some(ms(5)));
    }

    #[test]
    fn an_answer_counts_for_one_to_two_windows() {
        let now = Instant::now();
        let mut shortest = Shortest::new(now);
        shortest.note(ms(1), now);
        (0..ENOUGH).for_each(|_| shortest.note(ms(5), now));
        (0..ENOUGH).for_each(|_| shortest.note(ms(9), now + WINDOW));
        assert_eq!(shortest.time(now + WINDOW), Some(ms(1)));
        assert_eq!(shortest.time(now + 2 * WINDOW), Some(ms(9)));
        assert_eq!(shortest.time(now + 4 * WINDOW), None);
    }
}
