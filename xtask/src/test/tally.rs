//! Counting tests by what the test programs print.

use std::time::Duration;

/// Sums of the lines `test result: ok. 3 passed; 0 failed; ...` that were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) programs: usize,
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) ignored: usize,
}

impl Tally {
    /// Takes a line of output into account.
    pub(super) fn line(&mut self, line: &[u8]) {
        let Some(result) = str::from_utf8(line).ok().and_then(|line| line.strip_prefix("test result: "))
        else {
            return;
        };
        let count = |what: &str| {
            let mut words = result.split([' ', ';', '.']).filter(|word| !word.is_empty());
            let mut before = words.clone();
            words.position(|word| word == what).and_then(|at| before.nth(at.checked_sub(1)?)?.parse().ok())
        };
        self.programs += 1;
        self.passed += count("passed").unwrap_or(0);
        self.failed += count("failed").unwrap_or(0);
        self.ignored += count("ignored").unwrap_or(0);
    }

    pub(super) fn add(&mut self, other: Self) {
        self.programs += other.programs;
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// The line that ends the whole run.
    pub(super) fn result(&self, ok: bool, took: Duration) -> String {
        let Self { passed, failed, ignored, .. } = self;
        let verdict = if ok { "ok" } else { "FAILED" };
        let took = took.as_secs();
        format!(
            "test result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored; finished in {took}s"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_summed_and_nothing_else_is() {
        let mut tally = Tally::default();
        for line in [
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.00s\n",
            "test result: FAILED. 2 passed; 5 failed; 0 ignored; 0 measured; 0 filtered out; finished in 9.10s\n",
            "running 3 tests\n",
            "they said: test result: ok. 1 passed; 0 failed\n",
        ] {
            tally.line(line.as_bytes());
        }
        assert_eq!(tally, Tally { programs: 2, passed: 14, failed: 5, ignored: 1 });
    }

    #[test]
    fn the_last_line_is_one_that_can_be_counted_again() {
        let tally = Tally { programs: 9, passed: 300, failed: 0, ignored: 2 };
        let mut again = Tally::default();
        again.line(tally.result(true, Duration::from_secs(61)).as_bytes());
        assert_eq!(again, Tally { programs: 1, ..tally });
    }
}
