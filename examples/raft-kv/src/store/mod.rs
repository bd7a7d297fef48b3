//! Log, vote, state machine and snapshots on disk.
//!
//! | file in the node's directory | what it holds | when it is synced |
//! |---|---|---|
//! | `log.redb` | the log, the vote, the node's number, the version of the format of all files | before a call that writes returns |
//! | `state.redb` | keys, sessions, the last applied entry | now and then: the log and the snapshot bring it back |
//! | `snapshot` | all of a state, in a form that is sent to other nodes | before it has this name |
//! | `arriving` | a snapshot of which a part has come | before it has the next name |
//! | `installing` | a snapshot that has come, until the state machine has it | before it has this name |
//! | `built`, `adopted` | the next `snapshot`, while it is written or copied | before it has that name |

mod apply;
mod log;
mod machine;
pub mod snapshot;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use redb::Database;

pub use log::LogStore;
pub use machine::{Reader, StateMachine};
use snapshot::{Snapshots, sync_directory};

use crate::types::NodeId;

/// How much of each database redb keeps in memory, in bytes.
const CACHE: usize = 64 << 20;

/// All that a node has on disk.
pub struct Store {
    pub log: LogStore,
    pub machine: StateMachine,
    pub snapshots: Snapshots,
}

impl Store {
    /// Opens the store in a directory, or creates it for node `id`.
    ///
    /// # Errors
    ///
    /// If the directory can't be used, is used by another process, is damaged, belongs to another node, or was written by a build
    /// whose format this one does not read.
    pub fn open(directory: &Path, id: NodeId) -> Result<Self> {
        let log = log_database(directory).with_context(|| format!("{}", directory.display()))?;
        let log = LogStore::open(log)?;
        // Before all else is opened, which may be of a format that this build would read wrongly.
        log.claim(id).with_context(|| format!("{}", directory.display()))?;
        let snapshots = Snapshots::new(directory);
        let state = database(&directory.join("state.redb"))?;
        let machine = StateMachine::open(state, snapshots.clone(), log.purged()?)?;
        Ok(Self { log, machine, snapshots })
    }
}

/// Opens the log in a directory. A vote must outlast a power failure, so the names of both are on disk when this returns.
fn log_database(directory: &Path) -> Result<Arc<Database>> {
    fs::create_dir_all(directory)?;
    let log = database(&directory.join("log.redb"))?;
    sync_directory(directory)?;
    if let Some(parent) = directory.canonicalize()?.parent() {
        sync_directory(parent)?;
    }
    Ok(log)
}

fn database(path: &Path) -> Result<Arc<Database>> {
    let database = Database::builder().set_cache_size(CACHE).create(path);
    Ok(Arc::new(database.with_context(|| format!("{}", path.display()))?))
}

/// Runs what may wait for the disk on a thread that may wait.
///
/// # Panics
///
/// If `work` does.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime shuts down; this task ends with it.
            Err(_) => std::future::pending().await,
        },
    }
}
