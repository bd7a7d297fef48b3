//! What an answer is to be compressed by, as its handler has it.

use std::sync::atomic::{AtomicU8, Ordering};

use super::Compression;
use crate::context::Context;

/// A [`Compression`], once it is chosen. It may be chosen anew, also while it is looked at.
#[derive(Debug)]
pub(crate) struct Choice(AtomicU8);

/// What the items of a stream are compressed by. `None`: as the settings have it.
#[derive(Debug)]
pub(crate) enum ItemsBy {
    /// All of them by the same.
    Same(Option<Compression>),
    /// Each as this handler has chosen when it is made.
    Answer(Option<Context>),
}

impl ItemsBy {
    /// For one that was just made.
    #[inline]
    pub(crate) fn now(&self) -> Option<Compression> {
        match self {
            Self::Same(by) => *by,
            Self::Answer(context) => context.as_ref()?.choice(),
        }
    }
}

/// No number of any.
const NONE_YET: u8 = u8::MAX;

impl Choice {
    pub(crate) fn new(chosen: Option<Compression>) -> Self {
        Self(AtomicU8::new(chosen.map_or(NONE_YET, Compression::to_wire)))
    }

    pub(crate) fn set(&self, chosen: Compression) {
        self.0.store(chosen.to_wire(), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Option<Compression> {
        Compression::from_wire(self.0.load(Ordering::Relaxed))
    }
}
