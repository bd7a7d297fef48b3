//! A completed receive, from the device's slot to a frame.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use farcall_core::proto::wire::{FrameType, HEADER_LEN, Header, flags};
use farcall_core::transport::LinkEnd;

use super::LinkCore;
use crate::device::Slot;
use crate::endpoint::memory::Pool;

/// Payloads below this are copied: a view would cost as much, and keep a slot.
const COPY: usize = 1024;

/// What a link has received, to be accepted when a new receive is in its place.
#[derive(Debug)]
pub(crate) struct Arrival {
    link: Arc<LinkCore>,
    heard: Heard,
    frame: Result<(Header, Bytes), LinkEnd>,
}

/// The most that the peer can have heard from this side when a frame of its own was polled.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Heard {
    pub(super) grants: u32,
    pub(super) bytes: u64,
}

impl Arrival {
    /// Reads a frame of `len` bytes. What is to be posted in place of its slot goes to `slots`: a free one from `pool`, if
    /// the payload stays where it is, else the slot itself. So readers that keep payloads for long get copies, and never
    /// use up the receives.
    pub(crate) fn take(
        link: Arc<LinkCore>,
        slot: Slot,
        len: usize,
        pool: &Pool,
        slots: &mut Vec<Slot>,
    ) -> Self {
        let heard =
            Heard { grants: link.told.load(Ordering::Acquire), bytes: link.sent.load(Ordering::Acquire) };
        link.received.fetch_add(len as u64, Ordering::Relaxed);
        let header = match read_header(&slot[..len]) {
            Ok(header) => header,
            Err(why) => {
                slots.push(slot);
                let end = LinkEnd::malformed(format!("{}: the peer broke the protocol: {why}", link.name));
                return Self { link, heard, frame: Err(end) };
            }
        };
        let spare = if len - HEADER_LEN < COPY { None } else { pool.take() };
        let payload = match spare {
            Some(spare) => {
                slots.push(spare);
                slot.freeze(HEADER_LEN..len)
            }
            None => {
                link.copied.fetch_add((len - HEADER_LEN) as u64, Ordering::Relaxed);
                let payload = Bytes::copy_from_slice(&slot[HEADER_LEN..len]);
                slots.push(slot);
                payload
            }
        };
        Self { link, heard, frame: Ok((header, payload)) }
    }

    /// Nothing more arrives: the link has failed.
    pub(crate) fn failure(link: Arc<LinkCore>, end: LinkEnd) -> Self {
        Self { link, heard: Heard::default(), frame: Err(end) }
    }

    /// Whether it does no more than complete a call: what delivers it runs no handler.
    pub(crate) fn is_answer(&self) -> bool {
        let is_whole = |header: &Header| header.flags & flags::FRAGMENTED == 0;
        let is_answer =
            |(header, _): &(Header, Bytes)| header.kind == FrameType::RESPONSE && is_whole(header);
        self.frame.as_ref().is_ok_and(is_answer) && self.link.delivers_at_once()
    }

    /// Counts and delivers it. `Some`: the link is over.
    pub(crate) fn accept(self) -> (Arc<LinkCore>, Option<LinkEnd>) {
        let end = match self.frame {
            Ok((header, payload)) => self.link.accept(header, payload, self.heard),
            // One that has ended may have been released, and must not end again.
            Err(end) => (!self.link.has_ended()).then_some(end),
        };
        (self.link, end)
    }
}

fn read_header(frame: &[u8]) -> Result<Header, String> {
    let Some((header, payload)) = frame.split_first_chunk::<HEADER_LEN>() else {
        return Err(format!("a frame of {} bytes has no header", frame.len()));
    };
    let header = Header::decode(header).map_err(|error| error.to_string())?;
    if header.len as usize != payload.len() {
        return Err(format!("a header says {} bytes, {} arrived", header.len, payload.len()));
    }
    Ok(header)
}
