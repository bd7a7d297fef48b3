//! Compression of messages: the choice of a handler, and the memory that each thread keeps for it.

mod unpacking;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU8, Ordering};

pub use farcall_proto::compress::Compression;
use farcall_proto::compress::{self, Workspace};
pub(crate) use farcall_proto::compress::{CantUnpack, LONG, MIN};

pub(crate) use self::unpacking::{Room, Unpacking};
use crate::payload::Payload;

thread_local! {
    /// The workspace of the thread. Zstandard's contexts are large, and can be reused for its next message.
    static WORKSPACE: RefCell<Workspace> = const { RefCell::new(Workspace::new()) };
}

/// Compresses a payload. `None` if it does not shrink enough, or has a part of 4 GiB.
pub(crate) fn pack(by: Compression, payload: &Payload) -> Option<Payload> {
    WORKSPACE.with_borrow_mut(|workspace| compress::pack(workspace, by, payload))
}

/// Decompresses a payload. This takes as much memory as the payload declares; the caller has checked that this is
/// allowed.
pub(crate) fn unpack(payload: Payload) -> Result<Payload, CantUnpack> {
    WORKSPACE.with_borrow_mut(|workspace| compress::unpack(workspace, payload))
}

/// A [`Compression`] that may not be chosen yet. It can be changed while others read it.
#[derive(Debug)]
pub(crate) struct Choice(AtomicU8);

/// No choice yet: not the number of any compression.
const NONE_YET: u8 = u8::MAX;

impl Choice {
    pub(crate) fn new(chosen: Option<Compression>) -> Self {
        Self(AtomicU8::new(chosen.map_or(NONE_YET, Compression::to_wire)))
    }

    pub(crate) fn set(&self, chosen: Compression) {
        self.0.store(chosen.to_wire(), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Option<Compression> {
        Compression::from_wire(self.0.load(Ordering::Relaxed))
    }
}
