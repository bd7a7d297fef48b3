//! The state that the clones of a context share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::signal::Signal;
use crate::compress::{Choice, Compression};
use crate::extensions::Extensions;
use crate::metadata::{AnswerMetadata, Metadata};

/// The state that the clones of a context share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The caller's metadata.
    pub(super) metadata: Metadata,
    /// The reply metadata. `None` once the answer has been made.
    pub(super) answer: Mutex<Option<AnswerMetadata>>,
    /// Values that middleware has added.
    pub(super) extensions: Extensions,
    /// How the request was compressed.
    pub(super) compression: Compression,
    /// How the answer is to be compressed.
    pub(super) choice: Choice,
    /// Given if the call ends before its handler is done.
    pub(super) ended: Signal,
}

impl Shared {
    /// Returns the state of a call with these metadata and this compression of its arguments.
    pub(crate) fn new(metadata: Metadata, compression: Compression) -> Arc<Self> {
        let answer = Mutex::new(Some(AnswerMetadata::default()));
        Arc::new(Self {
            metadata,
            answer,
            extensions: Extensions::default(),
            compression,
            choice: Choice::new(None),
            ended: Signal::default(),
        })
    }

    pub(super) fn answer(&self) -> MutexGuard<'_, Option<AnswerMetadata>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    pub(super) fn answered(&self) -> Option<Box<SetForAnswer>> {
        let metadata = self.answer().take().unwrap_or_default();
        let compression = self.choice.get();
        let is_any = !metadata.is_empty() || compression.is_some();
        is_any.then(|| Box::new(SetForAnswer { metadata, compression }))
    }
}

/// Metadata and compression that a handler has set in its context for its answer.
pub(crate) struct SetForAnswer {
    pub(crate) metadata: AnswerMetadata,
    pub(crate) compression: Option<Compression>,
}
