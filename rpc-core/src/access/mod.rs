//! Accesses to memory of the other side of a connection (WIRE.md section 5.7).
//!
//! One side *starts* an access: it sends an ACCESS and waits for the ACCESSED. The other side *owns* the memory: its runtime does
//! the access. Either side can be either. Memory that a call lends is found by its number, as long as the call is in progress.

mod awaiting;
mod exports;
mod giving;
mod held;
mod lending;
mod local;
mod moving;
mod owner;
mod ranges;
mod taking;
mod under_way;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::{Bytes, BytesMut};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

pub(crate) use self::exports::{export, withdraw};
pub(crate) use self::giving::GivenGrant;
use self::giving::GivenGrants;
use self::held::counted;
use self::lending::OnLoan;
pub(crate) use self::lending::{Lending, LentMemory, Used, may_write};
use self::local::Turn;
pub(crate) use self::local::{LocalMemory, LocalRange, Transfers};
pub(crate) use self::owner::{ExportedMemory, Memory, Offered, Progress, failed};
pub(crate) use self::ranges::{check_number, check_range, range};
use self::taking::TakenGrants;
use crate::payload::Payload;
use crate::proto::message::Message;
use crate::proto::wire::{
    Access, Accessed, FrameType, Granted, Operation, Outcome, Target, WireError, features,
};
use crate::refusal::refusal;
use crate::session::{Role, Sender};
use crate::status::{Blame, Code, Executed, Status};
use crate::sync::{Mutex, rank};
use crate::transport::Atomic;

/// How many accesses a side has under way at once. Further ones wait.
const MOST: usize = 64;

/// How many mebibytes of transfers between the peer's memory and regions a device has to do at once. Further ones wait, so that a grant can
/// be taken back soon.
const MOST_MOVING: usize = 128;

/// Writes are cut into pieces of so many bytes, so that none holds up its receiver for long.
pub(crate) const PIECE: usize = 1 << 20;

/// The most bytes of an access's message besides those that it reads or writes.
const HEAD: u64 = 64;

/// The numbers of accesses have this bit, and those that a server starts have [`OF_SERVER`], too. So none is that of a call.
const OF_ACCESS: u64 = 1 << 62;

const OF_SERVER: u64 = 1 << 63;

