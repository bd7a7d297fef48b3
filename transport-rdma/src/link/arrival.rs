//! A completed receive, from the device's slot to a frame.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Buf, Bytes};
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
    message: Result<Message, LinkEnd>,
}

/// The content of one SEND: a frame, or several of the session's, one behind the other.
#[derive(Debug)]
pub(super) struct Message {
    rest: Bytes,
    /// All of it only completes calls.
    answers: bool,
}

impl Message {
    /// Looks at all headers, of which each but the first is a session frame's.
    fn check(bytes: &[u8]) -> Result<bool, String> {
        let (mut rest, mut answers) = (bytes, true);
        loop {
            let (header, behind) = split_header(rest)?;
            let len = header.len as usize;
            if len > behind.len() {
                return Err(format!("a header says {len} bytes, {} arrived", behind.len()));
            }
            rest = &behind[len..];
            answers &= header.kind == FrameType::RESPONSE && header.flags & flags::FRAGMENTED == 0;
            let is_alone = rest.is_empty() && bytes.len() == HEADER_LEN + len;
            if header.kind.is_link() && !is_alone {
                return Err("a frame of the link shares a message with others".to_owned());
            }
            if rest.is_empty() {
                return Ok(answers);
            }
        }
    }
}

impl Iterator for Message {
    type Item = (Header, Bytes);

    fn next(&mut self) -> Option<(Header, Bytes)> {
        let (header, _) = split_header(&self.rest).ok()?;
        self.rest.advance(HEADER_LEN);
        Some((header, self.rest.split_to(header.len as usize)))
    }
}

/// The most that the peer can have heard from this side when a frame of its own was polled.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Heard {
    pub(super) grants: u32,
    pub(super) bytes: u64,
}

impl Arrival {
    /// Reads a message of `len` bytes. What is to be posted in place of its slot goes to `slots`: a free one from `pool`, if
    /// the content stays where it is, else the slot itself. So readers that keep payloads for long get copies, and never
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
        let answers = match Message::check(&slot[..len]) {
            Ok(answers) => answers,
            Err(why) => {
                slots.push(slot);
                let end = LinkEnd::malformed(format!("{}: the peer broke the protocol: {why}", link.name));
                return Self { link, heard, message: Err(end) };
            }
        };
        let spare = if len - HEADER_LEN < COPY { None } else { pool.take() };
        let rest = match spare {
            Some(spare) => {
                slots.push(spare);
                slot.freeze(0..len)
            }
            None => {
                link.copied.fetch_add((len - HEADER_LEN) as u64, Ordering::Relaxed);
                let copy = Bytes::copy_from_slice(&slot[..len]);
                slots.push(slot);
                copy
            }
        };
        Self { link, heard, message: Ok(Message { rest, answers }) }
    }

    /// Nothing more arrives: the link has failed.
    pub(crate) fn failure(link: Arc<LinkCore>, end: LinkEnd) -> Self {
        Self { link, heard: Heard::default(), message: Err(end) }
    }

    /// Whether it does no more than complete calls: what delivers it runs no handler.
    pub(crate) fn is_answer(&self) -> bool {
        self.message.as_ref().is_ok_and(|message| message.answers) && self.link.delivers_at_once()
    }

    /// Counts and delivers it. `Some`: the link is over.
    pub(crate) fn accept(self) -> (Arc<LinkCore>, Option<LinkEnd>) {
        let end = match self.message {
            Ok(message) => self.link.accept(message, self.heard),
            // One that has ended may have been released, and must not end again.
            Err(end) => (!self.link.has_ended()).then_some(end),
        };
        (self.link, end)
    }
}

fn split_header(bytes: &[u8]) -> Result<(Header, &[u8]), String> {
    let Some((header, behind)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Err(format!("a frame of {} bytes has no header", bytes.len()));
    };
    let header = Header::decode(header).map_err(|error| error.to_string())?;
    Ok((header, behind))
}
