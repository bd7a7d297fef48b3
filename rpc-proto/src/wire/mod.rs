//! The bytes of every frame. `docs/WIRE.md` is the specification; this module is its only implementation.
//!
//! One frame type a struct, each with `encode` and `decode`. Decoding never panics, never allocates more than a small
//! multiple of what it was given, and refuses what it does not understand with a [`WireError`] that says where.
//! Encoding refuses with [`TooLong`] a content that has no room in its fields, for that comes from applications; the
//! buffer then holds a part of it. Where only a program's own code decides on a length, too much of it panics, as
//! documented there.

mod access;
mod bind;
mod content;
mod control;
mod frames;
mod header;
mod hello;
mod metadata;
mod read;
mod stream;
mod switch;
#[cfg(test)]
mod tests;
mod write;

pub use access::{Access, Accessed, Granted, Operation, Outcome, Target};
pub use bind::{Bind, BindMethod, MAX_BIND_BYTES, bind_has_room, counted_bind};
pub use content::{
    Content, MAX_ATTACHMENTS, PLAIN_REQUEST, PLAIN_RESPONSE, REQUEST_PREFIX, RequestHead, ResponseHead,
    ResponseKind, decode_status, encode_status,
};

pub use control::{Cancel, Close, CloseCode, Credit, CreditOp, Done, Goaway, Ping};
pub use frames::Frames;
pub use header::{FrameType, HEADER_LEN, Header, flags};
pub use hello::{Hello, MAX_ANNOUNCED, MAX_HELLO, MIN_LIMIT, PREFACE, Upgrade, VERSION, features};
pub use metadata::{decode_answer_metadata, decode_metadata, encode_answer_metadata, encode_metadata};
pub use read::{Reader, WireError, list_of};
pub use stream::{Batch, EndHead, EndReason, ItemHead, Items, Stop, Window};
pub use switch::{Answer, Down, MAX_SWITCH_DATA, Offer, Probe, Pull, Up};
pub use write::TooLong;
