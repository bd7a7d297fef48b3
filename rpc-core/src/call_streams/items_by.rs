//! What the items of a stream are compressed by.

use crate::compress::Compression;
use crate::context::Context;

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
