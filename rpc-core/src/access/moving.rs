//! Transfers between memory of the peer and regions of this side.
//!
//! By a grant this side's device moves the bytes to or from the region itself. Otherwise they go by messages, and are copied.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use super::awaiting::Begun;
use super::owner::failed;
use super::{Accesses, LocalRange, PIECE, Turn};
use crate::proto::wire::{Accessed, Granted, Operation, Target};
use crate::status::{Executed, Status};
use crate::transport::{Link, Registered};

/// Bytes that a device moves by one descriptor. The owner can take the grant back between two such parts.
const PART: usize = 16 << 20;

/// Pieces that go by messages at once: each takes memory of this side for the time.
const AT_ONCE: usize = 4;

/// How far a device has moved a part.
enum Moved {
    Whole,
    Nothing,
    /// The link has failed meanwhile.
    Perhaps,
}

impl Accesses {
    /// Reads from the peer's memory into a region of this side. The caller has checked the ranges.
    pub(crate) async fn read_into(
        &self,
        target: Target,
        offset: u64,
        into: &LocalRange,
    ) -> Result<(), Status> {
        if into.len() == 0 {
            return into.check();
        }
        let _under_way = self.begin_operation();
        let turn = into.turn(true).await?;
        for (begin, part) in into.parts(PART) {
            let offset = offset.saturating_add(begin as u64);
            if !self.part_is_read(target, offset, &part, &turn).await? {
                self.read_by_messages(target, offset, &part).await?;
            }
        }
        Ok(())
    }

    /// Reads a part by this side's device. Returns whether it has done so.
    async fn part_is_read(
        &self,
        target: Target,
        offset: u64,
        into: &LocalRange,
        turn: &Turn,
    ) -> Result<bool, Status> {
        let (over, mut is_over) = watch::channel(());
        let begin = |link: &dyn Link, descriptor, memory: &dyn Registered| {
            let offset = usize::try_from(offset).ok()?;
            link.read_granted_into(descriptor, offset, memory, into.range(), Box::new((over, turn.clone())))
        };
        let Some(moved) = self.by_device(target, Granted::READ, into, begin).await? else {
            return Ok(false);
        };
        if moved.await.is_some() {
            return Ok(true);
        }
        // The device of a link that has failed may still write. Fails when it does not.
        let _ = is_over.changed().await;
        Ok(false)
    }

    /// Has this side's device begin to move a part, with room for it. `None`: it can't, or not by a grant with this right.
    async fn by_device(
        &self,
        target: Target,
        right: u8,
        range: &LocalRange,
        begin: impl FnOnce(&dyn Link, Bytes, &dyn Registered) -> Option<oneshot::Receiver<()>>,
    ) -> Result<Option<impl Future<Output = Option<()>>>, Status> {
        let Some((link, _)) = self.taken_grant(target, right) else { return Ok(None) };
        let Some(memory) = range.registered(&link, &self.runtime).await? else { return Ok(None) };
        let mebibytes = (range.len() >> 20) as u32 + 1;
        let Ok(room) = self.moving.clone().acquire_many_owned(mebibytes).await else { return Ok(None) };
        // Only now, so that the owner can take the grant back during the waits.
        let descriptor = self.taken_grant(target, right).filter(|(now, _)| Arc::ptr_eq(now, &link));
        let moved = descriptor.and_then(|(_, descriptor)| begin(&*link, descriptor, &*memory));
        let len = range.len();
        Ok(moved.map(|moved| async move {
            let _room = room;
            Begun::new(link, moved, len).await
        }))
    }

    /// Reads a part by messages.
    async fn read_by_messages(&self, target: Target, offset: u64, into: &LocalRange) -> Result<(), Status> {
        let most = PIECE.min(usize::try_from(self.max_read()).unwrap_or(PIECE));
        let mut begin = 0;
        // With their places in the range.
        let mut pieces = VecDeque::with_capacity(AT_ONCE);
        loop {
            while begin < into.len() && pieces.len() < AT_ONCE {
                let len = most.min(into.len() - begin);
                let read = Operation::Read(len as u32);
                let piece = self.start(target, offset.saturating_add(begin as u64), read, len..=len).await?;
                pieces.push_back((begin, piece));
                begin += len;
            }
            let Some((begin, piece)) = pieces.pop_front() else { return Ok(()) };
            into.fill(begin, &self.outcome(target, piece).await?).map_err(failed)?;
        }
    }

