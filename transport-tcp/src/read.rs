//! The way in: bytes to frames.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use farcall_core::buffer_pool;
use farcall_core::proto::wire::{FrameType, Frames, HEADER_LEN, Header, PREFACE, WireError};
use farcall_core::transport::{LinkHandler, SHARED_BUFFER, SHORT_PAYLOAD, SHORT_PAYLOADS_SHARE};

use crate::socket::Socket;
use crate::stream::Stream;

/// The longest payload of a frame. A longer message goes in fragments, between which others can go. Bytes.
pub(crate) const MAX_FRAME: usize = 256 * 1024;

/// The size of a receive buffer, and the most that is read to. Views of it go to their readers; it is used again when they
/// are gone.
const BUFFER: usize = SHARED_BUFFER;

/// How many receive buffers wait for their views to go,
const POOL: usize = 16;

/// and how many while nothing arrives.
const IDLE: usize = 2;

/// The most that is read at once at first, and half of the first buffer. A connection that says little needs no more.
const FIRST: usize = 1024;

/// The least that is read at once later on. Reads grow while small frames fill them; they stay short while payloads come
/// that are read straight to where they belong, because what of those is read with the header must be copied there.
const SHORT_READ: usize = 4096;

/// The most frames that are delivered without a look at the clock.
const MOST_FRAMES: usize = 64;

/// The most frames of a new connection that are delivered without a look at the clock. Nobody knows yet how long they take.
const FIRST_FRAMES: usize = 2;

/// A turn whose frames take this long to handle ends, with frames left for the next one. Where instructions are counted, time says
/// nothing, because the tools slow the program down.
pub(crate) const LONG_TURN: Duration =
    if cfg!(farcall_counted) { Duration::from_secs(1) } else { Duration::from_micros(60) };

/// A frame with a payload from this length on gets a buffer of its own, unless it is whole already in one with others.
const LONG: usize = 16 * 1024;

/// Why reading ended.
#[derive(Debug)]
pub(crate) enum ReadEnd {
    /// In order, between two frames.
    Eof,
    /// The link failed; the text says how.
    Failed(String),
    /// The peer sent what is no frame.
    Malformed(String),
    /// The peer broke the protocol; the handler knows.
    Refused,
}

pub(crate) struct Reader {
    buffer: BytesMut,
    /// How much the buffer had room for when it was new.
    size: usize,
    /// Where short frames are copied to.
    small_frames: BytesMut,
    retired: VecDeque<BytesMut>,
    /// The memory of all buffers that the handler was told of, in bytes.
    told: usize,
    read_size: usize,
    /// The length of the long frame that stands first, or of the last one: the next may be as long, and can then be read as
    /// a whole to where it stays. 0: short ones come.
    long: usize,
    greeted: bool,
    bulk: Option<Bulk>,
    frames: usize,
    /// The most frames to deliver before the next look at the clock. Adapts to how long they take.
    most_frames: usize,
    /// The beginning of the turn, or of the first frames of it that could take long.
    turn: Option<Instant>,
    /// The turn has ended before all frames in the buffer were delivered.
    left_frames: bool,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_copied: u64,
}

