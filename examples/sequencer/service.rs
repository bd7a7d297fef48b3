//! The server: memory full of numbers, and one method that says where it is.

use std::sync::Arc;

use farcall::region::{Region, RemoteRegion, Rights};

/// How many slots there are. Each has a sequence, a lock and a record, 64 bytes in all.
pub const SLOTS: u64 = 1023;

/// The number that gives every owner of locks an id.
pub const IDS: usize = 0;

/// The number that gives every user a slot.
pub const NEXT_SLOT: usize = 8;

/// The places of a slot's parts in the memory.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The next ticket, changed by `fetch_add`.
    pub sequence: usize,
    /// The lock word, changed by `compare_and_swap`.
    pub lock: usize,
    /// The record that the lock protects. The holder reads and writes it.
    pub record: usize,
}

impl Slot {
    pub fn new(number: u64) -> Self {
        let start = 64 * (1 + number as usize);
        Self { sequence: start, lock: start + 8, record: start + 16 }
    }
}

#[farcall::service(package = "farcall.example.sequencer")]
pub trait Sequencer {
    /// Returns the handle of the memory with all numbers. Every process that has the handle may use them.
    async fn table(&self) -> farcall::Result<RemoteRegion>;
}

/// The memory. Servers of one process can share it: a handle is good by any connection to the process.
#[derive(Clone)]
pub struct Table(Arc<Region>);

impl Table {
    pub fn new() -> Self {
        let len = 64 * (1 + SLOTS as usize);
        Self(Arc::new(Region::zeroed(len, Rights::READ | Rights::WRITE | Rights::ATOMICS)))
    }
}

impl Sequencer for Table {
    async fn table(&self) -> farcall::Result<RemoteRegion> {
        Ok(self.0.remote())
    }
}
