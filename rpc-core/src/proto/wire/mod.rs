//! The bytes of every frame. `docs/WIRE.md` is the specification; this module is its only implementation.
//!
//! One frame type a struct, each with `encode` and `decode`. Decoding never panics, never allocates more than it
//! was given bytes, and refuses what it does not understand with a [`WireError`] that says where.

mod bind;
mod content;
mod control;
mod header;
mod hello;
mod read;
#[cfg(test)]
mod tests;

pub use bind::{Bind, BindMethod};
pub use content::{Content, REQUEST_PREFIX, RequestHead, ResponseHead, Verdict, decode_status, encode_status};
pub use control::{
    Answer, Cancel, Close, CloseCode, Credit, CreditOp, Done, Down, End, EndReason, Goaway, Offer, Probe, Pull, Up,
    Window,
};
pub use header::{FrameType, HEADER_LEN, Header, flags};
pub use hello::{Hello, PREFACE, Upgrade, VERSION, features};
pub use read::{Reader, WireError};
