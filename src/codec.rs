//! Codecs: how arguments, results and errors become bytes.
//!
//! | codec | carries | sent and received without a copy | its types may change |
//! |---|---|---|---|
//! | [`Postcard`] (default) | any serde type, any number of arguments | arguments and results that are [`Bytes`](crate::Bytes); fields marked with [`attachment`] | as `docs/EVOLUTION.md` says |
//! | [`Prost`] | one `prost::Message` | `bytes` fields generated as [`Bytes`](crate::Bytes) | as protobuf allows |
//! | [`Raw`] | one [`Bytes`](crate::Bytes) | all of it | as the application allows |
//!
//! Byte strings up to [`BY_REFERENCE`] are copied all the same where that is cheaper.
//!
//! A service chooses one with `#[farcall::service(codec = ..)]`.
//!
//! # Writing one
//!
//! A codec is a type without values that implements [`Codec`], and [`Encode`] and [`Decode`] for what it carries:
//! every argument, result and error type of the services that use it, and [`Status`](crate::Status), which is most
//! simply left to [`Postcard`].
//!
//! ```
//! use farcall::codec::{Codec, CodecError, Decode, Decoder, Encode, Encoder, Postcard, Shape};
//! use farcall::{Result, Status};
//!
//! /// One `String`, as it is.
//! pub enum Text {}
//!
//! impl Codec for Text {
//!     const NAME: &'static str = "text";
//!     // A text does not say where it ends, so nothing can follow it.
//!     const ARGUMENTS: usize = 1;
//! }
//!
//! impl Encode<String> for Text {
//!     fn encode(value: &String, out: &mut Encoder) -> Result<(), CodecError> {
//!         out.put_slice(value.as_bytes());
//!         Ok(())
//!     }
//! }
//!
//! impl Decode<String> for Text {
//!     fn decode(input: &mut Decoder) -> Result<String, CodecError> {
//!         let text = str::from_utf8(input.rest()).map_err(|e| CodecError::new(e.to_string()))?.to_owned();
//!         input.advance(text.len());
//!         Ok(text)
//!     }
//!
//!     fn shape(shape: &mut Shape) {
//!         shape.opaque("text");
//!     }
//! }
//!
//! impl Encode<Status> for Text {
//!     fn encode(value: &Status, out: &mut Encoder) -> Result<(), CodecError> {
//!         Postcard::encode(value, out)
//!     }
//! }
//!
//! impl Decode<Status> for Text {
//!     fn decode(input: &mut Decoder) -> Result<Status, CodecError> {
//!         Postcard::decode(input)
//!     }
//!
//!     fn shape(shape: &mut Shape) {
//!         <Postcard as Decode<Status>>::shape(shape);
//!     }
//! }
//!
//! #[farcall::service(codec = Text)]
//! pub trait Loud {
//!     async fn louder(&self, text: String) -> Result<String>;
//! }
//!
//! struct Upper;
//!
//! impl Loud for Upper {
//!     async fn louder(&self, text: String) -> Result<String> {
//!         Ok(text.to_uppercase())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! let client = LoudClient::in_process(Upper);
//! assert_eq!(client.louder("hello").await?, "HELLO");
//! # Ok(())
//! # }
//! ```
//!
//! A codec for every type with some trait implements `Encode<T>` for all `T` with it. If the trait is serde's
//! `Serialize`, it covers `Status`. Implement a trait of your own for `Status`, too. (Both `impl<T: Display> Encode<T>`
//! and `impl Encode<Status>` can't be: `Status` might be either.)
//!
//! [`to_payload`] and [`from_payload`] turn one value into a message and back, for tests of a codec.

#[doc(inline)]
pub use farcall_core::codec::*;
