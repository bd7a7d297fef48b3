//! Values to bytes.

mod sequence;

use serde::ser::{self, Error as _, Serialize};

use self::sequence::Sequence;
use super::{put_attachment, put_varint};
use crate::codec::{CodecError, attachment, loan};
use crate::payload::Encoder;

type Result<T = (), E = CodecError> = std::result::Result<T, E>;

/// Writes to the end of a message.
pub(super) struct Serializer<'a> {
    pub(super) out: &'a mut Encoder,
}

impl Serializer<'_> {
    fn length(&mut self, length: Option<usize>) -> Result<usize> {
        let length = length.ok_or_else(|| {
            CodecError::new(
                "a sequence or map does not know its length (as with #[serde(flatten)]): postcard needs it",
            )
        })?;
        put_varint(self.out.buffer(), length as u64);
        Ok(length)
    }

    fn variant(&mut self, index: u32) {
        put_varint(self.out.buffer(), index.into());
    }
}

/// Maps negative numbers to odd ones, so that small ones are short.
fn zigzag(v: i64) -> u64 {
    ((v << 1) ^ (v >> 63)) as u64
}

impl<'s, 'a> ser::Serializer for &'s mut Serializer<'a> {
    type Ok = ();
    type Error = CodecError;
    type SerializeSeq = Sequence<'s, 'a>;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_bool(self, v: bool) -> Result {
        self.serialize_u8(v.into())
    }

    fn serialize_i8(self, v: i8) -> Result {
        self.serialize_u8(v as u8)
    }

    fn serialize_i16(self, v: i16) -> Result {
        self.serialize_i64(v.into())
    }

    fn serialize_i32(self, v: i32) -> Result {
        self.serialize_i64(v.into())
    }

    fn serialize_i64(self, v: i64) -> Result {
        self.serialize_u64(zigzag(v))
    }

    fn serialize_i128(self, v: i128) -> Result {
        self.serialize_u128(((v << 1) ^ (v >> 127)) as u128)
    }

    fn serialize_u8(self, v: u8) -> Result {
        self.out.put_slice(&[v]);
        Ok(())
    }

    fn serialize_u16(self, v: u16) -> Result {
        self.serialize_u64(v.into())
    }

    fn serialize_u32(self, v: u32) -> Result {
        self.serialize_u64(v.into())
    }

    fn serialize_u64(self, v: u64) -> Result {
        put_varint(self.out.buffer(), v);
        Ok(())
    }

    fn serialize_u128(self, mut v: u128) -> Result {
        while v >= 0x80 {
            self.out.put_slice(&[v as u8 | 0x80]);
            v >>= 7;
        }
        self.serialize_u8(v as u8)
    }

    fn serialize_f32(self, v: f32) -> Result {
        self.out.put_slice(&v.to_le_bytes());
        Ok(())
    }

    fn serialize_f64(self, v: f64) -> Result {
        self.out.put_slice(&v.to_le_bytes());
        Ok(())
    }

    fn serialize_char(self, v: char) -> Result {
        self.serialize_str(v.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, v: &str) -> Result {
        self.serialize_bytes(v.as_bytes())
    }

    fn serialize_bytes(self, v: &[u8]) -> Result {
        put_varint(self.out.buffer(), v.len() as u64);
        self.out.put_slice(v);
        Ok(())
    }

    fn serialize_none(self) -> Result {
        self.serialize_u8(0)
    }

    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> Result {
        self.out.put_slice(&[1]);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result {
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, index: u32, _: &'static str) -> Result {
        self.variant(index);
        Ok(())
    }

    fn serialize_newtype_struct<T: ?Sized + Serialize>(self, name: &'static str, value: &T) -> Result {
        if name == attachment::NAME
            && let Some(bytes) = attachment::take_over()
        {
            put_attachment(self.out, &bytes);
            return Ok(());
        }
        if let Some(loan) = loan::taken(name)
            && !self.out.lend(loan)
        {
            return Err(CodecError::new("memory is lent in arguments of calls only"));
        }
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: ?Sized + Serialize>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Result {
        self.variant(index);
        value.serialize(self)
    }

    #[inline]
    fn serialize_seq(self, length: Option<usize>) -> Result<Sequence<'s, 'a>> {
        let length = self.length(length)?;
        Ok(Sequence::new(self, length))
    }

    fn serialize_tuple(self, _: usize) -> Result<Self> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self> {
        Ok(self)
    }

    fn serialize_tuple_variant(self, _: &'static str, index: u32, _: &'static str, _: usize) -> Result<Self> {
        self.variant(index);
        Ok(self)
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Self> {
        self.length(length)?;
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self> {
        self.variant(index);
        Ok(self)
    }
}

/// A field that is left out would move all that follow it to where the receiver looks for another.
fn skipped(field: &'static str) -> CodecError {
    CodecError::custom(format_args!(
        "the field `{field}` was skipped: postcard has no place for an absent field, so make it an `Option` and remove \
         #[serde(skip_serializing_if)]"
    ))
}

/// The elements of every compound value follow each other with nothing between or after them.
macro_rules! elements {
    ($($kind:ident::$method:ident),*) => {$(
        impl ser::$kind for &mut Serializer<'_> {
            type Ok = ();
            type Error = CodecError;

            fn $method<T: ?Sized + Serialize>(&mut self, value: &T) -> Result {
                value.serialize(&mut **self)
            }

            fn end(self) -> Result {
                Ok(())
            }
        }
    )*};
}

macro_rules! fields {
    ($($kind:ident),*) => {$(
        impl ser::$kind for &mut Serializer<'_> {
            type Ok = ();
            type Error = CodecError;

            fn serialize_field<T: ?Sized + Serialize>(&mut self, _: &'static str, value: &T) -> Result {
                value.serialize(&mut **self)
            }

            fn skip_field(&mut self, field: &'static str) -> Result {
                Err(skipped(field))
            }

            fn end(self) -> Result {
                Ok(())
            }
        }
    )*};
}

elements!(
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field
);
fields!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for &mut Serializer<'_> {
    type Ok = ();
    type Error = CodecError;

    fn serialize_key<T: ?Sized + Serialize>(&mut self, key: &T) -> Result {
        key.serialize(&mut **self)
    }

    fn serialize_value<T: ?Sized + Serialize>(&mut self, value: &T) -> Result {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result {
        Ok(())
    }
}
