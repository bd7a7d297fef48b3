//! Sequences: those of bytes are read many bytes at a time.

use serde::de::{self, DeserializeSeed, Visitor};

use super::room::Layout;
use super::{Deserializer, Result, ends_early, not_bool};
use crate::codec::CodecError;

/// So many elements of one byte are read together.
const TOGETHER: usize = 64;

/// The elements of a sequence. serde has a `Vec<u8>` read byte by byte: these are taken from the message together, so that each
/// costs no look at it. Its small functions are marked for inlining because serde's generic code calls them from the
/// application's crate.
pub(super) struct Sequence<'d, 'a> {
    from: &'d mut Deserializer<'a>,
    /// How many elements are left, as the peer says, without those that are in `bytes`.
    left: usize,
    /// Bytes that were taken from the message: those from `next` on were not read yet.
    bytes: [u8; TOGETHER],
    next: usize,
    layout: Layout,
    /// The room that is left for elements, once the first was read.
    room: Option<usize>,
}

impl<'d, 'a> Sequence<'d, 'a> {
    #[inline]
    pub(super) fn new(from: &'d mut Deserializer<'a>, length: usize, layout: Layout) -> Self {
        Self { from, left: length, bytes: [0; TOGETHER], next: TOGETHER, layout, room: None }
    }

    /// Reads an element that is a byte.
    #[inline(always)]
    fn byte(&mut self) -> Result<u8> {
        let byte = match self.bytes.get(self.next) {
            Some(byte) => *byte,
            None => self.take()?,
        };
        self.next += 1;
        Ok(byte)
    }

    /// Takes bytes from the message, none of which is behind the sequence if its other elements are bytes, too. Returns the first.
    #[inline(never)]
    fn take(&mut self) -> Result<u8> {
        let rest = self.from.rest();
        let count = TOGETHER.min(self.left).min(rest.len());
        self.next = TOGETHER - count;
        self.left -= count;
        self.bytes[self.next..].copy_from_slice(&rest[..count]);
        self.from.read += count;
        self.bytes.get(self.next).copied().ok_or_else(ends_early)
    }

    /// Counts the memory of the next element.
    #[inline(always)]
    fn take_room<T>(&mut self) -> Result<()> {
        if self.layout.is_free(size_of::<T>()) {
            return Ok(());
        }
        let claimed = self.left.min(self.from.left());
        self.from.take_room::<T>(&mut self.room, || claimed, self.layout)
    }

    /// Counts an element that took no bytes, and may not have looked for any.
    #[cold]
    fn skip(&mut self) -> Result<()> {
        self.give_back();
        self.left -= 1;
        self.from.count_empty()
    }

    /// Returns to the message what was taken and not read.
    #[inline(always)]
    pub(super) fn give_back(&mut self) {
        let count = TOGETHER - self.next;
        self.from.read -= count;
        self.left += count;
        self.next = TOGETHER;
    }
}

impl<'de> de::SeqAccess<'de> for Sequence<'_, '_> {
    type Error = CodecError;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let next = self.next;
        if next < TOGETHER {
            self.take_room::<S::Value>()?;
            let value = seed.deserialize(Element(self))?;
            if self.next == next {
                self.skip()?;
            }
            return Ok(Some(value));
        }
        if self.left == 0 {
            return Ok(None);
        }
        let (left, unread) = (self.left, self.from.left());
        self.take_room::<S::Value>()?;
        let value = seed.deserialize(Element(self))?;
        if self.from.left() == unread {
            self.left = left;
            self.skip()?;
        }
        Ok(Some(value))
    }

    /// How many elements to make room for. More than there are bytes is a lie, or they take no bytes.
    fn size_hint(&self) -> Option<usize> {
        Some(self.left).filter(|&left| left <= self.from.left())
    }
}

/// An element of a sequence: a byte, or anything else that a [`Deserializer`] reads.
struct Element<'x, 'd, 'a>(&'x mut Sequence<'d, 'a>);

impl<'x, 'a> Element<'x, '_, 'a> {
    /// The deserializer for an element that is not a byte.
    #[inline(always)]
    fn other(self) -> &'x mut Deserializer<'a> {
        self.0.give_back();
        self.0.left -= 1;
        self.0.from
    }
}

macro_rules! others {
    ($($method:ident($($value:ident: $type:ty),*);)*) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(self, $($value: $type,)* visitor: V) -> Result<V::Value> {
            self.other().$method($($value,)* visitor)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for Element<'_, '_, '_> {
    type Error = CodecError;

    fn is_human_readable(&self) -> bool {
        false
    }

    #[inline]
    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.0.byte()? {
            0 => visitor.visit_bool(false),
            1 => visitor.visit_bool(true),
            _ => Err(not_bool()),
        }
    }

    #[inline]
    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_i8(self.0.byte()? as i8)
    }

    #[inline]
    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_u8(self.0.byte()?)
    }

    others! {
        deserialize_any();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_i128();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_u128();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_seq();
        deserialize_tuple(length: usize);
        deserialize_tuple_struct(name: &'static str, length: usize);
        deserialize_map();
        deserialize_struct(name: &'static str, fields: &'static [&'static str]);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
        deserialize_ignored_any();
    }
}
