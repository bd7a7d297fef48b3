//! How far it is, on standard error: a bar that moves on a terminal, now and then a line elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

const WIDTH: usize = 30;

/// How often there is a line where it cannot be overwritten.
const LINE_EVERY: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Progress {
    steps: usize,
    done: usize,
    began: Instant,
    line: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    pub(super) fn new(steps: usize) -> Self {
        Self { steps, done: 0, began: Instant::now(), line: None, is_terminal: stderr().is_terminal() }
    }

    /// The next step begins.
    pub(super) fn step(&mut self, what: &str) {
        let bar = bar(self.done, self.steps, self.began.elapsed());
        self.done += 1;
        // Nothing can be done about a closed standard error.
        if self.is_terminal {
            let _ = write!(stderr(), "\r\x1b[K{bar} {what}");
        } else if self.line.is_none_or(|line| line.elapsed() >= LINE_EVERY) {
            self.line = Some(Instant::now());
            let _ = writeln!(stderr(), "{bar} {what}");
        }
    }

    pub(super) fn end(&self) {
        if self.is_terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

fn bar(done: usize, steps: usize, took: Duration) -> String {
    let filled = WIDTH * done / steps.max(1);
    let left = match done {
        0 => String::new(),
        _ => format!(", {} s left", took.as_secs() * (steps - done) as u64 / done as u64),
    };
    format!("[{}{}] {done}/{steps}{left}", "=".repeat(filled), " ".repeat(WIDTH - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_how_much_is_done_and_how_long_the_rest_may_take() {
        assert_eq!(bar(0, 8, Duration::ZERO), format!("[{}] 0/8", " ".repeat(30)));
        let half = format!("[{}{}] 4/8, 10 s left", "=".repeat(15), " ".repeat(15));
        assert_eq!(bar(4, 8, Duration::from_secs(10)), half);
        assert_eq!(bar(0, 0, Duration::ZERO).len(), 36);
    }
}
