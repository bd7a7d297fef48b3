//! Any serde type, in the format of the `postcard` crate.
//!
//! The format is that crate's, byte for byte; serializer and deserializer are our own for what it leaves to the
//! application. A peer's message can nest values, or announce elements that take no bytes, until the stack or the
//! patience ends: both are limited here. And byte strings can travel beside the message.

mod de;
mod ser;

use std::any::Any;

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Codec, CodecError, Decode, Encode, Shape};
use crate::payload::{BY_REFERENCE, Decoder, Encoder};

/// The default codec: any type with serde's `Serialize` and `Deserialize`, in the compact binary format
/// [postcard](https://postcard.jamesmunns.com).
///
/// - Arguments are encoded one after the other.
/// - An argument or result that is `Bytes`, `Option<Bytes>` or `Vec<Bytes>` is not copied: long ones are sent by
///   reference, and all but short ones are views of the receive buffer on arrival. For fields of structs see
///   [`attachment`](super::attachment); without it they are copied.
/// - A `Vec<u8>` that is an argument or a result is copied as a whole. In other types, serde hands over its elements one by one,
///   which takes some ten times as long: a `Bytes` with [`attachment`](super::attachment) takes less.
/// - The format has no names in it, so what both sides think it means must be the same, which the fingerprint of the
///   method's signature holds; see [`Shape`].
/// - It can't carry what asks the message for its type: `#[serde(untagged)]`, `#[serde(tag = ..)]`,
///   `#[serde(flatten)]`. Nor `#[serde(skip_serializing_if = ..)]`: a skipped field is an error, not a misread message.
/// - Values may be nested 128 deep (a struct in an `Option` counts as two).
#[derive(Debug)]
pub enum Postcard {}

impl Codec for Postcard {
    const NAME: &'static str = "postcard";
}

impl<T: Serialize + 'static> Encode<T> for Postcard {
    fn encode(value: &T, out: &mut Encoder) -> Result<(), CodecError> {
        let value_any: &dyn Any = value;
        if let Some(bytes) = value_any.downcast_ref::<Bytes>() {
            put_attachment(out, bytes);
        } else if let Some(option) = value_any.downcast_ref::<Option<Bytes>>() {
            out.put_slice(&[u8::from(option.is_some())]);
            option.iter().for_each(|bytes| put_attachment(out, bytes));
        } else if let Some(many) = value_any.downcast_ref::<Vec<Bytes>>() {
            put_varint(out.buffer(), many.len() as u64);
            many.iter().for_each(|bytes| put_attachment(out, bytes));
        } else if let Some(bytes) = value_any.downcast_ref::<Vec<u8>>() {
            put_varint(out.buffer(), bytes.len() as u64);
            out.put_slice(bytes);
        } else {
            value.serialize(&mut ser::Serializer { out })?;
        }
        Ok(())
    }
}

impl<T: DeserializeOwned + 'static> Decode<T> for Postcard {
    fn decode(input: &mut Decoder) -> Result<T, CodecError> {
        let mut value: Option<T> = None;
        let value_any: &mut dyn Any = &mut value;
        if let Some(bytes) = value_any.downcast_mut::<Option<Bytes>>() {
            *bytes = de::short_attachment(input);
            if bytes.is_none() {
                *bytes = Some(de::attachment(input)?);
            }
            return value.ok_or_else(nothing);
        }
        let mut from = de::Deserializer::new(input);
        let value_any: &mut dyn Any = &mut value;
        if let Some(option) = value_any.downcast_mut::<Option<Option<Bytes>>>() {
            *option = Some(if from.present()? { Some(from.attachment()?) } else { None });
        } else if let Some(many) = value_any.downcast_mut::<Option<Vec<Bytes>>>() {
            *many = Some(from.attachments()?);
        } else if let Some(bytes) = value_any.downcast_mut::<Option<Vec<u8>>>() {
            let length = from.length_of_copy()?;
            *bytes = Some(from.bytes(length, de::copy)?);
        } else {
            value = Some(T::deserialize(&mut from)?);
        }
        from.finish();
        value.ok_or_else(nothing)
    }

    fn shape(shape: &mut Shape) {
        let none: &dyn Any = &None::<T>;
        if none.is::<Option<Bytes>>() {
            shape.opaque("attachment");
        } else if none.is::<Option<Option<Bytes>>>() {
            shape.opaque("option<attachment>");
        } else if none.is::<Option<Vec<Bytes>>>() {
            shape.opaque("[attachment]");
        } else {
            shape.trace::<T>();
        }
    }
}

#[cold]
fn nothing() -> CodecError {
    CodecError::new("nothing was decoded")
}

/// Writes a byte string: its length with a 0 bit below and then itself, or, if it is long, the index with a 1 bit below
/// of the attachment that it becomes.
#[inline]
fn put_attachment(out: &mut Encoder, bytes: &Bytes) {
    if bytes.len() > BY_REFERENCE {
        return attach(out, bytes.clone());
    }
    let out = out.buffer();
    put_varint(out, (bytes.len() as u64) << 1);
    out.extend_from_slice(bytes);
}

#[cold]
fn attach(out: &mut Encoder, bytes: Bytes) {
    let index = out.attach(bytes);
    put_varint(out.buffer(), (index as u64) << 1 | 1);
}

/// Writes seven bits a byte, the lowest first; all but the last byte have the highest bit set.
#[inline(always)]
fn put_varint(out: &mut BytesMut, value: u64) {
    match value {
        0..0x80 => out.extend_from_slice(&[value as u8]),
        0x80..0x4000 => out.extend_from_slice(&[value as u8 | 0x80, (value >> 7) as u8]),
        _ => put_long_varint(out, value),
    }
}

fn put_long_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.extend_from_slice(&[value as u8 | 0x80]);
        value >>= 7;
    }
    out.extend_from_slice(&[value as u8]);
}

#[cfg(test)]
mod tests;
