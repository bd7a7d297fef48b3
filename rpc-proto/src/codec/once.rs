//! Values that are encoded once, however often they are sent.

#![expect(
    clippy::disallowed_types,
    reason = "the first that sends a value keeps its encoded form for the others, by `&self`"
)]

use std::any::TypeId;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

#[cfg(feature = "prost")]
use super::Prost;
use super::{CodecError, Decode, Encode, Postcard, Shape, to_payload};
use crate::payload::{Decoder, Encoder};

/// A value that is encoded once, however many streams and calls it is sent by. Its clones share the value and its encoded form.
///
/// A service that tells many readers of the same event has it as the item of a stream. The first reader's item is encoded; the
/// others get those bytes, long ones by reference. For peers it is a `T`: one side may write `EncodedOnce<T>` where the other
/// writes `T`. A value that was received is not encoded until it is sent.
///
/// [`Postcard`] and [`Prost`](super::Prost) carry it. Another codec can by [`put`](Self::put). Byte strings that are sent
/// as [attachments](super::attachment) go by reference anyway, so a value that has some is encoded each time.
///
/// ```
/// # mod farcall { pub use farcall_proto::codec; }
/// use farcall::codec::{EncodedOnce, Postcard, from_payload, to_payload};
///
/// let event = EncodedOnce::new(vec!["a".to_owned(), "b".to_owned()]);
/// let (first, second) = (to_payload::<Postcard, _>(&event)?, to_payload::<Postcard, _>(&event.clone())?);
/// assert_eq!(first, second);
/// let received: Vec<String> = from_payload::<Postcard, _>(second)?;
/// assert_eq!(received, *event);
/// # Ok::<_, farcall::codec::CodecError>(())
/// ```
pub struct EncodedOnce<T>(Arc<Inner<T>>);

struct Inner<T> {
    value: T,
    /// Set by the first codec that encodes it.
    encoded: OnceLock<Encoded>,
}

struct Encoded {
    codec: TypeId,
    /// The pieces of the message. `None`: the value must be encoded each time.
    pieces: Option<Vec<Bytes>>,
}

impl<T> EncodedOnce<T> {
    /// Returns a value that nobody has encoded yet.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Inner { value, encoded: OnceLock::new() }))
    }

    /// Returns the value: itself if this is the last clone, otherwise a copy.
    pub fn into_inner(self) -> T
    where
        T: Clone,
    {
        Arc::try_unwrap(self.0).map_or_else(|shared| shared.value.clone(), |inner| inner.value)
    }

    /// Appends the value to a message as `C` encodes it, for codecs that carry this type. A second codec encodes it each time.
    ///
    /// # Errors
    ///
    /// The codec's.
    pub fn put<C: Encode<T>>(&self, out: &mut Encoder) -> Result<(), CodecError> {
        let encoded = self.0.encoded.get_or_init(|| self.encode::<C>());
        match &encoded.pieces {
            Some(pieces) if encoded.codec == TypeId::of::<C>() => {
                pieces.iter().for_each(|piece| out.put_bytes(piece));
                Ok(())
            }
            _ => C::encode(&self.0.value, out),
        }
    }

    fn encode<C: Encode<T>>(&self) -> Encoded {
        // Attachments are numbered within their message, and loans belong to a call. An error is found again with the message.
        let alone = to_payload::<C, T>(&self.0.value).ok();
        let alone = alone.filter(|payload| payload.attachments().is_empty());
        Encoded { codec: TypeId::of::<C>(), pieces: alone.map(|payload| payload.into_pieces().collect()) }
    }
}

impl<T> Clone for EncodedOnce<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for EncodedOnce<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> From<T> for EncodedOnce<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: PartialEq> PartialEq for EncodedOnce<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.value == other.0.value
    }
}

impl<T: Eq> Eq for EncodedOnce<T> {}

impl<T: fmt::Debug> fmt::Debug for EncodedOnce<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.fmt(f)
    }
}

macro_rules! carried_by {
    ($codec:ty $(, $($parameter:tt)*)?) => {
        impl<T $(, $($parameter)*)?> Encode<EncodedOnce<T>> for $codec
        where
            $codec: Encode<T>,
        {
            fn encode(value: &EncodedOnce<T>, out: &mut Encoder) -> Result<(), CodecError> {
                value.put::<Self>(out)
            }
        }

        impl<T $(, $($parameter)*)?> Decode<EncodedOnce<T>> for $codec
        where
            $codec: Decode<T>,
        {
            fn decode(input: &mut Decoder) -> Result<EncodedOnce<T>, CodecError> {
                <Self as Decode<T>>::decode(input).map(EncodedOnce::new)
            }

            fn shape(shape: &mut Shape) {
                <Self as Decode<T>>::shape(shape);
            }
        }
    };
}

