//! Byte strings inside an application's own types, uncopied: `#[serde(with = "farcall::attachment")]`.
//!
//! serde shows a codec the bytes of a [`Bytes`] field but not who owns them, so such a field is copied on both sides.
//! With this attribute, [`Postcard`](super::Postcard) sends a long one by reference and gives a view of the receive
//! buffer on arrival, as it does by itself for arguments and results that are [`Bytes`], `Option<Bytes>` or
//! `Vec<Bytes>`. With any other serde format the field is what it is without the attribute.
//!
//! ```
//! use bytes::Bytes;
//! use serde::{Deserialize, Serialize};
//! # mod farcall {
//! #     pub use farcall_proto::codec::attachment;
//! # }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Page {
//!     number: u64,
//!     #[serde(with = "farcall::attachment")]
//!     image: Bytes,
//! }
//! # let image = Bytes::from(vec![0; 8192]);
//! # let page = Page { number: 1, image: image.clone() };
//! # let payload = farcall_proto::codec::to_payload::<farcall_proto::codec::Postcard, _>(&page);
//! # assert_eq!(payload.unwrap().attachments()[0].as_ptr(), image.as_ptr());
//! ```
//!
//! Adding or removing the attribute changes the bytes and therefore the method's fingerprint.

use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// The name under which an attachment passes through serde. Our serializer and deserializer know it; to any other it
/// names a newtype around bytes.
pub(super) const NAME: &str = "$farcall::attachment";

pub(super) use self::handover::{hand_over, take_over};

#[expect(
    clippy::disallowed_types,
    reason = "an argument that serde has no parameter for; no state outlives its call"
)]
mod handover {
    use std::cell::Cell;

    use bytes::Bytes;

    thread_local! {
        // serde's traits can't pass an owner of bytes through. The caller puts it here right before the one call of serde
        // that takes it, and nothing of it is left when that call returns.
        static HANDOVER: Cell<Option<Bytes>> = const { Cell::new(None) };
    }

    /// Hands bytes to the visitor that is called next.
    pub(crate) fn hand_over(bytes: Bytes) {
        HANDOVER.set(Some(bytes));
    }

    /// Takes the bytes that the caller handed over, if there are any.
    pub(crate) fn take_over() -> Option<Bytes> {
        HANDOVER.take()
    }
}

/// A type that can be an attachment: [`Bytes`], `Option<Bytes>`, `Vec<Bytes>`.
pub trait Attachment: sealed::Sealed + Sized {}

mod sealed {
    use super::{Deserializer, Serializer};

    pub trait Sealed: Sized {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
        fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
    }
}

/// Used by `#[serde(with = "farcall::attachment")]`.
pub fn serialize<T: Attachment, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    value.serialize(serializer)
}

/// Used by `#[serde(with = "farcall::attachment")]`.
pub fn deserialize<'de, T: Attachment, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::deserialize(deserializer)
}

impl Attachment for Bytes {}

impl sealed::Sealed for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Sent(self).serialize(serializer)
    }

    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Received::deserialize(deserializer)?.0)
    }
}

impl Attachment for Option<Bytes> {}

impl sealed::Sealed for Option<Bytes> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_ref().map(Sent).serialize(serializer)
    }

    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::<Received>::deserialize(deserializer)?.map(|r| r.0))
    }
}

impl Attachment for Vec<Bytes> {}

impl sealed::Sealed for Vec<Bytes> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Sent))
    }

    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<Received>::deserialize(deserializer)?.into_iter().map(|r| r.0).collect())
    }
}

struct Sent<'a>(&'a Bytes);

impl Serialize for Sent<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        hand_over(self.0.clone());
        let result = serializer.serialize_newtype_struct(NAME, self.0);
        // A serializer that is not ours left it there.
        take_over();
        result
    }
}

struct Received(Bytes);

impl<'de> Deserialize<'de> for Received {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Newtype;

        impl<'de> Visitor<'de> for Newtype {
            type Value = Received;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a byte string")
            }

            fn visit_unit<E: serde::de::Error>(self) -> Result<Received, E> {
                take_over().map(Received).ok_or_else(|| E::invalid_type(serde::de::Unexpected::Unit, &self))
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Received, D::Error> {
                Bytes::deserialize(inner).map(Received)
            }
        }

        deserializer.deserialize_newtype_struct(NAME, Newtype)
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::codec::{Postcard, from_payload, to_payload};
    use crate::payload::{BY_REFERENCE, Payload};

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Pages {
        first: u32,
        #[serde(with = "super")]
        one: Bytes,
        #[serde(with = "super")]
        perhaps: Option<Bytes>,
        #[serde(with = "super")]
        many: Vec<Bytes>,
        last: String,
    }

    fn pages() -> Pages {
        let page = |n: u8, len: usize| Bytes::from(vec![n; len]);
        Pages {
            first: 7,
            one: page(1, 10_000),
            perhaps: Some(page(2, BY_REFERENCE)),
            many: vec![page(3, BY_REFERENCE + 1), page(4, 0), page(5, 100_000)],
            last: "end".into(),
        }
    }

    #[test]
    fn attachments_in_a_struct_are_not_copied() {
        let sent = pages();
        let payload = to_payload::<Postcard, _>(&sent).unwrap();
        let addresses: Vec<_> = payload.attachments().iter().map(|b| b.as_ptr()).collect();
        assert_eq!(addresses, [sent.one.as_ptr(), sent.many[0].as_ptr(), sent.many[2].as_ptr()]);

        let received: Pages = from_payload::<Postcard, _>(payload).unwrap();
        assert_eq!(received, sent);
        assert_eq!(received.one.as_ptr(), sent.one.as_ptr());
        assert_eq!(received.many[2].as_ptr(), sent.many[2].as_ptr());
    }

    #[test]
    fn an_inline_attachment_is_a_view_of_the_body() {
        let payload = to_payload::<Postcard, _>(&pages()).unwrap();
        let body = payload.body.as_ptr_range();
        let received: Pages = from_payload::<Postcard, _>(payload).unwrap();
        assert!(body.contains(&received.perhaps.unwrap().as_ptr()));
    }

    #[test]
    fn to_another_serializer_an_attachment_is_a_byte_string() {
        #[derive(Serialize)]
        struct Plain {
            first: u32,
            one: Bytes,
            perhaps: Option<Bytes>,
            many: Vec<Bytes>,
            last: String,
        }
        let sent = pages();
        let bytes = ::postcard::to_allocvec(&sent).unwrap();
        let Pages { first, one, perhaps, many, last } = sent.clone();
        assert_eq!(bytes, ::postcard::to_allocvec(&Plain { first, one, perhaps, many, last }).unwrap());
        assert_eq!(::postcard::from_bytes::<Pages>(&bytes).unwrap(), sent);
        assert!(take_over().is_none());
    }

    #[test]
    fn an_attachment_that_is_not_there_is_an_error() {
        let payload = to_payload::<Postcard, _>(&pages()).unwrap();
        let some = payload.attachments()[..2].to_vec();
        let cut = Payload::new(payload.body.clone().into_bytes(), some);
        let error = from_payload::<Postcard, Pages>(cut).unwrap_err();
        assert_eq!(error.to_string(), "attachment 2 is named but not there");

        let mut more = payload.attachments().to_vec();
        more.push(Bytes::new());
        let error = from_payload::<Postcard, Pages>(Payload::new(payload.body.clone().into_bytes(), more))
            .unwrap_err();
        assert_eq!(error.to_string(), "the message has attachments that nothing in it refers to");
    }
}
