//! Faults that a test can cause on a real device, and what they leave. Not part of the public interface.

use crate::endpoint::DeviceRegistry;
use crate::resources;

/// Makes every queue pair of this process fail, as if its device had given up on it, and says how many there were.
/// Blocks for milliseconds.
pub fn fail_queue_pairs() -> usize {
    DeviceRegistry::this().fail_queue_pairs()
}

/// How many bytes of the registered memory for long messages are used by messages, or by views of them.
pub fn memory_in_use() -> usize {
    resources::in_use_anywhere()
}
