//! A replicated key-value store: [openraft](https://docs.rs/openraft) agrees on the order of changes, [redb](https://docs.rs/redb)
//! keeps them on disk, and farcall carries them, over TCP or RDMA.
//!
//! | module | what it holds |
//! |---|---|
//! | [`types`] | commands, answers, and openraft's types with their parameters |
//! | [`store`] | log, vote, state machine and snapshots on disk |
//! | [`network`] | calls between nodes |
//! | [`service`] | calls of clients and operators |
//! | [`node`] | one node: all of these, from start to graceful stop |
//! | [`client`] | the client, which follows the leader |
//! | `metrics` | metrics for Prometheus, with the feature of this name |

pub mod client;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod network;
pub mod node;
pub mod service;
pub mod store;
pub mod types;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A task that panicked while it held the lock left a whole value behind.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
