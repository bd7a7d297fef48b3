//! A configuration of rustls that can be replaced, and is read again when its files change.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, timeout};

use super::{TlsConfig, TlsError};

/// How long a connection waits for files that may have changed. Longer than any disk takes; a network file system that hangs must
/// not keep a server from accepting.
const PATIENCE: Duration = Duration::from_secs(1);

/// A configuration that is shared, and that connections take when they begin.
pub(super) struct Reloading<C> {
    /// The files that it is read from, and how.
    files: Option<(TlsConfig, Read<C>)>,
    current: Mutex<Current<C>>,
    /// Held while files are read, so that what was read first can't replace what was read last.
    reading: Mutex<()>,
    /// Held while connections wait for the files, so that those which begin meanwhile wait, too.
    waiting: tokio::sync::Mutex<()>,
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
        Arc::new(Self::new(None, config, Vec::new()))
    }

    fn new(files: Option<(TlsConfig, Read<C>)>, config: C, stamps: Vec<Option<(SystemTime, u64)>>) -> Self {
        let current = Current { config: Arc::new(config), looked: Instant::now(), stamps };
        Self { files, current: Mutex::new(current), reading: Mutex::default(), waiting: Default::default() }
    }

    pub(super) fn from_files(files: &TlsConfig, read: Read<C>) -> Result<Arc<Self>, TlsError> {
        // Taken before they are read: a change between the two counts as one that is not read yet.
        let stamps = files.stamps();
        let config = read(files)?;
        Ok(Arc::new(Self::new(Some((files.clone(), read)), config, stamps)))
    }

    /// Returns the configuration that counts now.
    pub(super) fn config(&self) -> Arc<C> {
        self.current().config.clone()
    }

    /// Has files that have changed read, when it is time to look at them, and waits for that, but not for longer than
    /// [`PATIENCE`]. Files that take longer count for connections that begin when they have been read. Cancel safe.
    pub(super) async fn refresh(self: &Arc<Self>) {
        if !self.is_due() {
            return;
        }
        let _waiting = self.waiting.lock().await;
        // Another connection may have waited for it meanwhile.
        if !self.is_due() {
            return;
        }
        let began = Instant::now();
        let this = self.clone();
        let look = tokio::task::spawn_blocking(move || this.reload_if_changed());
        if timeout(PATIENCE, look).await.is_err() {
            tracing::warn!(
                "TLS: the files could not be looked at within {PATIENCE:?}; those of before still count"
            );
        }
        self.current().looked = began;
    }

    fn is_due(&self) -> bool {
        let every = self.files().and_then(TlsConfig::reload);
        every.is_some_and(|every| self.current().looked.elapsed() >= every)
    }

    fn reload_if_changed(&self) {
        let _reading = match self.reading.try_lock() {
            Ok(reading) => reading,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            // A thread reads them now, or hangs there. More threads must not pile up behind it.
            Err(TryLockError::WouldBlock) => return,
        };
        let Some((files, _)) = &self.files else { return };
        if files.stamps() == self.current().stamps {
            return;
        }
        match self.read() {
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
        let _reading = lock(&self.reading);
        self.read()
    }

    /// Only for the holder of `reading`.
    fn read(&self) -> Result<(), TlsError> {
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
        lock(&self.current)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
