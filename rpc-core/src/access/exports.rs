//! The memory that this process exports.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use super::owner::ExportedMemory;
use crate::sync::{Mutex, rank};

/// The exported memory, by number. It belongs to the process, because peers may use it by any connection.
static EXPORTS: LazyLock<Mutex<rank::Leaf, Exports>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Exports {
    last: u64,
    memory: HashMap<u64, (u128, Arc<dyn ExportedMemory>)>,
}

/// Exports memory to peers that know the key. Returns its number.
pub(crate) fn export(key: u128, memory: Arc<dyn ExportedMemory>) -> u64 {
    let mut exports = EXPORTS.lock();
    exports.last += 1;
    let number = exports.last;
    exports.memory.insert(number, (key, memory));
    number
}

/// Ends the export of this number.
pub(crate) fn withdraw(number: u64) {
    let withdrawn = EXPORTS.lock().memory.remove(&number);
    // Freed outside of the lock.
    drop(withdrawn);
}

/// Returns the memory of this number and key.
pub(super) fn find(number: u64, key: u128) -> Option<Arc<dyn ExportedMemory>> {
    let exports = EXPORTS.lock();
    exports.memory.get(&number).filter(|(of, _)| *of == key).map(|(_, memory)| memory.clone())
}
