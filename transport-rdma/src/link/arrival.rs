//! A completed receive, from the device's slot to frames.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;
use farcall_core::proto::wire::{FrameType, Frames, HEADER_LEN, Header, flags};
use farcall_core::transport::{LinkEnd, SHORT_PAYLOAD};

use super::LinkCore;
use super::seal::Unsealable;
use crate::device::Slot;
use crate::resources::Pool;

/// A message that a link has received, to be taken in when a new receive is in its place.
#[derive(Debug)]
pub(crate) struct Arrival {
    link: Arc<LinkCore>,
    heard: PeerView,
    message: Result<ReceivedSend, LinkEnd>,
}

/// The content of one SEND: a frame, or several of the session's.
#[derive(Debug)]
pub(crate) struct ReceivedSend {
    pub(super) headers: Headers,
    pub(super) frames: Frames,
}

/// A summary of the headers of a message.
#[derive(Debug)]
pub(super) struct Headers {
    pub(super) first: Header,
    /// How many there are that were not handed over.
    pub(super) count: usize,
    /// The newest.
    pub(super) grant: u32,
    /// All of it only completes calls.
    pub(super) answers: bool,
    /// All payloads are short: readers may keep views of them, and those must not keep a slot.
    short: bool,
}

impl Headers {
    /// Looks at all headers, of which each but the first is a session frame's.
    fn of(message: &[u8]) -> Result<Self, String> {
        let (first, mut rest) = split_frame(message)?;
        let mut headers =
            Self { first, count: 1, grant: first.grant, answers: is_answer(&first), short: is_short(&first) };
        if first.kind.is_link() && !rest.is_empty() {
            return Err(SHARES.to_owned());
        }
        while !rest.is_empty() {
            let (header, behind) = split_frame(rest)?;
            if header.kind.is_link() {
                return Err(SHARES.to_owned());
            }
            headers.count += 1;
            headers.grant = header.grant;
            headers.answers &= is_answer(&header);
            headers.short &= is_short(&header);
            rest = behind;
        }
        Ok(headers)
    }
}

#[cfg(test)]
impl ReceivedSend {
    pub(super) fn new(bytes: bytes::Bytes) -> Result<Self, String> {
        Ok(Self { headers: Headers::of(&bytes)?, frames: Frames::new(bytes) })
    }
}

const SHARES: &str = "a frame of the link shares a message with others";

fn is_short(header: &Header) -> bool {
    (header.len as usize) < SHORT_PAYLOAD
}

fn is_answer(header: &Header) -> bool {
    header.kind == FrameType::RESPONSE && header.flags & flags::FRAGMENTED == 0
}

/// The most that the peer can have heard from this side when a frame of its own was polled.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PeerView {
    pub(super) grants: u32,
    pub(super) bytes: u64,
}

impl Arrival {
    /// Reads a message of `len` bytes. The replacement of its slot goes to `slots`: a free one from `pool`, if the
    /// content stays where it is, else the slot itself, and the content in `copies`. So readers that keep payloads for
    /// long get copies, and never use up the receives.
    pub(crate) fn take(
        link: Arc<LinkCore>,
        mut slot: Slot,
        len: usize,
        pool: &Pool,
        slots: &mut Vec<Slot>,
        copies: &mut BytesMut,
    ) -> Self {
        let heard =
            PeerView { grants: link.told.load(Ordering::Acquire), bytes: link.sent.load(Ordering::Acquire) };
        link.received.fetch_add(len as u64, Ordering::Relaxed);
        let len = match link.open(&mut slot[..len]) {
            Ok(len) => len,
            Err(end) => {
                slots.push(slot);
                return Self { link, heard, message: Err(end) };
            }
        };
        let headers = match Headers::of(&slot[..len]) {
            Ok(headers) => headers,
            Err(why) => {
                slots.push(slot);
                let end = LinkEnd::malformed(format!("{}: the peer broke the protocol: {why}", link.name));
                return Self { link, heard, message: Err(end) };
            }
        };
        let spare = if headers.short { None } else { pool.take() };
        let bytes = match spare {
            Some(spare) => {
                slots.push(spare);
                slot.freeze(0..len)
            }
            None => {
                link.copied.fetch_add((len - HEADER_LEN) as u64, Ordering::Relaxed);
                copies.extend_from_slice(&slot[..len]);
                slots.push(slot);
                copies.split().freeze()
            }
        };
        Self { link, heard, message: Ok(ReceivedSend { headers, frames: Frames::new(bytes) }) }
    }

    /// Nothing more arrives: the link has failed.
    pub(crate) fn failure(link: Arc<LinkCore>, end: LinkEnd) -> Self {
        Self { link, heard: PeerView::default(), message: Err(end) }
    }

    /// Hands the message to the link. `Some`: the link had nothing to deliver before.
    pub(crate) fn take_in(self) -> Option<Arc<LinkCore>> {
        let is_first = match self.message {
            Ok(message) => self.link.take_in(message, self.heard),
            Err(end) => self.link.fail(end),
        };
        is_first.then_some(self.link)
    }
}

impl LinkCore {
    /// Opens a message in place, if the link is sealed. Returns its length.
    fn open(&self, message: &mut [u8]) -> Result<usize, LinkEnd> {
        match self.seal.get() {
            Some(None) => Ok(message.len()),
            Some(Some(seal)) => seal.open(message).map_err(|Unsealable| self.forged("a message")),
            None => Err(LinkEnd::failed(format!("{}: a message came before its key was known", self.name))),
        }
    }

    /// Returns the end of a link that has brought something that the peer has not sealed.
    pub(super) fn forged(&self, what: &str) -> LinkEnd {
        LinkEnd::failed(format!(
            "{}: {what} is not what the peer has sealed: somebody has changed, inserted or repeated packets on the RDMA \
             network, or a device or its driver corrupts them; find out which before you trust the network",
            self.name
        ))
    }
}

/// A frame's header, and what comes behind the frame.
fn split_frame(bytes: &[u8]) -> Result<(Header, &[u8]), String> {
    let Some((header, behind)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Err(format!("a frame of {} bytes has no header", bytes.len()));
    };
    let header = Header::decode(header).map_err(|error| error.to_string())?;
    let len = header.len as usize;
    let behind =
        behind.get(len..).ok_or_else(|| format!("a header says {len} bytes, {} arrived", behind.len()))?;
    Ok((header, behind))
}
