//! Bytes to values. The bytes come from a peer: everything they say about lengths is checked against what is there.

mod room;
mod sequence;

use std::collections::TryReserveError;
use std::mem;

use bytes::Bytes;
use serde::de::value::U32Deserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};

use self::room::Layout;
use self::sequence::Sequence;
use crate::codec::{CodecError, attachment};
use crate::payload::{Decoder, TooLarge};

type Result<T, E = CodecError> = std::result::Result<T, E>;

/// How deep values may be nested: each level takes stack, and a byte of a message is enough for a level.
const DEPTH: usize = 128;

/// How many elements of a value's sequences may take no bytes (as `()` does): they cost time but the sender nothing.
const EMPTY_ELEMENTS: usize = 65_536;

/// The memory that an allocator takes for an allocation beyond what was asked for, in bytes, at most.
const ALLOCATION: usize = 32;

/// A longer copy is made by this decoder, which notices that there is no memory for it. Shorter ones are made by serde. Bytes.
const LONG_COPY: usize = 64 << 10;

macro_rules! read_varint {
    ($from:expr, $bits:expr, $type:ty) => {{
        let mut value: $type = 0;
        for shift in (0..$bits).step_by(7) {
            let byte = $from.byte()?;
            let part = <$type>::from(byte & 0x7f);
            if $bits - shift < 7 && part >> ($bits - shift) != 0 {
                break;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(CodecError::new("a number is larger than its type"))
    }};
}

/// Reads a byte string as `put_attachment` wrote it, if it is short, as most are: else nothing is read. Inlined, so that it is
/// made where it is returned: to move what was just made may take longer than to make it.
#[inline(always)]
pub(super) fn short_attachment(input: &mut Decoder) -> Option<Bytes> {
    let (tag, behind) = match *input.rest() {
        [a, ..] if a < 0x80 => (usize::from(a), 1),
        [a, b, ..] if b < 0x80 => (usize::from(a & 0x7f) | usize::from(b) << 7, 2),
        _ => return None,
    };
    if tag & 1 == 0 { input.take_behind(behind, tag >> 1) } else { None }
}

/// Reads any byte string.
#[cold]
pub(super) fn attachment(input: &mut Decoder) -> Result<Bytes> {
    let mut from = Deserializer::new(input);
    let bytes = from.attachment()?;
    from.finish();
    Ok(bytes)
}

/// Reads from the front of a message. Its small functions are marked for inlining because serde's generic code calls
/// them from the application's crate, once for each byte.
pub(super) struct Deserializer<'a> {
    input: &'a mut Decoder,
    /// How much of what `input` has left was read: moving its front for every byte would cost more than the byte.
    read: usize,
    depth: usize,
    empty_elements: usize,
}

impl<'a> Deserializer<'a> {
    pub(super) fn new(input: &'a mut Decoder) -> Self {
        Self { input, read: 0, depth: DEPTH, empty_elements: EMPTY_ELEMENTS }
    }

    /// Takes what was read from the message.
    pub(super) fn finish(self) {
        self.input.advance(self.read);
    }

    #[inline]
    fn rest(&self) -> &[u8] {
        &self.input.rest()[self.read..]
    }

    /// How many bytes [the rest](Self::rest) has.
    #[inline]
    fn left(&self) -> usize {
        self.input.left() - self.read
    }

    #[inline]
    fn byte(&mut self) -> Result<u8> {
        let byte = *self.input.rest().get(self.read).ok_or_else(ends_early)?;
        self.read += 1;
        Ok(byte)
    }

    /// Shows `f` the next `length` bytes.
    #[inline]
    pub(super) fn bytes<R>(&mut self, length: usize, f: impl FnOnce(&[u8]) -> Result<R>) -> Result<R> {
        let result = f(self.rest().get(..length).ok_or_else(ends_early)?)?;
        self.read += length;
        Ok(result)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.bytes(N, |b| b.try_into().map_err(|_| ends_early()))
    }

    /// Reads a number of at most `bits` bits.
    #[inline]
    fn varint(&mut self, bits: u32) -> Result<u64> {
        read_varint!(self, bits, u64)
    }

    fn wide_varint(&mut self) -> Result<u128> {
        read_varint!(self, 128, u128)
    }

    #[inline]
    fn signed(&mut self, bits: u32) -> Result<i64> {
        let value = self.varint(bits)?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads the length of a string, or how many elements a sequence claims to have.
    #[inline]
    pub(super) fn length(&mut self) -> Result<usize> {
        // A length that does not fit is longer than any message, too.
        Ok(usize::try_from(self.varint(64)?).unwrap_or(usize::MAX))
    }

    /// Reads whether an optional value is there.
    #[inline]
    pub(super) fn present(&mut self) -> Result<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(CodecError::new("the byte before an optional value is neither 0 nor 1")),
        }
    }

    /// Reads a byte string as `put_attachment` wrote it.
    pub(super) fn attachment(&mut self) -> Result<Bytes> {
        let tag = self.length()?;
        if tag & 1 == 0 {
            self.input.advance(mem::take(&mut self.read));
            return self.input.take(tag >> 1).ok_or_else(ends_early);
        }
        let index = tag >> 1;
        self.input
            .attachment(index)
            .ok_or_else(|| CodecError::new(format!("attachment {index} is named but not there")))
    }

    /// Reads a list of byte strings.
    pub(super) fn attachments(&mut self) -> Result<Vec<Bytes>> {
        let count = self.length()?;
        // Not `with_capacity`: the count is only what the peer says.
        let mut all = Vec::new();
        for _ in 0..count {
            self.take_memory_of::<Bytes>()?;
            let bytes = self.attachment()?;
            all.try_reserve(1).map_err(no_memory)?;
            all.push(bytes);
        }
        Ok(all)
    }

    /// Reads what is inside a value.
    #[inline]
    fn inside<R>(&mut self, read: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        self.depth = self
            .depth
            .checked_sub(1)
            .ok_or_else(|| CodecError::new(format!("values are nested more than {DEPTH} deep")))?;
        let result = read(self);
        self.depth += 1;
        result
    }

    fn fields<'de, V: Visitor<'de>>(&mut self, count: usize, visitor: V) -> Result<V::Value> {
        // It may lie in memory of its own, as in a `Box`, which serde does not show.
        self.take_memory_of::<V::Value>()?;
        self.inside(|from| visitor.visit_seq(Fields { from, left: count }))
    }

    /// Counts the memory of a value of this type, without what it refers to.
    #[inline(always)]
    pub(super) fn take_memory_of<T>(&mut self) -> Result<()> {
        // A value of one byte takes no more than its message.
        if size_of::<T>() > 1 {
            self.input.take_memory(size_of::<T>())?;
        }
        Ok(())
    }

    /// Reads the length of a string or byte string, and counts the memory of its copy.
    #[inline]
    pub(super) fn length_of_copy(&mut self) -> Result<usize> {
        let length = self.length()?;
        if length > self.left() {
            return Err(ends_early());
        }
        if length > 0 {
            self.input.take_memory(length + ALLOCATION)?;
        }
        Ok(length)
    }

    /// Counts an element that took no bytes.
    #[cold]
    fn count_empty(&mut self) -> Result<()> {
        self.empty_elements = self.empty_elements.checked_sub(1).ok_or_else(|| {
            CodecError::new(format!("more than {EMPTY_ELEMENTS} elements of sequences take no bytes"))
        })?;
        Ok(())
    }
}