/// A payload that is being read to a buffer of the handler's.
struct Bulk {
    header: Header,
    target: BytesMut,
    missing: usize,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self {
            buffer: BytesMut::with_capacity(2 * FIRST),
            size: 2 * FIRST,
            small_frames: BytesMut::new(),
            retired: VecDeque::new(),
            told: 0,
            read_size: FIRST,
            long: 0,
            greeted: false,
            bulk: None,
            frames: 0,
            most_frames: FIRST_FRAMES,
            turn: None,
            left_frames: false,
            bytes_read: 0,
            bytes_copied: 0,
        }
    }

    /// Begins a turn, in which frames may take [so long](LONG_TURN).
    pub(crate) fn begin_turn(&mut self) {
        self.turn = None;
    }

    /// Whether the reads of this turn have taken longer than [`LONG_TURN`].
    pub(crate) fn is_turn_over(&mut self) -> bool {
        let now = Instant::now();
        now - *self.turn.get_or_insert(now) > LONG_TURN
    }

    /// Whether frames wait for the next turn.
    pub(crate) fn has_left_frames(&self) -> bool {
        self.left_frames
    }

    /// Reads once and delivers the frames that are whole, or delivers those that the last turn has left. `Ok(false)`: there is
    /// nothing more to read now.
    pub(crate) fn read(&mut self, socket: &Socket, handler: &dyn LinkHandler) -> Result<bool, ReadEnd> {
        if std::mem::take(&mut self.left_frames) {
            self.deliver(handler)?;
            return Ok(true);
        }
        if self.bulk.is_none() {
            self.make_room()?;
        }
        let (buffer, most) = match &mut self.bulk {
            // With the header of the frame behind it, where there is room: it may be another long one.
            Some(Bulk { target, missing, .. }) => (target, *missing + HEADER_LEN),
            None if self.long > 0 => {
                let missing = self.long.saturating_sub(self.buffer.len());
                (&mut self.buffer, missing + HEADER_LEN)
            }
            None => (&mut self.buffer, self.read_size),
        };
        let room = (buffer.capacity() - buffer.len()).clamp(1, most.max(1));
        let (read, drained) = socket.read(buffer, room);
        let n = match read {
            Ok(0) => return Err(self.end()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.let_go();
                return Ok(false);
            }
            // From TLS, which says what it is about.
            Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(ReadEnd::Failed(e.to_string())),
            Err(e) => return Err(ReadEnd::Failed(format!("reading failed: {e}"))),
        };
        self.bytes_read += n as u64;
        match &mut self.bulk {
            Some(Bulk { target, missing, .. }) => {
                let behind = n.saturating_sub(*missing);
                *missing -= n - behind;
                if *missing == 0 {
                    let end = target.len() - behind;
                    let mut next = [0; HEADER_LEN];
                    next[..behind].copy_from_slice(&target[end..]);
                    target.truncate(end);
                    self.finish_bulk(handler)?;
                    self.long = 0;
                    self.make_room()?;
                    self.buffer.extend_from_slice(&next[..behind]);
                    self.deliver(handler)?;
                }
            }
            None => {
                if n == self.read_size {
                    self.read_size = (2 * self.read_size).clamp(SHORT_READ, BUFFER);
                }
                self.deliver(handler)?;
            }
        }
        Ok(!drained || self.left_frames)
    }

    /// Gives a long buffer back, because there may be nothing to read for long.
    fn let_go(&mut self) {
        if self.long > 0 && self.buffer.is_empty() {
            buffer_pool::give(std::mem::take(&mut self.buffer), std::mem::take(&mut self.size));
        }
        // Nor does it need many of those that wait for their views to go.
        self.retired.truncate(IDLE);
    }

    /// Reads past the runtime, without asking it whether there is anything. `Ok(false)`: there is nothing, or what
    /// there is continues a frame and must be [read](Self::read).
    pub(crate) fn look(
        &mut self,
        stream: &Stream,
        room: &mut [u8],
        handler: &dyn LinkHandler,
    ) -> Result<bool, ReadEnd> {
        if self.bulk.is_some() || !self.buffer.is_empty() {
            return Ok(false);
        }
        match stream.read_now(room) {
            Ok(0) => Err(self.end()),
            Ok(n) => {
                self.long = 0;
                self.read_size = self.read_size.max(n);
                self.make_room()?;
                self.buffer.extend_from_slice(&room[..n]);
                self.bytes_read += n as u64;
                self.bytes_copied += n as u64;
                self.deliver(handler)?;
                while std::mem::take(&mut self.left_frames) {
                    // A caller that looks has nobody to leave them to.
                    self.begin_turn();
                    self.deliver(handler)?;
                }
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(ReadEnd::Failed(format!("reading failed: {e}"))),
        }
    }

    /// How many frames have come since this was asked last.
    pub(crate) fn take_frames(&mut self) -> usize {
        std::mem::take(&mut self.frames)
    }

    /// Whether a frame has arrived in part.
    pub(crate) fn is_amid_frame(&self) -> bool {
        self.bulk.is_some() || !self.buffer.is_empty()
    }

    /// Returns how much memory the buffers take, in bytes, unless it is what was returned last. The first buffer does not count, and
    /// the handler counts its [own](Bulk).
    #[inline]
    pub(crate) fn changed_memory(&mut self) -> Option<usize> {
        let memory = self.size.saturating_sub(2 * FIRST) + self.retired.len() * BUFFER;
        (std::mem::replace(&mut self.told, memory) != memory).then_some(memory)
    }

    /// Frees the buffers, because nothing is read any more.
    pub(crate) fn free(&mut self) {
        (self.buffer, self.size, self.bulk) = (BytesMut::new(), 0, None);
        self.retired.clear();
    }

    fn end(&self) -> ReadEnd {
        if !self.is_amid_frame() && self.greeted {
            ReadEnd::Eof
        } else if !self.greeted {
            ReadEnd::Failed("the peer closed the connection before it said HELLO".into())
        } else {
            ReadEnd::Failed("the connection ended in the middle of a frame".into())
        }
    }

    /// Makes room for a read in the buffer.
    fn make_room(&mut self) -> Result<(), ReadEnd> {
        if self.long > 0 {
            if self.buffer.capacity() < self.long {
                self.go_on_in(take(self.long + HEADER_LEN)?);
            }
            return Ok(());
        }
        let room = self.buffer.capacity() - self.buffer.len();
        // Short frames must not keep the buffer of a long one.
        let fits = self.size <= BUFFER;
        if fits && (room >= self.read_size || self.buffer.try_reclaim(self.read_size)) {
            return Ok(());
        }
        let free = self.retired.iter_mut().rposition(|old| old.try_reclaim(BUFFER));
        let free = free.and_then(|i| self.retired.remove(i));
        self.go_on_in(free.map_or_else(|| take(BUFFER), Ok)?);
        Ok(())
    }

    fn go_on_in(&mut self, mut fresh: BytesMut) {
        let size = std::mem::replace(&mut self.size, fresh.capacity());
        fresh.extend_from_slice(&self.buffer);
        self.bytes_copied += self.buffer.len() as u64;
        let mut old = std::mem::replace(&mut self.buffer, fresh);
        old.clear();
        // Otherwise it becomes free when its views are gone.
        let is_free = old.try_reclaim(size);
        if !is_free && size == BUFFER && self.retired.len() < POOL {
            self.retired.push_back(old);
        } else {
            buffer_pool::give(old, size);
        }
    }

    fn deliver(&mut self, handler: &dyn LinkHandler) -> Result<(), ReadEnd> {
        if !self.greeted && !self.check_preface()? {
            return Ok(());
        }
        if !self.deliver_whole(handler)? {
            return Ok(());
        }
        // The rest is the beginning of a frame, or a FRAGMENT.
        while let Some(header) = self.buffer.first_chunk::<HEADER_LEN>() {
            let header = decode(header)?;
            let len = header.len as usize;
            let lent = handler.buffer(&header).map_err(|_| ReadEnd::Refused)?;
            let whole = self.buffer.len() >= HEADER_LEN + len;
            match lent {
                None if whole => {
                    let payload = self.take(len);
                    handler.receive(header, payload).map_err(|_| ReadEnd::Refused)?;
                }
                None => {
                    // The rest is read behind what is there.
                    self.long = if len >= LONG { HEADER_LEN + len } else { 0 };
                    break;
                }
                Some(target) => self.begin_bulk(header, target, handler)?,
            }
            if !self.deliver_whole(handler)? {
                break;
            }
        }
        Ok(())
    }

    /// Delivers the frames that are whole, up to one that may have a buffer of its own. `Ok(false)`: the turn is over before.
    fn deliver_whole(&mut self, handler: &dyn LinkHandler) -> Result<bool, ReadEnd> {
        loop {
            // Views of one piece, because cutting the buffer for each frame costs more than all the rest.
            let run = self.run();
            let frames = run.frames;
            self.frames += frames;
            let run = match run {
                Run { len: 0, .. } => return Ok(true),
                Run { len, .. } if len == self.long => self.take_long(),
                Run { len, short, .. } => {
                    self.long = 0;
                    if short { self.copy_out(len) } else { self.cut(len) }
                }
            };
            // A client that waits for each answer does not pay for the clock: it has one frame in a turn.
            let is_lone = frames == 1 && self.buffer.is_empty() && self.turn.is_none();
            let began = (!is_lone || self.most_frames == 1).then(Instant::now);
            let mut run = Frames::new(run);
            handler.receive_frames(&mut run).map_err(|_| ReadEnd::Refused)?;
            if let Some(error) = run.malformed() {
                return Err(ReadEnd::Malformed(error.to_string()));
            }
            if let Some(began) = began
                && self.have_taken_long(began, frames)
            {
                self.left_frames = !self.buffer.is_empty();
                return Ok(false);
            }
        }
    }

    /// Adapts how many frames are delivered together to how long these have taken. Whether the turn is over.
    fn have_taken_long(&mut self, began: Instant, frames: usize) -> bool {
        let now = Instant::now();
        let took = now - began;
        if took > LONG_TURN {
            self.most_frames = (frames / 4).max(1);
        } else if frames == self.most_frames && took < LONG_TURN / 4 {
            self.most_frames = (2 * frames).min(MOST_FRAMES);
        }
        now - *self.turn.get_or_insert(began) > LONG_TURN
    }

    /// The frames at the front of the buffer that can be delivered together.
    fn run(&self) -> Run {
        let mut run = Run { frames: 0, len: 0, short: false };
        while let Some(header) = self.buffer[run.len..].first_chunk::<HEADER_LEN>() {
            let payload = Header::payload_len(header);
            let (next, short) = (run.len + HEADER_LEN + payload, payload < SHORT_PAYLOAD);
            let most = if short { SHORT_PAYLOADS_SHARE } else { BUFFER };
            let fits = run.len == 0 || short == run.short && next <= most;
            let fits = fits && run.frames < self.most_frames;
            if !fits || next > self.buffer.len() || FrameType(header[0]) == FrameType::FRAGMENT {
                break;
            }
            run = Run { frames: run.frames + 1, len: next, short };
        }
        run
    }

    /// Takes short frames off the buffer, all of them in one copy.
    fn copy_out(&mut self, len: usize) -> Bytes {
        if self.small_frames.capacity() < len {
            // Takes its old allocation back if nobody has a view of it any more. A few frames need no more than the first buffer.
            self.small_frames.reserve(if len <= FIRST / 4 { 2 * FIRST } else { SHORT_PAYLOADS_SHARE });
        }
        self.small_frames.extend_from_slice(&self.buffer[..len]);
        self.buffer.advance(len);
        self.bytes_copied += len as u64;
        self.small_frames.split().freeze()
    }

    /// Takes frames off the buffer that are not short.
    fn cut(&mut self, len: usize) -> Bytes {
        if self.size <= BUFFER {
            return self.buffer.split_to(len).freeze();
        }
        // A longer one was expected, and views of these would keep the buffer that was got for it.
        let cut = Bytes::copy_from_slice(&self.buffer[..len]);
        self.buffer.advance(len);
        self.bytes_copied += len as u64;
        cut
    }

    /// Takes a long frame and the buffer that was got for it. There is another when there is more to read: a connection that
    /// is silent then keeps none.
    fn take_long(&mut self) -> Bytes {
        let next = BytesMut::from(&self.buffer[self.long..]);
        let size = std::mem::replace(&mut self.size, next.capacity());
        let mut frame = std::mem::replace(&mut self.buffer, next);
        frame.truncate(self.long);
        buffer_pool::share(frame, size)
    }

    /// Takes a header off the buffer, and the payload behind it.
    fn take(&mut self, len: usize) -> Bytes {
        let _header = self.buffer.split_to(HEADER_LEN);
        self.buffer.split_to(len).freeze()
    }

    fn begin_bulk(
        &mut self,
        header: Header,
        mut target: BytesMut,
        handler: &dyn LinkHandler,
    ) -> Result<(), ReadEnd> {
        let len = header.len as usize;
        let have = len.min(self.buffer.len() - HEADER_LEN);
        target.extend_from_slice(&self.take(have));
        self.bytes_copied += have as u64;
        self.read_size = SHORT_READ;
        self.bulk = Some(Bulk { header, target, missing: len - have });
        if have == len { self.finish_bulk(handler) } else { Ok(()) }
    }

    fn finish_bulk(&mut self, handler: &dyn LinkHandler) -> Result<(), ReadEnd> {
        let Some(Bulk { header, target, .. }) = self.bulk.take() else { return Ok(()) };
        self.frames += 1;
        handler.filled(header, target).map_err(|_| ReadEnd::Refused)
    }

    /// The first bytes of a connection tell a farcall peer from any other. `Ok(false)`: not all are there yet.
    fn check_preface(&mut self) -> Result<bool, ReadEnd> {
        let n = self.buffer.len().min(PREFACE.len());
        if self.buffer[..n] != PREFACE[..n] {
            if is_tls(&self.buffer) {
                return Err(ReadEnd::Failed(SPEAKS_TLS.into()));
            }
            let seen = self.buffer[..n].escape_ascii();
            return Err(ReadEnd::Failed(format!(
                "the peer does not speak farcall: its first bytes are `{seen}`; is the port right?"
            )));
        }
        if n < PREFACE.len() {
            return Ok(false);
        }
        let _preface = self.buffer.split_to(n);
        self.greeted = true;
        Ok(true)
    }
}

