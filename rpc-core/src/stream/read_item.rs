//! How an item of a stream is decoded: at once, or, if it is long, away from the thread that reads connections.

use std::fmt;

use crate::codec::{CodecError, Decode, all_read};
use crate::decoding::{self, VERY_LONG, is_decoded};
use crate::memory::HostTurn;
use crate::payload::Decoder;
use crate::proto::wire::Items;
use crate::transport::BoxFuture;

/// An item that was decoded apart, with those that follow it.
pub(super) type ReadApart<T> = (Items, Result<T, CodecError>);

/// How a value is decoded.
pub(crate) struct ReadItem<T> {
    /// Decodes the value where it is asked for.
    pub(crate) here: fn(&mut Decoder) -> Result<T, CodecError>,
    apart: fn(Self, Items, Option<HostTurn>) -> BoxFuture<ReadApart<T>>,
    /// The length above which an item is decoded apart, in bytes.
    longest: usize,
}

impl<T: Send + 'static> ReadItem<T> {
    /// Decodes by `C`.
    #[inline]
    pub(crate) fn by<C: Decode<T>>() -> Self {
        Self { here: C::decode, apart, longest: if is_decoded::<C>() { VERY_LONG } else { usize::MAX } }
    }
}

fn apart<T: Send + 'static>(
    read: ReadItem<T>,
    mut items: Items,
    host: Option<HostTurn>,
) -> BoxFuture<ReadApart<T>> {
    Box::pin(decoding::apart(host, move || {
        let item = read.whole(items.input());
        (items, item)
    }))
}

impl<T> ReadItem<T> {
    /// Whether this item must be decoded [apart](Self::apart).
    #[inline]
    pub(super) fn is_long(self, input: &Decoder) -> bool {
        input.rest().len() > self.longest
    }

    /// Decodes a whole item.
    #[inline]
    pub(super) fn whole(self, input: &mut Decoder) -> Result<T, CodecError> {
        let value = (self.here)(input)?;
        all_read(input)?;
        Ok(value)
    }

    /// Decodes the item that these have advanced to, which a client has sent if there is a `host`.
    pub(super) fn apart(self, items: Items, host: Option<HostTurn>) -> BoxFuture<ReadApart<T>> {
        (self.apart)(self, items, host)
    }
}

impl<T> Clone for ReadItem<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ReadItem<T> {}

impl<T> fmt::Debug for ReadItem<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadItem").finish_non_exhaustive()
    }
}
