//! farcall's protocol without I/O: bytes go in, frames and decisions come out.
//!
//! For those who work on farcall; applications use the crate `farcall`. The crate has no task, socket, lock, clock or global, and
//! no `unsafe` code: time and buffers are arguments. `clippy.toml` names the types that may not appear. So each part runs alone:
//! in a unit test, under Miri, under a fuzzer, or in the seeded simulation of two peers. `docs/WIRE.md` specifies the bytes.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`wire`] | The bytes of every frame |
//! | [`outbox`], [`inbox`] | The sending and the receiving half of a session: numbers, fragments, acknowledgements |
//! | [`upgrade_state`], [`session`] | Moving a session between its links |
//! | [`stream`] | Flow control of a call's streams |
//! | [`message`], [`payload`] | What is sent: a message, and the content that a codec makes and reads |
//! | [`codec`] | How values become a content: Postcard, Prost, Raw |
//! | [`compress`] | Compression of a content |
//! | [`metadata`], [`status`], [`details`] | What goes with a call beside its content |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod codec;
pub mod compress;
pub mod compression;
#[cfg(feature = "prost")]
pub mod details;
pub mod inbox;
pub mod leftovers;
pub mod message;
pub mod metadata;
pub mod outbox;
pub mod payload;
pub mod session;
/// Left out in Miri, which would take days for all these states. Nothing there is `unsafe`.
#[cfg(test)]
#[cfg(not(miri))]
mod sim;
pub mod small_frames;
pub mod status;
pub mod stream;
pub mod text;
pub mod upgrade_state;
pub mod wire;

/// Returns the rounds of a test with random input: `all`, or a few of them in Miri, which takes a thousand times as long.
#[cfg(test)]
fn rounds(all: usize) -> usize {
    if cfg!(miri) { all.div_ceil(500) } else { all }
}
