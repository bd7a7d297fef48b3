//! Transfers between memory of the peer and regions of this side.
//!
//! By a grant this side's device moves the bytes to or from the region itself. Otherwise they go by messages, and are copied.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::awaiting::Begun;
use super::owner::failed;
use super::{Accesses, LocalRange, PIECE};
use crate::proto::wire::{Accessed, Granted, Operation, Target};
use crate::status::{Executed, Status};
use crate::transport::Link;

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
        into.check()?;
        for (begin, part) in into.parts(PART) {
            let offset = offset.saturating_add(begin as u64);
            if !self.part_is_read(target, offset, &part).await? {
                self.read_by_messages(target, offset, &part).await?;
            }
        }
        Ok(())
    }

    /// Reads a part by this side's device. Returns whether it has done so.
    async fn part_is_read(&self, target: Target, offset: u64, into: &LocalRange) -> Result<bool, Status> {
        let Some((link, _)) = self.taken_grant(target, Granted::READ) else { return Ok(false) };
        let Some(memory) = into.registered(&link, &self.runtime).await? else { return Ok(false) };
        let (in_effect, mut over) = into.turn(true).await?;
        let moved = self.still_taken(target, Granted::READ, &link).and_then(|descriptor| {
            let offset = usize::try_from(offset).ok()?;
            link.read_granted_into(descriptor, offset, &*memory, into.range(), in_effect)
        });
        if self.is_moved(link, moved, into.len()).await {
            return Ok(true);
        }
        // The device of a link that has failed may still write. Fails when it does not.
        let _ = over.changed().await;
        Ok(false)
    }

    /// Reads a part by messages.
    async fn read_by_messages(&self, target: Target, offset: u64, into: &LocalRange) -> Result<(), Status> {
        let _turn = into.turn(true).await?;
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
        from.check()?;
        for (begin, part) in from.parts(PART) {
            let offset = offset.saturating_add(begin as u64);
            let written = match self.part_is_written(target, offset, &part).await {
                Ok(Moved::Whole) => Ok(()),
                Ok(Moved::Nothing) => self.write_by_messages(target, offset, &part).await,
                Ok(Moved::Perhaps) => self.write_by_messages(target, offset, &part).await.map_err(in_part),
                Err(status) => Err(status),
            };
            written.map_err(|status| if begin > 0 { in_part(status) } else { status })?;
        }
        Ok(())
    }

    /// Writes a part by this side's device.
    async fn part_is_written(&self, target: Target, offset: u64, from: &LocalRange) -> Result<Moved, Status> {
        let Some((link, _)) = self.taken_grant(target, Granted::WRITE) else { return Ok(Moved::Nothing) };
        let Some(memory) = from.registered(&link, &self.runtime).await? else { return Ok(Moved::Nothing) };
        let (in_effect, _) = from.turn(false).await?;
        let moved = self.still_taken(target, Granted::WRITE, &link).and_then(|descriptor| {
            let offset = usize::try_from(offset).ok()?;
            link.write_granted_from(descriptor, offset, &*memory, from.range(), in_effect)
        });
        if moved.is_none() {
            return Ok(Moved::Nothing);
        }
        Ok(if self.is_moved(link, moved, from.len()).await { Moved::Whole } else { Moved::Perhaps })
    }

    /// Writes a part by messages.
    async fn write_by_messages(&self, target: Target, offset: u64, from: &LocalRange) -> Result<(), Status> {
        let _turn = from.turn(false).await?;
        let most = self.longest_write();
        let (mut begin, mut started) = (0, 0);
        let mut pieces = VecDeque::with_capacity(AT_ONCE);
        loop {
            while begin < from.len() && pieces.len() < AT_ONCE {
                let len = most.min(from.len() - begin);
                let piece =
                    self.write_piece(target, offset.saturating_add(begin as u64), from, begin..begin + len);
                let piece =
                    piece.await.map_err(|status| if started > 0 { in_part(status) } else { status })?;
                pieces.push_back(piece);
                (begin, started) = (begin + len, started + 1);
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

    /// Returns the descriptor of a grant with this right, if there still is one, and it is for this link.
    fn still_taken(&self, target: Target, right: u8, link: &Arc<dyn Link>) -> Option<Bytes> {
        let (now, descriptor) = self.taken_grant(target, right)?;
        Arc::ptr_eq(&now, link).then_some(descriptor)
    }

    /// Waits until a link has moved so many bytes. Returns false if it does not.
    async fn is_moved(&self, link: Arc<dyn Link>, moved: Option<oneshot::Receiver<()>>, len: usize) -> bool {
        match moved {
            Some(moved) => Begun::new(link, moved, len).await.is_some(),
            None => false,
        }
    }
}

/// Returns the status of a write of which another part may have been done.
fn in_part(status: Status) -> Status {
    status.with_executed(Executed::Maybe)
}
