//! The choice of compression for the items of a stream.

use crate::compress::Compression;
use crate::context::Context;

/// The choice of compression for the items of a stream. `None` means as configured.
#[derive(Debug)]
pub(crate) enum ItemsBy {
    /// One choice for all items.
    Same(Option<Compression>),
    /// For each item, the choice of this handler at the time when the item is made.
    Answer(Option<Context>),
}

impl ItemsBy {
    /// Returns the choice for an item that was just made.
    #[inline]
    pub(crate) fn now(&self) -> Option<Compression> {
        match self {
            Self::Same(by) => *by,
            Self::Answer(context) => context.as_ref()?.choice(),
        }
    }
}
