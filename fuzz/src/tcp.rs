//! TCP: a byte stream becomes frames.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use farcall_core::proto::wire::{FrameType, HEADER_LEN, Header, PREFACE, WireError};
use farcall_core::transport::{Link as _, LinkEnd, LinkHandler};
use farcall_tcp::{Acceptor, TcpConfig, TcpLink};
use tokio::runtime::{Builder, Runtime};

use crate::script::{Script, Step};

/// The longest payload of a frame that the transport takes, in bytes.
const MAX_FRAME: usize = 256 << 10;

/// The most that one input sends, in bytes.
const MAX_STREAM: usize = 1 << 20;

/// The most writes that one input makes.
const MAX_WRITES: usize = 64;

/// Sends the input over a real connection in pieces of the sizes that its first four bytes say. The frames must arrive
/// unchanged, up to the first malformed one.
pub fn tcp(data: &[u8]) {
    thread_local!(static SOCKET: (Runtime, Acceptor) = listen());
    let Some((&[a, b, c, d], script)) = data.split_first_chunk() else { return };
    let sizes = [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])].map(usize::from);
    let stream = stream(script);
    SOCKET.with(|(runtime, acceptor)| {
        let frames = runtime.block_on(send(acceptor, &stream, sizes));
        let expected = expected(&stream[PREFACE.len()..]);
        assert_eq!(frames.len(), expected.len(), "as many frames arrive as were sent");
        assert!(frames == expected, "frames arrive as they were sent");
    });
}

fn listen() -> (Runtime, Acceptor) {
    // The runtime asks for events after every task, so that a few turns are enough to see what has come.
    let runtime =
        Builder::new_current_thread().enable_all().event_interval(1).build().expect("there is a runtime");
    let acceptor =
        runtime.block_on(Acceptor::bind("127.0.0.1:0", TcpConfig::default())).expect("a port is free");
    (runtime, acceptor)
}

/// The bytes that a script stands for. The length that a step gives counts four times, so that short inputs make long
/// frames; event 255 adds bytes that are no frame.
fn stream(script: &[u8]) -> Vec<u8> {
    let mut stream = PREFACE.to_vec();
    for Step { event, mut header, payload, .. } in Script::new(script) {
        if event == 255 {
            stream.extend_from_slice(&payload);
            continue;
        }
        let len = if event % 2 == 0 { payload.len() } else { usize::from(event) * 4 * payload.len() };
        header.len = len as u32;
        stream.extend_from_slice(&header.encode());
        stream.extend(payload.iter().cycle().take(len));
        if stream.len() > MAX_STREAM {
            break;
        }
    }
    stream
}

/// Frames of a byte stream, found in the simplest way.
fn expected(mut stream: &[u8]) -> Vec<(Header, Bytes)> {
    let mut frames = Vec::new();
    while let Some((header, rest)) = stream.split_first_chunk::<HEADER_LEN>() {
        let Ok(header) = Header::decode(header) else { break };
        let len = header.len as usize;
        if len > MAX_FRAME || len > rest.len() {
            break;
        }
        frames.push((header, Bytes::copy_from_slice(&rest[..len])));
        stream = &rest[len..];
    }
    frames
}

/// Sends the stream in pieces of these sizes in turn, and returns what the other end delivers until the link ends.
async fn send(acceptor: &Acceptor, stream: &[u8], sizes: [usize; 2]) -> Vec<(Header, Bytes)> {
    let mut socket = TcpStream::connect(acceptor.local_addr().expect("it listens")).expect("it accepts");
    let link = acceptor.accept().await;
    let arrivals = Arc::new(Arrivals::default());
    Arc::clone(&link).start(Arc::clone(&arrivals) as Arc<dyn LinkHandler>);
    let (mut rest, mut sizes) = (stream, sizes.into_iter().cycle());
    while !rest.is_empty() && arrivals.lock().end.is_none() {
        let size = sizes.next().unwrap_or_default().max(stream.len() / MAX_WRITES).max(1);
        let (piece, behind) = rest.split_at(size.min(rest.len()).min(64 << 10));
        // The link may be over: what it has delivered counts.
        if socket.write_all(piece).is_err() {
            break;
        }
        rest = behind;
        let sent = (stream.len() - rest.len()) as u64;
        read_until(&link, &arrivals, sent).await;
    }
    drop(socket);
    read_until(&link, &arrivals, u64::MAX).await;
    std::mem::take(&mut arrivals.lock().frames)
}

/// Lets the link read until it has read so many bytes or is over.
async fn read_until(link: &TcpLink, arrivals: &Arrivals, bytes: u64) {
    while link.counters().bytes_received < bytes && arrivals.lock().end.is_none() {
        tokio::task::yield_now().await;
    }
}

#[derive(Default)]
struct Arrivals(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    frames: Vec<(Header, Bytes)>,
    end: Option<LinkEnd>,
}

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinkHandler for Arrivals {
    fn receive(&self, header: Header, payload: Bytes) -> Result<(), WireError> {
        self.lock().frames.push((header, payload));
        Ok(())
    }

    fn buffer(&self, header: &Header) -> Result<Option<BytesMut>, WireError> {
        // The session lends a buffer for a FRAGMENT, unless it has no memory.
        let lends = header.kind == FrameType::FRAGMENT && header.call.is_multiple_of(2);
        Ok(lends.then(|| BytesMut::with_capacity(header.len as usize)))
    }

    fn closed(&self, end: LinkEnd) {
        self.lock().end = Some(end);
    }
}
