//! The owner's side of accesses.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, watch};

use super::giving::GivenGrant;
use super::lending::OnLoan;
use super::{Accesses, HEAD, MOST, PIECE, exports};
use crate::memory::{Gauge, Use};
use crate::payload::{Encoder, MemoryGrant, Payload};
use crate::proto::wire::{Access, FrameType, Operation, Outcome, Target, WireError};
use crate::status::{Blame, Code, Executed, Status};
use crate::transport::words::WORD;
use crate::transport::{Atomic, BoxFuture, DeviceAtomics, Words};

/// Accesses to more bytes are done in tasks of their own, because they take long. Bytes.
const LONG: usize = 64 << 10;

/// Returns the room that bytes take, in kibibytes: at least one, and no more than a semaphore has permits on any machine.
pub(super) fn room_of(bytes: u64) -> u32 {
    bytes.div_ceil(1 << 10).clamp(1, u64::from(u32::MAX >> 3)) as u32
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
    fn write(&self, offset: usize, bytes: Bytes) -> Result<(), Outcome>;
}

/// Memory that is exported, with its numbers.
pub(crate) trait ExportedMemory: Memory {
    /// Does an operation on a number. Returns the value before it.
    fn atomic(self: Arc<Self>, offset: usize, atomic: Atomic) -> Result<Progress<u64>, Outcome>;

    /// Writes a number, whole.
    fn store(self: Arc<Self>, offset: usize, number: u64) -> Result<Progress<()>, Outcome>;

    /// Returns the memory for peers to use by themselves.
    fn offered(&self) -> Result<Offered, Outcome>;

    /// Returns the device that changes the memory's numbers, if one does.
    fn device(&self) -> Option<Arc<dyn DeviceAtomics>>;

    /// Has a device change the memory's numbers from now on, at least until these ends, when a peer or this process can have it do so no
    /// more. Returns whether it does: not if another does, or it has failed.
    fn entrust(&self, device: Arc<dyn DeviceAtomics>, ends: Vec<watch::Receiver<()>>) -> bool;

    /// Keeps a grant, to end it when the memory is no longer exported. Returns the grant if that is so already.
    fn keep(self: Arc<Self>, grant: GivenGrant) -> Result<(), GivenGrant>;
}

/// Memory that peers may use by themselves, and what they may do.
pub(crate) struct Offered {
    pub(crate) words: Words,
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) atomics: bool,
}

/// The progress of an access: done, or under way in a device.
pub(crate) enum Progress<T> {
    Done(T),
    ByDevice(BoxFuture<Result<T, Outcome>>),
}

impl<T: Send + 'static> Progress<T> {
    /// Does something with the result.
    fn then<U>(self, next: impl FnOnce(T) -> U + Send + 'static) -> Progress<U> {
        match self {
            Self::Done(result) => Progress::Done(next(result)),
            Self::ByDevice(result) => Progress::ByDevice(Box::pin(async move { result.await.map(next) })),
        }
    }
}

impl Accesses {
    /// Serves an access of the peer, here or in a task if that may take long.
    pub(crate) fn serve(&self, number: u64, access: Access) -> Result<(), WireError> {
        self.begin_serving(number)?;
        let bytes = match &access.operation {
            Operation::Read(len) => *len as usize,
            Operation::Write(bytes) if bytes.len() > PIECE => {
                return Err(WireError::new("access.bytes", "are more than 1 MiB"));
            }
            Operation::Write(bytes) => bytes.len(),
            Operation::CompareAndSwap { .. } | Operation::FetchAdd(_) => 0,
            Operation::Grant | Operation::Withdraw if !self.grants() => {
                return Err(WireError::new("access.operation", "is not one that was agreed on"));
            }
            Operation::Grant => return self.serve_grant(number, access.target),
            Operation::Withdraw => return self.serve_withdrawal(number, access.target),
            // `noted` takes both.
            Operation::Offer(_) | Operation::Return => return Ok(()),
        };
        let earlier = match access.operation {
            Operation::Write(_) => self.grants_for_earlier_links(),
            _ => Vec::new(),
        };
        let takes_long = bytes > LONG || !earlier.is_empty();
        let Some(this) = self.me.upgrade().filter(|_| takes_long) else {
            self.answer(number, access);
            return Ok(());
        };
        let terms = self.sender.terms();
        if terms.peer().is_some_and(|peer| bytes as u64 > peer.max_message - HEAD) {
            self.refuse_with(number, Outcome::OutOfRange);
            return Ok(());
        }
        // The bytes of a write are here. Those of a read come when there is room.
        let (now, later) = if let Operation::Write(_) = access.operation { (bytes, 0) } else { (0, bytes) };
        let mut gauge = Gauge::new(self.sender.account(), Use::Arguments);
        if !gauge.grow(now) {
            self.refuse_with(number, Outcome::NoMemory);
            return Ok(());
        }
        self.runtime.spawn(async move {
            for mut in_effect in earlier {
                // Fails when the grant has no effect any more.
                let _ = in_effect.changed().await;
            }
            // Others keep theirs until their answers have left. So a peer that reads no answers gets no more of them. An error means that
            // the connection has ended.
            let Ok(room) = this.room_for(bytes).await else { return };
            if gauge.grow(later) {
                this.serving.lock().insert(number, Some(room));
                this.answer(number, access);
            } else {
                this.refuse_with(number, Outcome::NoMemory);
            }
        });
        Ok(())
    }

