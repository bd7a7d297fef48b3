//! Sequences: those of bytes are written many bytes at a time.

use serde::ser::{self, Serialize};

use super::{Result, Serializer};
use crate::codec::CodecError;

/// So many elements of one byte are written together.
const TOGETHER: usize = 64;

/// A sequence of so many elements takes room for all of them at once, if they are bytes; a longer one as it needs it.
const ROOM: usize = 64 << 20;

/// A sequence. serde has a `Vec<u8>` written byte by byte: these are put together here, so that each costs no look at the
/// message. Its small functions are marked for inlining because serde's generic code calls them from the application's crate.
pub(in super::super) struct Sequence<'s, 'a> {
    to: &'s mut Serializer<'a>,
    /// The elements that were not written yet.
    bytes: [u8; TOGETHER],
    /// How many of these there are.
    count: usize,
    /// How many bytes to make room for.
    length: usize,
}

impl<'s, 'a> Sequence<'s, 'a> {
    #[inline]
    pub(super) fn new(to: &'s mut Serializer<'a>, length: usize) -> Self {
        Self { to, bytes: [0; TOGETHER], count: 0, length }
    }

    /// Puts an element that is a byte.
    #[inline(always)]
    fn byte(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.count) {
            *place = byte;
            self.count += 1;
        } else {
            self.write_many();
            self.bytes[0] = byte;
            self.count = 1;
        }
    }

    #[inline(never)]
    fn write_many(&mut self) {
        self.to.out.buffer().reserve(std::mem::take(&mut self.length).min(ROOM));
        self.to.out.put_slice(&self.bytes);
    }

    /// Writes what was put together.
    #[inline(always)]
    fn write(&mut self) {
        if self.count > 0 {
            self.to.out.put_slice(&self.bytes[..self.count]);
            self.count = 0;
        }
    }
}

impl ser::SerializeSeq for Sequence<'_, '_> {
    type Ok = ();
    type Error = CodecError;

    #[inline]
    fn serialize_element<T: ?Sized + Serialize>(&mut self, value: &T) -> Result {
        value.serialize(Element(self))
    }

    #[inline]
    fn end(mut self) -> Result {
        self.write();
        Ok(())
    }
}

/// An element of a sequence: a byte, or anything else that a [`Serializer`] writes.
pub(in super::super) struct Element<'x, 's, 'a>(&'x mut Sequence<'s, 'a>);

impl<'x, 'a> Element<'x, '_, 'a> {
    /// The serializer for an element that is not a byte.
    #[inline(always)]
    fn other(self) -> &'x mut Serializer<'a> {
        self.0.write();
        self.0.to
    }

    #[inline(always)]
    fn byte(self, byte: u8) -> Result {
        self.0.byte(byte);
        Ok(())
    }
}

macro_rules! others {
    ($($method:ident($($value:ident: $type:ty),*) -> $returned:ty;)*) => {$(
        #[inline]
        fn $method(self, $($value: $type),*) -> Result<$returned> {
            self.other().$method($($value),*)
        }
    )*};
}

impl<'x, 'a> ser::Serializer for Element<'x, '_, 'a> {
    type Ok = ();
    type Error = CodecError;
    type SerializeSeq = Sequence<'x, 'a>;
    type SerializeTuple = &'x mut Serializer<'a>;
    type SerializeTupleStruct = &'x mut Serializer<'a>;
    type SerializeTupleVariant = &'x mut Serializer<'a>;
    type SerializeMap = &'x mut Serializer<'a>;
    type SerializeStruct = &'x mut Serializer<'a>;
    type SerializeStructVariant = &'x mut Serializer<'a>;

    fn is_human_readable(&self) -> bool {
        false
    }

    #[inline(always)]
    fn serialize_bool(self, v: bool) -> Result {
        self.byte(v.into())
    }

    #[inline(always)]
    fn serialize_i8(self, v: i8) -> Result {
        self.byte(v as u8)
    }

    #[inline(always)]
    fn serialize_u8(self, v: u8) -> Result {
        self.byte(v)
    }

    others! {
        serialize_i16(v: i16) -> ();
        serialize_i32(v: i32) -> ();
        serialize_i64(v: i64) -> ();
        serialize_i128(v: i128) -> ();
        serialize_u16(v: u16) -> ();
        serialize_u32(v: u32) -> ();
        serialize_u64(v: u64) -> ();
        serialize_u128(v: u128) -> ();
        serialize_f32(v: f32) -> ();
        serialize_f64(v: f64) -> ();
        serialize_char(v: char) -> ();
        serialize_str(v: &str) -> ();
        serialize_bytes(v: &[u8]) -> ();
        serialize_none() -> ();
        serialize_unit() -> ();
        serialize_unit_struct(name: &'static str) -> ();
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str) -> ();
        serialize_seq(length: Option<usize>) -> Self::SerializeSeq;
        serialize_tuple(length: usize) -> Self::SerializeTuple;
        serialize_tuple_struct(name: &'static str, length: usize) -> Self::SerializeTupleStruct;
        serialize_tuple_variant(name: &'static str, index: u32, variant: &'static str, length: usize)
            -> Self::SerializeTupleVariant;
        serialize_map(length: Option<usize>) -> Self::SerializeMap;
        serialize_struct(name: &'static str, length: usize) -> Self::SerializeStruct;
        serialize_struct_variant(name: &'static str, index: u32, variant: &'static str, length: usize)
            -> Self::SerializeStructVariant;
    }

    #[inline]
    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> Result {
        self.other().serialize_some(value)
    }

    #[inline]
    fn serialize_newtype_struct<T: ?Sized + Serialize>(self, name: &'static str, value: &T) -> Result {
        self.other().serialize_newtype_struct(name, value)
    }

    #[inline]
    fn serialize_newtype_variant<T: ?Sized + Serialize>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result {
        self.other().serialize_newtype_variant(name, index, variant, value)
    }
}
