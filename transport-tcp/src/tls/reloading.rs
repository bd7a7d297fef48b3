//! A configuration of rustls that can be replaced, and is read again when its files change.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::time::Instant;

use super::{TlsConfig, TlsError};

/// A configuration that is shared, and that connections take when they begin.
pub(super) struct Reloading<C> {
    /// The files that it is read from, and how.
    files: Option<(TlsConfig, Read<C>)>,
    current: Mutex<Current<C>>,
}

type Read<C> = fn(&TlsConfig) -> Result<C, TlsError>;

struct Current<C> {
    config: Arc<C>,
    /// When the files were looked at.
    looked: Instant,
    /// The time of change and the length of each file at that time.
    stamps: Vec<Option<(SystemTime, u64)>>,
}

impl<C> fmt::Debug for Reloading<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloading").field("files", &self.files()).finish_non_exhaustive()
    }
}

impl<C: Send + Sync + 'static> Reloading<C> {
    /// Returns a configuration that only [`replace`](Self::replace) changes.
    pub(super) fn fixed(config: C) -> Arc<Self> {
        let current = Current { config: Arc::new(config), looked: Instant::now(), stamps: Vec::new() };
        Arc::new(Self { files: None, current: Mutex::new(current) })
    }

    pub(super) fn from_files(files: &TlsConfig, read: Read<C>) -> Result<Arc<Self>, TlsError> {
        // Taken before they are read: a change between the two counts as one that is not read yet.
        let stamps = files.stamps();
        let current = Current { config: Arc::new(read(files)?), looked: Instant::now(), stamps };
        Ok(Arc::new(Self { files: Some((files.clone(), read)), current: Mutex::new(current) }))
    }

    /// Returns the configuration. When it is due, has the files looked at, for those who ask later.
    pub(super) fn config(self: &Arc<Self>) -> Arc<C> {
        let mut current = self.current();
        let every = self.files().and_then(TlsConfig::reload);
        if every.is_some_and(|every| current.looked.elapsed() >= every) {
            current.looked = Instant::now();
            let this = self.clone();
            tokio::task::spawn_blocking(move || this.reload_if_changed());
        }
        current.config.clone()
    }

    fn reload_if_changed(&self) {
        let Some((files, _)) = &self.files else { return };
        if files.stamps() == self.current().stamps {
            return;
        }
        match self.reload() {
            Ok(()) => {
                tracing::info!(cert = ?files.cert, ca = ?files.ca, "TLS: files have changed, and were read again");
            }
            Err(error) => {
                tracing::warn!(%error, "TLS: files have changed and can't be used; those of before still count");
            }
        }
    }

    /// Reads the files, if there are any.
    pub(super) fn reload(&self) -> Result<(), TlsError> {
        let Some((files, read)) = &self.files else { return Ok(()) };
        let stamps = files.stamps();
        let config = Arc::new(read(files)?);
        let mut current = self.current();
        (current.config, current.stamps) = (config, stamps);
        Ok(())
    }

    pub(super) fn replace(&self, config: C) {
        self.current().config = Arc::new(config);
    }
}

impl<C> Reloading<C> {
    /// Returns the files that it is read from.
    pub(super) fn files(&self) -> Option<&TlsConfig> {
        self.files.as_ref().map(|(files, _)| files)
    }

    fn current(&self) -> MutexGuard<'_, Current<C>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