/// Copies bytes, if there is memory for it.
pub(super) fn copy(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(no_memory)?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Copies a text, if there is memory for it.
fn copy_text(text: &str) -> Result<String> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len()).map_err(no_memory)?;
    copy.push_str(text);
    Ok(copy)
}

#[cold]
fn no_memory(_: TryReserveError) -> CodecError {
    TooLarge::no_memory().into()
}

#[cold]
fn ends_early() -> CodecError {
    CodecError::new("the message ends inside a value")
}

#[cold]
fn not_utf8() -> CodecError {
    CodecError::new("a string is not UTF-8")
}

#[cold]
fn not_bool() -> CodecError {
    CodecError::new("a bool is neither 0 nor 1")
}

#[cold]
fn not_self_describing() -> CodecError {
    CodecError::new(
        "the type asks the message what comes next (#[serde(untagged)], #[serde(tag)], #[serde(flatten)]): postcard \
         does not say",
    )
}

macro_rules! numbers {
    ($($method:ident $visit:ident $type:ty = $read:ident($bits:expr);)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            visitor.$visit(self.$read($bits)? as $type)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for &mut Deserializer<'_> {
    type Error = CodecError;

    numbers! {
        deserialize_i16 visit_i16 i16 = signed(16);
        deserialize_i32 visit_i32 i32 = signed(32);
        deserialize_i64 visit_i64 i64 = signed(64);
        deserialize_u16 visit_u16 u16 = varint(16);
        deserialize_u32 visit_u32 u32 = varint(32);
        deserialize_u64 visit_u64 u64 = varint(64);
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value> {
        Err(not_self_describing())
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.byte()? {
            0 => visitor.visit_bool(false),
            1 => visitor.visit_bool(true),
            _ => Err(not_bool()),
        }
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_i8(self.byte()? as i8)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_u8(self.byte()?)
    }

    fn deserialize_u128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_u128(self.wide_varint()?)
    }

    fn deserialize_i128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let value = self.wide_varint()?;
        visitor.visit_i128((value >> 1) as i128 ^ -((value & 1) as i128))
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_f32(f32::from_le_bytes(self.array()?))
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_f64(f64::from_le_bytes(self.array()?))
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let length = self.length()?;
        let value = self.bytes(length, |bytes| {
            let mut chars = str::from_utf8(bytes).ok().into_iter().flat_map(str::chars);
            match (chars.next(), chars.next()) {
                (Some(c), None) => Ok(c),
                _ => Err(CodecError::new("a char is not one character of UTF-8")),
            }
        })?;
        visitor.visit_char(value)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let length = self.length_of_copy()?;
        self.bytes(length, |bytes| match str::from_utf8(bytes) {
            Ok(text) => visitor.visit_str(text),
            Err(_) => Err(not_utf8()),
        })
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let length = self.length_of_copy()?;
        self.bytes(length, |bytes| match str::from_utf8(bytes) {
            Ok(text) if length <= LONG_COPY => visitor.visit_str(text),
            Ok(text) => visitor.visit_string(copy_text(text)?),
            Err(_) => Err(not_utf8()),
        })
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let length = self.length_of_copy()?;
        self.bytes(length, |bytes| visitor.visit_bytes(bytes))
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let length = self.length_of_copy()?;
        self.bytes(length, |bytes| match length {
            0..=LONG_COPY => visitor.visit_bytes(bytes),
            _ => visitor.visit_byte_buf(copy(bytes)?),
        })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.present()? { self.inside(|inner| visitor.visit_some(inner)) } else { visitor.visit_none() }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value> {
        if name == attachment::NAME {
            attachment::hand_over(self.attachment()?);
            return visitor.visit_unit();
        }
        self.inside(|inner| visitor.visit_newtype_struct(inner))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let length = self.length_of_collection()?;
        self.inside(|from| {
            let mut sequence = Sequence::new(from, length, Layout::of::<V::Value>());
            let value = visitor.visit_seq(&mut sequence);
            sequence.give_back();
            value
        })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value> {
        self.fields(count, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        count: usize,
        visitor: V,
    ) -> Result<V::Value> {
        self.fields(count, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let left = self.length_of_collection()?;
        self.inside(|from| visitor.visit_map(Entries { from, left, keys: None, values: None }))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.fields(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.take_memory_of::<V::Value>()?;
        self.inside(|inner| visitor.visit_enum(inner))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value> {
        Err(not_self_describing())
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value> {
        Err(not_self_describing())
    }
}

/// The fields of a struct or tuple.
struct Fields<'d, 'a> {
    from: &'d mut Deserializer<'a>,
    left: usize,
}

impl<'de> de::SeqAccess<'de> for Fields<'_, '_> {
    type Error = CodecError;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.from).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left).filter(|&left| left <= self.from.left())
    }
}

/// The entries of a map.
struct Entries<'d, 'a> {
    from: &'d mut Deserializer<'a>,
    /// How many there are, as the peer says.
    left: usize,
    /// The room that is left for keys and for values, once the first was read.
    keys: Option<usize>,
    values: Option<usize>,
}

impl<'de> de::MapAccess<'de> for Entries<'_, '_> {
    type Error = CodecError;

    #[inline]
    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let (claimed, before) = (self.left, self.from.left());
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.from.take_room::<S::Value>(&mut self.keys, || claimed.min(before), Layout::Table)?;
        let key = seed.deserialize(&mut *self.from)?;
        if self.from.left() == before {
            self.from.count_empty()?;
        }
        Ok(Some(key))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value> {
        let claimed = self.left + 1;
        let unread = self.from.left();
        self.from.take_room::<S::Value>(&mut self.values, || claimed.min(unread), Layout::Table)?;
        seed.deserialize(&mut *self.from)
    }

    /// How many entries to make room for. More than there are bytes is a lie, or they take no bytes.
    fn size_hint(&self) -> Option<usize> {
        Some(self.left).filter(|&left| left <= self.from.left())
    }
}

impl<'de> de::EnumAccess<'de> for &mut Deserializer<'_> {
    type Error = CodecError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self)> {
        let index: U32Deserializer<CodecError> = (self.varint(32)? as u32).into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for &mut Deserializer<'_> {
    type Error = CodecError;

    fn unit_variant(self) -> Result<()> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value> {
        self.fields(count, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.fields(fields.len(), visitor)
    }
}