carried_by!(Postcard);
#[cfg(feature = "prost")]
carried_by!(Prost<MESSAGE>, const MESSAGE: usize);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde::{Deserialize, Serialize, Serializer};

    use super::*;
    use crate::codec::{Codec, from_payload, to_payload};
    use crate::payload::Payload;

    /// Counts how often it is encoded.
    #[derive(Deserialize)]
    struct Counted(String, #[serde(skip)] Cell<usize>);

    impl Serialize for Counted {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.1.set(self.1.get() + 1);
            (&self.0,).serialize(serializer)
        }
    }

    #[test]
    fn it_is_encoded_once_and_long_bytes_go_by_reference() {
        for len in [1, 100_000] {
            let value = EncodedOnce::new(Counted("x".repeat(len), Cell::new(0)));
            let messages: Vec<_> =
                (0..3).map(|_| to_payload::<Postcard, _>(&value.clone()).unwrap()).collect();
            assert_eq!(value.1.get(), 1);
            let plain = to_payload::<Postcard, _>(&*value).unwrap();
            let bytes = |payload: Payload| payload.into_pieces().collect::<Vec<_>>().concat();
            assert!(bytes(messages[0].clone()) == bytes(plain), "peers see no difference");
            if len > 1 {
                assert_eq!(messages[0].more()[0].as_ptr(), messages[2].more()[0].as_ptr());
            }
            let read: EncodedOnce<(String,)> = from_payload::<Postcard, _>(messages[1].clone()).unwrap();
            assert_eq!(read.into_inner().0.len(), len);
        }
    }

    #[test]
    fn it_stands_between_other_values() {
        let (before, after) = (7_u8, "after".to_owned());
        for text in ["short".to_owned(), "long".repeat(50_000)] {
            let value = EncodedOnce::new(text.clone());
            let mut out = Encoder::new();
            Postcard::encode(&before, &mut out).unwrap();
            Postcard::encode(&value, &mut out).unwrap();
            Postcard::encode(&value, &mut out).unwrap();
            Postcard::encode(&after, &mut out).unwrap();
            let read: (u8, String, String, String) = from_payload::<Postcard, _>(out.finish()).unwrap();
            assert_eq!(read, (before, text.clone(), text, after.clone()));
        }
    }

    #[test]
    fn attachments_keep_their_numbers() {
        let long = Bytes::from(vec![7; 200_000]);
        let value = EncodedOnce::new(long.clone());
        let mut out = Encoder::new();
        Postcard::encode(&Bytes::from(vec![1; 200_000]), &mut out).unwrap();
        Postcard::encode(&value, &mut out).unwrap();
        let mut input = Decoder::new(out.finish());
        let (_, read): (Bytes, Bytes) =
            (Postcard::decode(&mut input).unwrap(), Postcard::decode(&mut input).unwrap());
        assert_eq!(read.as_ptr(), long.as_ptr());
    }

    #[test]
    fn an_error_is_found_each_time() {
        struct Bad;
        impl Serialize for Bad {
            fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
                Err(serde::ser::Error::custom("it can't be"))
            }
        }
        let value = EncodedOnce::new(Bad);
        for _ in 0..2 {
            let error = to_payload::<Postcard, _>(&value).unwrap_err();
            assert_eq!(error.to_string(), "it can't be");
        }
    }

    #[test]
    fn another_codec_encodes_it_for_itself() {
        enum Plain {}
        impl Codec for Plain {
            const NAME: &'static str = "plain";
        }
        impl Encode<String> for Plain {
            fn encode(value: &String, out: &mut Encoder) -> Result<(), CodecError> {
                out.put_slice(value.as_bytes());
                Ok(())
            }
        }
        let value = EncodedOnce::new("abc".to_owned());
        assert_eq!(to_payload::<Postcard, _>(&value).unwrap().body(), b"\x03abc");
        let mut out = Encoder::new();
        value.put::<Plain>(&mut out).unwrap();
        assert_eq!(out.finish().body(), b"abc");
    }

    #[test]
    fn peers_see_the_type_in_it() {
        let (mut once, mut plain) = (Shape::default(), Shape::default());
        <Postcard as Decode<EncodedOnce<Vec<Option<u8>>>>>::shape(&mut once);
        <Postcard as Decode<Vec<Option<u8>>>>::shape(&mut plain);
        assert_eq!(once.text(), plain.text());
    }
}