    /// Writes to the peer's memory from a region of this side. The caller has checked the ranges.
    pub(crate) async fn write_from(
        &self,
        target: Target,
        offset: u64,
        from: &LocalRange,
    ) -> Result<(), Status> {
        if from.len() == 0 {
            return from.check();
        }
        let _under_way = self.begin_operation();
        let mut turn = Some(from.turn(false).await?);
        // Whether some of the bytes may be there already.
        let mut has_begun = false;
        for (begin, part) in from.parts(PART) {
            let at = offset.saturating_add(begin as u64);
            let moved = match &turn {
                Some(turn) => self.move_part(target, at, &part, turn).await,
                None => Ok(Moved::Nothing),
            };
            let moved = moved.map_err(|status| if has_begun { in_part(status) } else { status })?;
            has_begun |= !matches!(moved, Moved::Nothing);
            if !matches!(moved, Moved::Whole) {
                let is_last = begin + part.len() == from.len();
                let last = if is_last { turn.take() } else { None };
                let written = self.write_by_messages(target, at, &part, last).await;
                written.map_err(|status| if has_begun { in_part(status) } else { status })?;
                has_begun = true;
            }
        }
        Ok(())
    }

    /// Writes a part by this side's device.
    async fn move_part(
        &self,
        target: Target,
        offset: u64,
        from: &LocalRange,
        turn: &Turn,
    ) -> Result<Moved, Status> {
        let begin = |link: &dyn Link, descriptor, memory: &dyn Registered| {
            let offset = usize::try_from(offset).ok()?;
            link.write_granted_from(descriptor, offset, memory, from.range(), Box::new(turn.clone()))
        };
        Ok(match self.by_device(target, Granted::WRITE, from, begin).await? {
            None => Moved::Nothing,
            Some(moved) => moved.await.map_or(Moved::Perhaps, |()| Moved::Whole),
        })
    }

    /// Writes a part by messages. The turn, which comes with the last part, ends when that is copied: a peer that does not answer must not
    /// keep others from the region.
    async fn write_by_messages(
        &self,
        target: Target,
        offset: u64,
        from: &LocalRange,
        mut turn: Option<Turn>,
    ) -> Result<(), Status> {
        let most = self.longest_write();
        let (mut begin, mut started) = (0, 0);
        let mut pieces = VecDeque::with_capacity(AT_ONCE);
        loop {
            while begin < from.len() && pieces.len() < AT_ONCE {
                let piece = begin..from.len().min(begin + most);
                begin = piece.end;
                let at = offset.saturating_add(piece.start as u64);
                let piece = self.write_piece(target, at, from, piece).await;
                pieces.push_back(piece.map_err(|status| if started > 0 { in_part(status) } else { status })?);
                started += 1;
            }
            if begin == from.len() {
                drop(turn.take());
            }
            let Some(piece) = pieces.pop_front() else { return Ok(()) };
            let outcome = self.outcome(target, piece).await;
            outcome.map_err(|status| if started > 1 { in_part(status) } else { status })?;
        }
    }

    /// Begins to write a piece, which is copied when there is room for it.
    async fn write_piece(
        &self,
        target: Target,
        offset: u64,
        from: &LocalRange,
        piece: Range<usize>,
    ) -> Result<oneshot::Receiver<Result<Accessed, Status>>, Status> {
        let permit = self.permit().await?;
        let bytes = from.copy(piece.start, piece.len()).map_err(failed)?;
        self.start_with(permit, target, offset, Operation::Write(bytes.into()), 0..=0)
    }
}

/// Returns the status of a write of which another part may have been done.
fn in_part(status: Status) -> Status {
    status.with_executed(Executed::Maybe)
}
