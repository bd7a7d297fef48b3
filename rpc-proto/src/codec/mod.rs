//! Codecs: how arguments, results and errors become bytes.
//!
//! Applications know this module as `farcall::codec`, whose documentation compares the codecs and shows how to write
//! another.

pub mod attachment;
pub mod loan;
mod once;
mod postcard;
#[cfg(feature = "prost")]
mod prost;
mod raw;
mod shape;

use std::borrow::Cow;
use std::fmt;

pub use self::once::EncodedOnce;
pub use self::postcard::Postcard;
#[cfg(feature = "prost")]
pub use self::prost::Prost;
pub use self::raw::Raw;
pub use self::shape::Shape;
pub use crate::payload::{BY_REFERENCE, Decoder, Encoder, Payload, TooLarge};

/// A way to turn values into messages: a type without values that implements [`Encode`] and [`Decode`] for what it
/// can carry.
///
/// A service's codec [carries](Carry) every argument, result and error type of the service, and
/// [`Status`](crate::status::Status), the error type of methods that have none of their own; although a status that
/// ends a call travels outside the codec. The module `farcall::codec` shows a complete one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a codec",
    label = "not a codec",
    note = "farcall has `Postcard` (the default), `Prost` and `Raw`; a type becomes a codec by implementing \
            `farcall::codec::Codec`"
)]
pub trait Codec: Send + Sync + 'static {
    /// Its name on the wire: peers with different codecs refuse each other.
    const NAME: &'static str;

    /// How many arguments a method can have. A codec whose messages do not end by themselves takes one; the name
    /// of that argument is then no part of a method's signature.
    const ARGUMENTS: usize = usize::MAX;
}

/// A codec that can send a `T`.
#[diagnostic::on_unimplemented(
    message = "the codec `{Self}` can't send `{T}`",
    label = "can't be sent with this codec"
)]
pub trait Encode<T>: Codec {
    /// Appends `value` to a message. An error ends the call with INTERNAL before anything is sent.
    fn encode(value: &T, out: &mut Encoder) -> Result<(), CodecError>;
}

/// A codec that can receive a `T`.
#[diagnostic::on_unimplemented(
    message = "the codec `{Self}` can't receive `{T}`",
    label = "can't be received with this codec"
)]
pub trait Decode<T>: Codec {
    /// Takes the next value from a message. The message may be anything: it must not panic, nor reserve more memory
    /// than a small multiple of what the message has left. Where a value takes more memory than its bytes in the message,
    /// it is counted by [`Decoder::take_memory`].
    fn decode(input: &mut Decoder) -> Result<T, CodecError>;

    /// Describes `T` as this codec sees it. Two descriptions must differ if one side would misread what the other
    /// wrote, and be the same on every machine and in every build.
    fn shape(shape: &mut Shape);
}

/// A codec that can send and receive a `T`, as the codec of a service can with each type in it. Every codec is that is
/// [`Encode<T>`](Encode) and [`Decode<T>`](Decode).
#[diagnostic::on_unimplemented(
    message = "the codec `{Self}` can't carry `{T}`",
    label = "can't travel with this codec",
    note = "`Postcard`, the default, carries what has serde's traits, as all that is in it must: write \
            `#[derive(serde::Serialize, serde::Deserialize)]` above a type of your own; for a type of another crate look \
            for its feature `serde`",
    note = "`Prost` carries one `prost::Message`, `Raw` one `farcall::Bytes`"
)]
pub trait Carry<T>: Encode<T> + Decode<T> {}

#[diagnostic::do_not_recommend]
impl<T, C: Encode<T> + Decode<T>> Carry<T> for C {}

/// A message of one value.
pub fn to_payload<C: Encode<T>, T>(value: &T) -> Result<Payload, CodecError> {
    let mut out = Encoder::new();
    C::encode(value, &mut out)?;
    Ok(out.finish())
}

/// The one value of a message; anything after it is an error.
#[inline]
pub fn from_payload<C: Decode<T>, T>(payload: Payload) -> Result<T, CodecError> {
    let mut input = Decoder::new(payload);
    let value = C::decode(&mut input)?;
    all_read(&input)?;
    Ok(value)
}

/// Refuses a message with something left in it: its sender meant more by it than was understood.
#[inline]
pub fn all_read(input: &Decoder) -> Result<(), CodecError> {
    if input.is_finished() { Ok(()) } else { Err(left_over(input)) }
}

#[cold]
fn left_over(input: &Decoder) -> CodecError {
    match input.rest().len() {
        0 => CodecError::new("the message has attachments that nothing in it refers to"),
        n => CodecError::new(format!("the message has {n} bytes after its end")),
    }
}

/// Why a value could not be encoded or decoded. One word, for results that are returned once for each byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodecError(Box<Problem>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Problem {
    message: Cow<'static, str>,
    too_large: bool,
}

impl CodecError {
    /// Returns an error with a sentence for a person.
    pub fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Problem { message: message.into(), too_large: false }))
    }

    /// Whether the values of the message take more memory than they may. The message itself may be well-formed.
    pub fn is_too_large(&self) -> bool {
        self.0.too_large
    }
}

impl From<TooLarge> for CodecError {
    #[cold]
    fn from(too_large: TooLarge) -> Self {
        Self(Box::new(Problem { message: too_large.to_string().into(), too_large: true }))
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for CodecError {}

impl serde::ser::Error for CodecError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }
}

impl serde::de::Error for CodecError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }
}