    /// Waits for room for the bytes of an access.
    async fn room_for(&self, bytes: usize) -> Result<OwnedSemaphorePermit, AcquireError> {
        let all = room_of(self.sender.terms().settings.limits.max_assembly);
        Arc::clone(&self.room).acquire_many_owned(room_of(bytes as u64).min(all)).await
    }

    /// Refuses a write for whose bytes this side had no memory.
    pub(crate) fn refuse(&self, number: u64) -> Result<(), WireError> {
        self.begin_serving(number)?;
        self.refuse_with(number, Outcome::NoMemory);
        Ok(())
    }

    fn begin_serving(&self, number: u64) -> Result<(), WireError> {
        let mut serving = self.serving.lock();
        if serving.len() >= MOST {
            return Err(WireError::new("access", "exceeds the limit of 64 accesses at once"));
        }
        if serving.insert(number, None).is_some() {
            return Err(WireError::new("access.call", "is in use"));
        }
        Ok(())
    }

    fn refuse_with(&self, number: u64, outcome: Outcome) {
        self.send(FrameType::ACCESSED, number, head(outcome), Payload::default());
    }

    fn answer(&self, number: u64, access: Access) {
        match self.done(access) {
            Ok(Progress::Done(payload)) => self.answer_with(number, Ok(payload)),
            Ok(Progress::ByDevice(payload)) => {
                let Some(this) = self.me.upgrade() else { return };
                self.runtime.spawn(async move { this.answer_with(number, payload.await) });
            }
            Err(outcome) => self.refuse_with(number, outcome),
        }
    }

    pub(super) fn answer_with(&self, number: u64, done: Result<Payload, Outcome>) {
        match done {
            Ok(payload) => self.send(FrameType::ACCESSED, number, head(Outcome::Done), payload),
            Err(outcome) => self.refuse_with(number, outcome),
        }
    }

    fn done(&self, access: Access) -> Result<Progress<Payload>, Outcome> {
        let Access { target, offset, operation } = access;
        let offset = usize::try_from(offset).map_err(|_| Outcome::OutOfRange)?;
        match target {
            Target::Loan { call, number } => {
                let loan = self.lent.lock().get(&(call, number)).cloned().ok_or(Outcome::Gone)?;
                match operation {
                    Operation::Read(len) => read_loan(&loan, offset, len as usize),
                    operation => loan.access(|memory| operate(memory, offset, operation)),
                }
                .map(Progress::Done)
            }
            Target::Region { number, key } => {
                operate_exported(exports::find(number, key).ok_or(Outcome::Gone)?, offset, operation)
            }
        }
    }
}

/// Reads memory that is lent. The end of the loan waits for one piece at most.
fn read_loan(loan: &OnLoan, offset: usize, len: usize) -> Result<Payload, Outcome> {
    let (mut bytes, mut begin) = (Encoder::new(), 0);
    loop {
        let piece = PIECE.min(len - begin);
        let read = loan.access(|memory| memory.read(offset.saturating_add(begin), piece))?;
        read.iter().for_each(|piece| bytes.put_bytes(piece));
        begin += piece;
        if begin == len {
            return Ok(bytes.finish());
        }
    }
}

/// Does an access to any memory.
fn operate(memory: &dyn Memory, offset: usize, operation: Operation) -> Result<Payload, Outcome> {
    match operation {
        Operation::Read(len) => {
            let mut bytes = Encoder::new();
            memory.read(offset, len as usize)?.iter().for_each(|piece| bytes.put_bytes(piece));
            Ok(bytes.finish())
        }
        Operation::Write(bytes) => memory.write(offset, bytes).map(|()| Payload::default()),
        _ => Err(Outcome::Forbidden),
    }
}

/// Does an access to exported memory.
fn operate_exported(
    memory: Arc<dyn ExportedMemory>,
    offset: usize,
    operation: Operation,
) -> Result<Progress<Payload>, Outcome> {
    let atomic = match operation {
        Operation::CompareAndSwap { expected, new } => Atomic::CompareAndSwap { expected, new },
        Operation::FetchAdd(add) => Atomic::FetchAdd(add),
        Operation::Write(bytes) if bytes.len() == WORD && offset.is_multiple_of(WORD) => {
            return Ok(memory.store(offset, super::number(&bytes))?.then(|()| Payload::default()));
        }
        other => return operate(&*memory, offset, other).map(Progress::Done),
    };
    let payload = |before: u64| Payload::from_body(Bytes::copy_from_slice(&before.to_le_bytes()));
    Ok(memory.atomic(offset, atomic)?.then(payload))
}

fn head(outcome: Outcome) -> Bytes {
    BytesMut::from(&[outcome as u8][..]).freeze()
}

/// Returns the status of an access of the owner that failed.
pub(crate) fn failed(outcome: Outcome) -> Status {
    let (code, why) = match outcome {
        Outcome::OutOfRange => {
            (Code::OutOfRange, "the access is not within the region, or its number is not at a multiple of 8")
        }
        Outcome::NoMemory => (Code::ResourceExhausted, "there is no memory for the copy"),
        Outcome::Unknown => {
            let why = "the RDMA device that changes this region's numbers has failed meanwhile; the operation may have been done";
            let status = Status::new(Code::Unavailable, why).with_blame(Blame::Environment);
            return status.with_executed(Executed::Maybe);
        }
        _ => (Code::FailedPrecondition, "the region was revoked"),
    };
    Status::new(code, why).with_blame(Blame::Application).with_executed(Executed::No)
}
