//! Simulated memory windows: bound to one queue pair, exact to the byte, with keys that do not come again soon.

use bytes::Bytes;
use farcall_core::transport::Atomic;

use super::fabric::State;
use super::steps::REM_INV_REQ_ERR;
use crate::device::{NUMBER, RegisteredWords, RemoteAccess, RemoteRange, WcStatus};
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

    /// Returns the memory that a queue pair grants its peer by this key, and where in it a range begins that the peer may use.
    fn within(
        &self,
        qp: u32,
        range: RemoteRange,
        len: usize,
        may: impl Fn(&RemoteAccess) -> bool,
    ) -> Result<(&Exposed, usize), WcStatus> {
        let window = self.windows.get(&(range.rkey >> 8)).filter(|window| window.qp == qp);
        let grant = window.and_then(|window| window.grant.as_ref()).filter(|grant| grant.rkey == range.rkey);
        let part = grant.filter(|grant| may(&grant.access)).and_then(|grant| {
            let memory = grant.exposed.range();
            let offset = usize::try_from(range.addr.checked_sub(memory.start as u64)?).ok()?;
            offset.checked_add(len).filter(|end| *end <= memory.len())?;
            Some((&grant.exposed, offset))
        });
        part.ok_or(WcStatus::REM_ACCESS_ERR)
    }

    /// Returns the bytes of this range that a queue pair grants its peer.
    pub(super) fn granted(&self, qp: u32, from: RemoteRange, len: usize) -> Result<Bytes, WcStatus> {
        let (exposed, offset) = self.within(qp, from, len, |access| access.read)?;
        exposed.part(offset, len).ok_or(WcStatus::REM_ACCESS_ERR)
    }

    /// Writes to memory that a queue pair grants its peer.
    pub(super) fn write(&self, qp: u32, to: RemoteRange, bytes: &[u8]) -> Result<(), WcStatus> {
        let (exposed, offset) = self.within(qp, to, bytes.len(), |access| access.write)?;
        words_of(exposed)?.write(exposed.begin() + offset, bytes);
        Ok(())
    }

    /// Changes a number in memory that a queue pair grants its peer, and returns the one before. As on real devices, that is not atomic
    /// with what the processor does.
    pub(super) fn change(&self, qp: u32, on: RemoteRange, atomic: Atomic) -> Result<u64, WcStatus> {
        if !on.addr.is_multiple_of(NUMBER as u64) {
            return Err(REM_INV_REQ_ERR);
        }
        let (exposed, offset) = self.within(qp, on, NUMBER, |access| access.atomics)?;
        let (words, offset) = (words_of(exposed)?, exposed.begin() + offset);
        let before = words.copy(offset, NUMBER).and_then(|bytes| bytes.try_into().ok());
        let before = u64::from_ne_bytes(before.ok_or(WcStatus::REM_OP_ERR)?);
        std::thread::yield_now();
        words.write(offset, &atomic.apply(before).to_ne_bytes());
        Ok(before)
    }
}

/// Messages are nobody's to write.
fn words_of(exposed: &Exposed) -> Result<&RegisteredWords, WcStatus> {
    match exposed {
        Exposed::Words(words) => Ok(words.words()),
        Exposed::Message(_) => Err(WcStatus::REM_ACCESS_ERR),
    }
}
