//! Faults that a test can cause on a real device. Not part of the public interface.

use crate::endpoint::Machine;

/// Makes every queue pair of this process fail, as if its device had given up on it, and says how many there were.
/// Blocks for milliseconds.
pub fn fail_queue_pairs() -> usize {
    Machine::this().fail_queue_pairs()
}