fn take(least: usize) -> Result<BytesMut, ReadEnd> {
    buffer_pool::take(least).map_err(|_| {
        ReadEnd::Failed(format!(
            "this process has no memory for {least} bytes of what the peer sends; give it more, or lower limits.memory"
        ))
    })
}

const SPEAKS_TLS: &str = "the peer speaks TLS, and this side does not; a server needs a [tls] section for that, and a client \
    that or an address with `+tls`";

/// Whether bytes begin with a TLS record: its type and the first byte of its version (RFC 8446, section 5.1).
fn is_tls(begin: &[u8]) -> bool {
    matches!(begin, [20..=23, 3, ..])
}

/// Whole frames that are all short, or all not.
struct Run {
    frames: usize,
    len: usize,
    short: bool,
}

#[inline]
fn decode(header: &[u8; HEADER_LEN]) -> Result<Header, ReadEnd> {
    match Header::decode(header) {
        Ok(header) if header.len as usize <= MAX_FRAME => Ok(header),
        decoded => Err(malformed(decoded)),
    }
}

#[cold]
fn malformed(decoded: Result<Header, WireError>) -> ReadEnd {
    ReadEnd::Malformed(match decoded {
        Ok(Header { len, .. }) => format!("the peer sent a frame of {len} bytes; {MAX_FRAME} is the limit"),
        Err(error) => error.to_string(),
    })
}