/// The accesses of one connection, of either side.
#[derive(Debug)]
pub(crate) struct Accesses {
    me: Weak<Self>,
    sender: Arc<Sender>,
    runtime: Handle,
    /// Those that this side has started.
    started: Mutex<rank::Leaf, Started>,
    /// A permit for each of them.
    permits: Arc<Semaphore>,
    /// A permit for each mebibyte, or part of one, that this side's device moves between the peer's memory and regions.
    moving: Arc<Semaphore>,
    /// Notified when one is started.
    pub(crate) begun: Notify,
    /// Memory of the peer that this side may use by itself.
    taken: Mutex<rank::Leaf, TakenGrants>,
    /// Memory of this side that the peer may use by itself.
    given: Mutex<rank::Leaf, GivenGrants>,
    /// Memory that this side lends to the peer, by call and number.
    lent: Mutex<rank::Leaf, HashMap<(u64, u64), Arc<OnLoan>>>,
    /// How many operations the application has under way.
    operations: AtomicUsize,
    /// The accesses of the peer that have no answer that has left, by number, with the room that a long one has.
    serving: Mutex<rank::Leaf, HashMap<u64, Option<OwnedSemaphorePermit>>>,
    /// Room for the bytes of long ones, in kibibytes.
    room: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Started {
    /// The last number that was given.
    last: u64,
    /// Those that wait for their outcome, by number.
    waiting: HashMap<u64, Waiting>,
    /// The end of the connection, after which none is started.
    end: Option<Status>,
}

/// A started access. Its future may have been dropped.
#[derive(Debug)]
struct Waiting {
    /// How many bytes the outcome may have.
    len: RangeInclusive<usize>,
    outcome: oneshot::Sender<Result<Accessed, Status>>,
    _permit: OwnedSemaphorePermit,
}

impl Accesses {
    pub(crate) fn new(sender: Arc<Sender>, runtime: Handle) -> Arc<Self> {
        let room = owner::room_of(sender.terms().settings.limits.max_assembly);
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            sender,
            runtime,
            started: Mutex::default(),
            permits: Arc::new(Semaphore::new(MOST)),
            moving: Arc::new(Semaphore::new(MOST_MOVING)),
            begun: Notify::new(),
            taken: Mutex::default(),
            given: Mutex::default(),
            lent: Mutex::default(),
            operations: AtomicUsize::new(0),
            serving: Mutex::default(),
            room: Arc::new(Semaphore::new(room as usize)),
        })
    }

    /// Whether both sides take part.
    pub(crate) fn agreed(&self) -> bool {
        self.sender.terms().peer_has(features::ACCESS)
    }

    /// Whether both sides know grants.
    fn grants(&self) -> bool {
        self.sender.terms().peer_has(features::GRANTS)
    }

    /// Whether both sides know grants of loans.
    fn loan_grants(&self) -> bool {
        self.grants() && self.sender.terms().peer_has(features::LOAN_GRANTS)
    }

    /// Returns how many bytes one access can read.
    fn max_read(&self) -> u64 {
        self.sender.terms().settings.limits.max_message - HEAD
    }

    /// Returns how many bytes one access writes at most.
    fn longest_write(&self) -> usize {
        let max = self.sender.terms().peer().map_or(PIECE as u64, |peer| peer.max_message - HEAD);
        PIECE.min(max as usize)
    }

    /// Reads from the peer's memory. The caller has checked the range. The bytes count in the connection's account until they are dropped.
    pub(crate) async fn read(&self, target: Target, offset: u64, len: usize) -> Result<Bytes, Status> {
        let _under_way = self.begin_operation();
        match u32::try_from(len) {
            Ok(length) if u64::from(length) <= self.max_read() => {
                self.check_room(len)?;
                if let Some(begun) = self.read_directly(target, offset, len) {
                    // The link takes the memory at once.
                    let gauge = self.count(len);
                    if let Some(bytes) = begun.await {
                        return Ok(counted(bytes, gauge));
                    }
                }
                // Boxed, as in the others, so that the future of an access by the device is short.
                Box::pin(self.access(target, offset, Operation::Read(length), len)).await
            }
            _ => {
                let message = format!(
                    "a read of {len} bytes is longer than this side's limits.max_message allows, which is {}; read less at a time",
                    self.max_read()
                );
                Err(refusal(Code::InvalidArgument, message).with_blame(Blame::Application))
            }
        }
    }

    /// Writes to the peer's memory, in pieces that are under way at once. The caller has checked the range.
    pub(crate) async fn write(
        &self,
        target: Target,
        mut offset: u64,
        mut bytes: Bytes,
    ) -> Result<(), Status> {
        let _under_way = self.begin_operation();
        let mut in_vain = false;
        if let Some(begun) = self.write_directly(target, offset, &bytes) {
            if begun.await.is_some() {
                return Ok(());
            }
            in_vain = true;
        }
        let piece = self.longest_write();
        let mut outcomes = Vec::with_capacity(bytes.len().div_ceil(piece));
        // Other pieces than the one that failed may have been written, or all of them, by a link that has failed.
        let in_part = |status: Status, others: usize| match others {
            0 if !in_vain => status,
            _ => status.with_executed(Executed::Maybe),
        };
        while !bytes.is_empty() {
            let piece = bytes.split_to(piece.min(bytes.len()));
            let len = piece.len() as u64;
            let started = self.start(target, offset, Operation::Write(piece), 0..=0).await;
            outcomes.push(started.map_err(|status| in_part(status, outcomes.len()))?);
            offset = offset.saturating_add(len);
        }
        let others = outcomes.len().saturating_sub(1);
        for outcome in outcomes {
            self.outcome(target, outcome).await.map_err(|status| in_part(status, others))?;
        }
        Ok(())
    }

    /// Sets eight bytes of the peer's memory. Their owner does it, whole: a device need not.
    pub(crate) async fn store(&self, target: Target, offset: u64, value: u64) -> Result<(), Status> {
        let _under_way = self.begin_operation();
        let bytes = Bytes::copy_from_slice(&value.to_le_bytes());
        let outcome = self.start(target, offset, Operation::Write(bytes), 0..=0).await?;
        self.outcome(target, outcome).await.map(drop)
    }

    /// Returns the value of eight bytes of the peer's memory, read whole.
    pub(crate) async fn load(&self, target: Target, offset: u64) -> Result<u64, Status> {
        const LEN: usize = size_of::<u64>();
        let _under_way = self.begin_operation();
        // An addition reads the number whole. A device that only reads need not.
        let rights = Granted::READ | Granted::ATOMICS;
        if let Some(begun) = self.change_directly(target, offset, Atomic::FetchAdd(0), rights)
            && let Some(value) = begun.await
        {
            return Ok(value);
        }
        Ok(number(&Box::pin(self.access(target, offset, Operation::Read(LEN as u32), LEN)).await?))
    }

    /// Does an operation on eight bytes of the peer's memory. Returns the value before it.
    pub(crate) async fn atomic(&self, target: Target, offset: u64, atomic: Atomic) -> Result<u64, Status> {
        let _under_way = self.begin_operation();
        let Some(begun) = self.change_directly(target, offset, atomic, Granted::ATOMICS) else {
            let access = self.access(target, offset, atomic.into(), size_of::<u64>());
            return Ok(number(&Box::pin(access).await?));
        };
        begun.await.ok_or_else(|| {
            let why = "the RDMA link has failed while the owner's device changed a number";
            unknown(why, Executed::Maybe)
        })
    }

    async fn access(
        &self,
        target: Target,
        offset: u64,
        operation: Operation,
        len: usize,
    ) -> Result<Bytes, Status> {
        let outcome = self.start(target, offset, operation, len..=len).await?;
        self.outcome(target, outcome).await
    }

    /// Sends an ACCESS when there is room for it. `len`: how many bytes its outcome has.
    async fn start(
        &self,
        target: Target,
        offset: u64,
        operation: Operation,
        len: RangeInclusive<usize>,
    ) -> Result<oneshot::Receiver<Result<Accessed, Status>>, Status> {
        let permit = self.permit().await?;
        self.start_with(permit, target, offset, operation, len)
    }

    /// Waits until there is room for another access.
    async fn permit(&self) -> Result<OwnedSemaphorePermit, Status> {
        if !self.agreed() {
            return Err(too_old());
        }
        // The semaphore is never closed.
        self.permits.clone().acquire_owned().await.map_err(|_| self.ended(Executed::No))
    }

    /// Sends an ACCESS, for which there is room.
    fn start_with(
        &self,
        _permit: OwnedSemaphorePermit,
        target: Target,
        offset: u64,
        operation: Operation,
        len: RangeInclusive<usize>,
    ) -> Result<oneshot::Receiver<Result<Accessed, Status>>, Status> {
        let (sender, receiver) = oneshot::channel();
        let number = self.begin(Waiting { len, outcome: sender, _permit })?;
        let access = Access { target, offset, operation };
        let mut head = BytesMut::new();
        access.encode_head(&mut head);
        let payload = match access.operation {
            Operation::Write(bytes) => Payload::from_body(bytes),
            _ => Payload::default(),
        };
        self.send(FrameType::ACCESS, number, head.freeze(), payload);
        Ok(receiver)
    }

    /// Gives an access a number, unless the connection has ended.
    fn begin(&self, waiting: Waiting) -> Result<u64, Status> {
        let mut started = self.started.lock();
        if let Some(end) = &started.end {
            return Err(end.clone().with_executed(Executed::No));
        }
        let number = self.next_number(&mut started);
        started.waiting.insert(number, waiting);
        drop(started);
        self.begun.notify_one();
        Ok(number)
    }

    fn next_number(&self, started: &mut Started) -> u64 {
        started.last += 1;
        let of_role = match self.sender.terms().role {
            Role::Client => OF_ACCESS,
            Role::Server => OF_ACCESS | OF_SERVER,
        };
        started.last | of_role
    }

    /// Queues an ACCESS that has no outcome, in front of the request or answer that comes next.
    fn notify(&self, target: Target, operation: Operation) {
        let number = self.next_number(&mut self.started.lock());
        let mut head = BytesMut::new();
        Access { target, offset: 0, operation }.encode_head(&mut head);
        if self.sender.enqueue_small(FrameType::ACCESS, number, &head, &[]) == 1 {
            self.sender.flush_soon();
        }
    }

    fn send(&self, kind: FrameType, number: u64, head: Bytes, payload: Payload) {
        let mut message = Message::with_payload(kind, number, head.into(), payload);
        if kind == FrameType::ACCESSED {
            // So that `on_sent` is told. Nothing of an access comes behind it.
            message.hold_back();
        }
        self.sender.stage(&mut message);
        self.sender.enqueue(message);
        self.sender.flush();
    }

    async fn outcome(
        &self,
        target: Target,
        outcome: oneshot::Receiver<Result<Accessed, Status>>,
    ) -> Result<Bytes, Status> {
        // It is dropped with the connection only.
        let ended = |_| Err(self.ended(Executed::Maybe));
        let Accessed { outcome, bytes } = outcome.await.unwrap_or_else(ended)?;
        let (code, why) = match (outcome, target) {
            (Outcome::Done, _) => return Ok(bytes),
            (Outcome::Gone, Target::Loan { .. }) => {
                (Code::Cancelled, "the loan has ended: its call has ended, or its region was revoked")
            }
            (Outcome::Gone, Target::Region { .. }) => {
                (Code::NotFound, "the peer exports no such region: it was revoked, or has expired")
            }
            (Outcome::Forbidden, _) => {
                (Code::PermissionDenied, "the owner of this memory does not allow it to be used like this")
            }
            (Outcome::OutOfRange, _) => {
                (Code::OutOfRange, "the access is not within the memory, or not at a multiple of 8")
            }
            (Outcome::Unknown, _) => {
                return Err(unknown(
                    "the device of this memory's owner has failed while it changed a number",
                    Executed::Maybe,
                ));
            }
            (Outcome::NoMemory, _) => {
                (Code::ResourceExhausted, "the owner of this memory has no memory for the access")
            }
        };
        Err(Status::new(code, why).with_blame(Blame::Peer).with_executed(Executed::No))
    }

    fn ended(&self, executed: Executed) -> Status {
        self.sender.terms().status("it has ended", executed, Blame::Environment)
    }

    /// Handles an ACCESSED, or that this side had no memory for one. The caller holds no lock.
    pub(crate) fn on_accessed(
        &self,
        number: u64,
        outcome: Result<Accessed, Status>,
    ) -> Result<(), WireError> {
        let fits = |waiting: &Waiting| match &outcome {
            Ok(Accessed { outcome: Outcome::Done, bytes }) if !waiting.len.contains(&bytes.len()) => {
                Err(WireError::new("accessed.bytes", "have another length than was asked for"))
            }
            _ => Ok(()),
        };
        let waiting = self.take(number, fits)?;
        // Counted from here on, because the caller may not look for it for long.
        let outcome = outcome.map(|Accessed { outcome, bytes }| {
            let gauge = self.count(bytes.len());
            Accessed { outcome, bytes: counted(bytes, gauge) }
        });
        // Its future may have been dropped.
        let _ = waiting.outcome.send(outcome);
        Ok(())
    }

    /// Handles that the answer to an access of the peer has left, if this is the number of one. Returns whether it is.
    pub(crate) fn on_sent(&self, number: u64) -> bool {
        let is_access = number & OF_ACCESS != 0;
        if is_access {
            let served = self.serving.lock().remove(&number);
            // Without the lock: the room wakes the task that waits for it.
            drop(served);
        }
        is_access
    }

    /// Checks the number of an access that the peer starts.
    pub(crate) fn check_number(&self, number: u64) -> Result<(), WireError> {
        let expected = match self.sender.terms().role {
            Role::Client => OF_ACCESS | OF_SERVER,
            Role::Server => OF_ACCESS,
        };
        if number & (OF_ACCESS | OF_SERVER) == expected {
            return Ok(());
        }
        Err(WireError::new("access.call", "is not a number of the peer's accesses"))
    }

    /// Removes an access that has its outcome, if that is as it must be. Else it ends with the connection.
    fn take(
        &self,
        number: u64,
        check: impl FnOnce(&Waiting) -> Result<(), WireError>,
    ) -> Result<Waiting, WireError> {
        let mut started = self.started.lock();
        match started.waiting.entry(number) {
            Entry::Occupied(waiting) => check(waiting.get()).map(|()| waiting.remove()),
            Entry::Vacant(_) => Err(WireError::new("accessed.call", "was never an access")),
        }
    }

    /// Ends all accesses, because the connection has ended.
    pub(crate) fn end(&self, status: &Status) {
        let waiting = {
            let mut started = self.started.lock();
            started.end = Some(status.clone());
            std::mem::take(&mut started.waiting)
        };
        for waiting in waiting.into_values() {
            let _ = waiting.outcome.send(Err(status.clone().with_executed(Executed::Maybe)));
        }
        self.lent.lock().clear();
        // Nothing leaves any more, so nothing would make room for those that wait for it.
        self.room.close();
    }

    /// Whether this side waits for no outcome.
    pub(crate) fn has_none_started(&self) -> bool {
        self.started.lock().waiting.is_empty()
    }

    /// Whether none is under way, of either side.
    pub(crate) fn is_idle(&self) -> bool {
        self.serving.lock().is_empty()
            && self.operations.load(Ordering::Acquire) == 0
            && self.has_none_started()
    }
}

/// Returns the number that an outcome is, the length of which was checked when it arrived.
fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Returns the status of an operation on a number, which may have been done or not.
fn unknown(why: &str, executed: Executed) -> Status {
    let message = format!("{why}; farcall does not repeat the operation, which may have been done");
    Status::new(Code::Unavailable, message).with_blame(Blame::Environment).with_executed(executed)
}

/// Returns the status of accesses that the peer does not know of.
fn too_old() -> Status {
    Status::new(Code::Unimplemented, "the peer's farcall is too old for access to memory")
        .with_executed(Executed::No)
        .with_blame(Blame::Peer)
}
