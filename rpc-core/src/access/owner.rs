//! The owner's side of accesses.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};

use super::{Accesses, MOST, exports};
use crate::memory::{Gauge, Use};
use crate::payload::{Encoder, Payload};
use crate::proto::wire::{Access, FrameType, Operation, Outcome, Target, WireError};

/// Accesses to more bytes are done in tasks of their own, because they take long. Bytes.
const LONG: usize = 64 << 10;

/// An operation on a number of eight bytes, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    CompareAndSwap { expected: u64, new: u64 },
    FetchAdd(u64),
}

impl Atomic {
    /// Returns what the operation makes of a value.
    pub(crate) fn apply(self, value: u64) -> u64 {
        match self {
            Self::CompareAndSwap { expected, new } if value == expected => new,
            Self::CompareAndSwap { .. } => value,
            Self::FetchAdd(add) => value.wrapping_add(add),
        }
    }
}

impl From<Atomic> for Operation {
    fn from(atomic: Atomic) -> Self {
        match atomic {
            Atomic::CompareAndSwap { expected, new } => Self::CompareAndSwap { expected, new },
            Atomic::FetchAdd(add) => Self::FetchAdd(add),
        }
    }
}

/// Memory that the peer may access. Each method does nothing where it returns an error. An access that is not allowed is
/// [`Forbidden`](Outcome::Forbidden).
pub(crate) trait Memory: fmt::Debug + Send + Sync {
    /// Reads a range, as pieces one after the other.
    fn read(&self, offset: usize, len: usize) -> Result<Vec<Bytes>, Outcome>;

    /// Writes to a range.
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Outcome>;

    /// Does an operation on a number. Returns the value before it.
    fn atomic(&self, offset: usize, atomic: Atomic) -> Result<u64, Outcome>;
}

impl Accesses {
    /// Serves an access of the peer, here or in a task if that may take long.
    pub(crate) fn serve(&self, number: u64, access: Access) -> Result<(), WireError> {
        if self.serving.fetch_add(1, Ordering::AcqRel) >= MOST {
            return Err(WireError::new("access", "is one of too many at once"));
        }
        let bytes = match &access.operation {
            Operation::Read(len) => *len as usize,
            Operation::Write(bytes) => bytes.len(),
            Operation::CompareAndSwap { .. } | Operation::FetchAdd(_) => 0,
        };
        let Some(this) = self.me.upgrade().filter(|_| bytes > LONG) else {
            self.answer(number, access);
            return Ok(());
        };
        let gauge = Gauge::holding(self.sender.account(), Use::Arguments, bytes);
        self.runtime.spawn(async move {
            this.answer(number, access);
            drop(gauge);
        });
        Ok(())
    }

    /// Refuses a write for whose bytes this side had no memory.
    pub(crate) fn refuse(&self, number: u64) {
        self.send(FrameType::ACCESSED, number, head(Outcome::NoMemory), Payload::default());
    }

    fn answer(&self, number: u64, access: Access) {
        let (outcome, payload) = match self.done(access) {
            Ok(payload) => (Outcome::Done, payload),
            Err(outcome) => (outcome, Payload::default()),
        };
        // Before the peer can know that it may start another.
        self.serving.fetch_sub(1, Ordering::AcqRel);
        self.send(FrameType::ACCESSED, number, head(outcome), payload);
    }

    fn done(&self, access: Access) -> Result<Payload, Outcome> {
        let memory = self.find(access.target)?;
        let offset = usize::try_from(access.offset).map_err(|_| Outcome::OutOfRange)?;
        let value = match access.operation {
            Operation::Read(len) => {
                let mut bytes = Encoder::new();
                memory.read(offset, len as usize)?.iter().for_each(|piece| bytes.put_bytes(piece));
                return Ok(bytes.finish());
            }
            Operation::Write(bytes) => return memory.write(offset, &bytes).map(|()| Payload::default()),
            Operation::CompareAndSwap { expected, new } => {
                memory.atomic(offset, Atomic::CompareAndSwap { expected, new })?
            }
            Operation::FetchAdd(add) => memory.atomic(offset, Atomic::FetchAdd(add))?,
        };
        Ok(Payload::from_body(Bytes::copy_from_slice(&value.to_le_bytes())))
    }

    fn find(&self, target: Target) -> Result<Arc<dyn Memory>, Outcome> {
        match target {
            Target::Loan(number) => {
                let lent = self.lent.lock().get(&number).map(super::lending::Entry::memory);
                lent.map(|memory| memory as Arc<dyn Memory>).ok_or(Outcome::Gone)
            }
            Target::Region { number, key } => exports::find(number, key).ok_or(Outcome::Gone),
        }
    }
}

fn head(outcome: Outcome) -> Bytes {
    BytesMut::from(&[outcome as u8][..]).freeze()
}
