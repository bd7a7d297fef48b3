//! Transfers between memory of the peer and regions of this side.
//!
//! By a grant this side's device moves the bytes to or from the region itself. Otherwise they go by messages, in pieces, and are copied.

use std::collections::VecDeque;

use super::awaiting::Begun;
use super::owner::failed;
use super::{Accesses, LocalRange, PIECE};
use crate::proto::wire::{Granted, Operation, Target};
use crate::status::{Executed, Status};

/// Pieces that are under way at once: each takes memory of this side for the time.
const AT_ONCE: usize = 4;

impl Accesses {
    /// Reads from the peer's memory into a region of this side. The caller has checked the ranges.
    pub(crate) async fn read_into(
        &self,
        target: Target,
        offset: u64,
        into: &LocalRange,
    ) -> Result<(), Status> {
        if let Some((link, descriptor)) = self.taken_grant(target, Granted::READ)
            && let Some(region) = into.registered(&link, true).await?
            && let Ok(offset) = usize::try_from(offset)
        {
            let (in_effect, mut over) = into.begin(true).await;
            let moved = link.read_granted_into(descriptor, offset, &region, into.range(), in_effect);
            if let Some(moved) = moved
                && Begun::new(link, moved, into.len()).await.is_some()
            {
                return Ok(());
            }
            // The device of a link that has failed may still write. Fails when it does not.
            let _ = over.changed().await;
        }
        // Of a transfer that was given up.
        into.settled(true).await;
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
        let mut in_vain = false;
        if let Some((link, descriptor)) = self.taken_grant(target, Granted::WRITE)
            && let Some(region) = from.registered(&link, false).await?
            && let Ok(offset) = usize::try_from(offset)
        {
            let (in_effect, _over) = from.begin(false).await;
            let moved = link.write_granted_from(descriptor, offset, &region, from.range(), in_effect);
            in_vain = moved.is_some();
            if let Some(moved) = moved
                && Begun::new(link, moved, from.len()).await.is_some()
            {
                return Ok(());
            }
        }
        // Of a transfer that was given up.
        from.settled(false).await;
        let most = self.longest_write();
        let (mut begin, mut started) = (0, 0);
        let mut pieces = VecDeque::with_capacity(AT_ONCE);
        // Other pieces than the one that fails may have been written, or all of them, by a link that has failed.
        let in_part = |status: Status, others: usize| match others {
            0 if !in_vain => status,
            _ => status.with_executed(Executed::Maybe),
        };
        loop {
            while begin < from.len() && pieces.len() < AT_ONCE {
                let len = most.min(from.len() - begin);
                let at = offset.saturating_add(begin as u64);
                let piece = match from.copy(begin, len) {
                    Ok(bytes) => self.start(target, at, Operation::Write(bytes.into()), 0..=0).await,
                    Err(outcome) => Err(failed(outcome)),
                };
                pieces.push_back(piece.map_err(|status| in_part(status, started))?);
                (begin, started) = (begin + len, started + 1);
            }
            let Some(piece) = pieces.pop_front() else { return Ok(()) };
            self.outcome(target, piece).await.map_err(|status| in_part(status, started - 1))?;
        }
    }
}
