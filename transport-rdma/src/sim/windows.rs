//! Simulated memory windows: bound to one queue pair, exact to the byte, with keys that do not come again soon.

use bytes::Bytes;

use super::fabric::State;
use crate::device::{RemoteAccess, RemoteRange, WcStatus};
use crate::dma::Exposed;

/// The device refuses a bind or an invalidation.
const MW_BIND_ERR: WcStatus = WcStatus(6);

/// A window. Its key's upper 24 bits are its key on the fabric.
#[derive(Debug)]
pub(super) struct SimWindow {
    pub(super) qp: u32,
    /// The last key it was bound with, or came with.
    rkey: u32,
    pub(super) grant: Option<Grant>,
}

/// The memory that a window lets the peer read.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) rkey: u32,
    pub(super) exposed: Exposed,
    pub(super) access: RemoteAccess,
}

impl State {
    /// Makes a window for a queue pair and says its key.
    pub(super) fn alloc_window(&mut self, qp: u32) -> u32 {
        let rkey = loop {
            let rkey = self.random() as u32;
            if !self.windows.contains_key(&(rkey >> 8)) {
                break rkey;
            }
        };
        self.windows.insert(rkey >> 8, SimWindow { qp, rkey, grant: None });
        rkey
    }

    /// Takes all windows of a queue pair, and what they grant with them.
    pub(super) fn dealloc_windows(&mut self, qp: u32) {
        self.windows.retain(|_, window| window.qp != qp);
    }

    pub(super) fn bind(&mut self, qp: u32, grant: Grant) -> Result<(), WcStatus> {
        let window = self.windows.get_mut(&(grant.rkey >> 8));
        let free = |window: &&mut SimWindow| {
            window.qp == qp
                && window.grant.is_none()
                && window.rkey != grant.rkey
                && !grant.exposed.range().is_empty()
        };
        let window = window.filter(free).ok_or(MW_BIND_ERR)?;
        window.rkey = grant.rkey;
        window.grant = Some(grant);
        Ok(())
    }

    pub(super) fn invalidate(&mut self, qp: u32, rkey: u32) -> Result<(), WcStatus> {
        let window = self.windows.get_mut(&(rkey >> 8));
        let bound =
            |window: &&mut SimWindow| window.qp == qp && window.rkey == rkey && window.grant.is_some();
        window.filter(bound).ok_or(MW_BIND_ERR)?.grant = None;
        Ok(())
    }

    /// Returns the bytes of this range that a queue pair grants its peer.
    pub(super) fn granted(&self, qp: u32, from: RemoteRange, len: usize) -> Result<Bytes, WcStatus> {
        let window = self.windows.get(&(from.rkey >> 8)).filter(|window| window.qp == qp);
        let grant = window.and_then(|window| window.grant.as_ref()).filter(|grant| grant.rkey == from.rkey);
        let part = grant.filter(|grant| grant.access.read).and_then(|grant| {
            let offset = from.addr.checked_sub(grant.exposed.range().start as u64)?;
            grant.exposed.part(usize::try_from(offset).ok()?, len)
        });
        part.ok_or(WcStatus::REM_ACCESS_ERR)
    }

    /// Writes to memory that a queue pair grants its peer.
    pub(super) fn write(&self, qp: u32, to: RemoteRange, bytes: &[u8]) -> Result<(), WcStatus> {
        let window = self.windows.get(&(to.rkey >> 8)).filter(|window| window.qp == qp);
        let grant = window.and_then(|window| window.grant.as_ref()).filter(|grant| grant.rkey == to.rkey);
        let written = grant.filter(|grant| grant.access.write).and_then(|grant| {
            let range = grant.exposed.range();
            let offset = usize::try_from(to.addr.checked_sub(range.start as u64)?).ok()?;
            offset.checked_add(bytes.len()).filter(|end| *end <= range.len())?;
            match &grant.exposed {
                Exposed::Words(words) => words.words().write(offset, bytes),
                Exposed::Message(_) => return None,
            }
            Some(())
        });
        written.ok_or(WcStatus::REM_ACCESS_ERR)
    }
}
