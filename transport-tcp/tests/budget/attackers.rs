//! Attackers, which send single frames.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use farcall_core::proto::wire::{
    Bind, BindMethod, Close, FrameType, HEADER_LEN, Header, Hello, PREFACE, features, flags,
};
use farcall_core::testing::{hello, request};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

use crate::PATIENCE;
use crate::server::{BIG, ECHO, HANG, HOLD, IGNORE, info};

/// A connection, encrypted or not.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// A connection of which only so many bytes more go out, and the others are lost.
pub(crate) struct Cut(pub(crate) TcpStream, pub(crate) Arc<AtomicUsize>);

impl AsyncRead for Cut {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, to)
    }
}

impl AsyncWrite for Cut {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let left = self.1.load(Ordering::Relaxed);
        if left == 0 {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = ready!(Pin::new(&mut self.0).poll_write(cx, &bytes[..bytes.len().min(left)]))?;
        self.1.store(left - written, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// A client that sends single frames, valid or not, and reads when it is told to.
pub(crate) struct Attacker {
    pub(crate) socket: Box<dyn Socket>,
    seq: u32,
}

/// Connects from 127.0.0.`n`.
pub(crate) async fn connected(server: SocketAddr, n: u8) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.set_recv_buffer_size(4096).ok()?;
    socket.bind((Ipv4Addr::new(127, 0, 0, n), 0).into()).ok()?;
    socket.connect(server).await.ok()
}

impl Attacker {
    /// Connects from 127.0.0.`n`.
    pub(crate) async fn new(server: SocketAddr, n: u8) -> Self {
        Self::try_new(server, n).await.unwrap()
    }

    /// Connects from 127.0.0.`n`. `None` if the server does not want it, or the machine has no port for it.
    pub(crate) async fn try_new(server: SocketAddr, n: u8) -> Option<Self> {
        Self::greet(Box::new(connected(server, n).await?)).await
    }

    /// Connects by TLS from 127.0.0.`n`. `None` if the server does not want it, or the machine has no port for it.
    pub(crate) async fn try_encrypted(server: SocketAddr, n: u8, tls: &TlsConnector) -> Option<Self> {
        Self::encrypt(connected(server, n).await?, server, tls).await
    }

    /// Greets a server by TLS over this connection. `None` if the server does not want it.
    pub(crate) async fn encrypt(
        connection: impl Socket + 'static,
        server: SocketAddr,
        tls: &TlsConnector,
    ) -> Option<Self> {
        let name = ServerName::IpAddress(server.ip().into());
        Self::greet(Box::new(tls.connect(name, connection).await.ok()?)).await
    }

    /// Says HELLO and BIND.
    async fn greet(mut socket: Box<dyn Socket>) -> Option<Self> {
        socket.write_all(PREFACE).await.ok()?;
        let mut attacker = Self { socket, seq: 0 };
        let mut payload = BytesMut::new();
        let features = features::STREAMS;
        Hello { features, stream_items: 10, stream_bytes: 1000, ..hello() }.encode(&mut payload);
        attacker.send(Header::new(FrameType::HELLO, 0), &payload).await;
        let info = info();
        let methods = info.methods.iter();
        let methods =
            methods.map(|m| BindMethod { hash: m.hash(), kind: m.kind as u8, fingerprint: m.fingerprint });
        let bind = Bind { service: 0, name: "test".into(), codec: "raw".into(), methods: methods.collect() };
        payload.clear();
        bind.encode(&mut payload);
        attacker.message(FrameType::BIND, 0, 0, &payload).await;
        Some(attacker)
    }

    /// Sends a frame. Returns false if the server has closed the connection.
    pub(crate) async fn send(&mut self, mut header: Header, payload: &[u8]) -> bool {
        header.len = payload.len() as u32;
        let frame = [&header.encode()[..], payload].concat();
        self.socket.write_all(&frame).await.is_ok() && self.socket.flush().await.is_ok()
    }

    pub(crate) async fn message(&mut self, kind: FrameType, call: u64, flags: u8, payload: &[u8]) -> bool {
        self.seq += 1;
        self.send(Header { seq: self.seq, flags, ..Header::new(kind, call) }, payload).await
    }

    pub(crate) async fn request(&mut self, call: u64, method: usize, argument: &[u8]) -> bool {
        self.message(FrameType::REQUEST, call, 0, &request(method, argument)).await
    }

    /// Sends requests without arguments, all at once.
    pub(crate) async fn requests(&mut self, calls: std::ops::RangeInclusive<u64>, method: usize) {
        let mut frames = Vec::new();
        for call in calls {
            self.seq += 1;
            let payload = request(method, b"");
            let len = payload.len() as u32;
            frames.extend_from_slice(
                &Header { seq: self.seq, len, ..Header::new(FrameType::REQUEST, call) }.encode(),
            );
            frames.extend_from_slice(&payload);
        }
        self.socket.write_all(&frames).await.unwrap();
    }

    /// Reads the next frame; `None` at the end.
    pub(crate) async fn read(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut header = [0; HEADER_LEN];
        let read = async {
            self.socket.read_exact(&mut header).await.ok()?;
            let header = Header::decode(&header).unwrap();
            let mut payload = vec![0; header.len as usize];
            self.socket.read_exact(&mut payload).await.ok()?;
            Some((header, payload))
        };
        tokio::time::timeout(PATIENCE, read).await.expect("nothing comes")
    }

    /// Reads to the end, and returns the reason of the CLOSE.
    pub(crate) async fn reason(&mut self) -> Option<String> {
        let mut preface = [0; PREFACE.len()];
        self.socket.read_exact(&mut preface).await.ok()?;
        while let Some((header, payload)) = self.read().await {
            if header.kind == FrameType::CLOSE {
                return Some(Close::decode(payload.into()).unwrap().reason);
            }
        }
        None
    }
}

/// Sends a frame of the greatest length but for its last byte.
pub(crate) async fn half_a_frame(mut attacker: Attacker) -> Attacker {
    const LEN: u32 = 256 << 10;
    attacker.seq += 1;
    let header = Header { seq: attacker.seq, len: LEN, ..Header::new(FrameType::REQUEST, 1) };
    let frame = [&header.encode()[..], &vec![0; LEN as usize - 1]].concat();
    // The server may have closed it.
    let _ = attacker.socket.write_all(&frame).await;
    attacker
}

/// Announces as many services as a connection may, with the longest names. The server has none of them.
pub(crate) async fn announced_services(mut attacker: Attacker) -> Attacker {
    let mut frames = Vec::new();
    let long = "x".repeat(255);
    for service in 1..1024 {
        let mut bind = BytesMut::new();
        Bind { service, name: long.clone(), codec: long.clone(), methods: Vec::new() }.encode(&mut bind);
        attacker.seq += 1;
        let header = Header { seq: attacker.seq, len: bind.len() as u32, ..Header::new(FrameType::BIND, 0) };
        frames.extend_from_slice(&header.encode());
        frames.extend_from_slice(&bind);
    }
    // The server may have closed it.
    let _ = attacker.socket.write_all(&frames).await;
    attacker
}

/// Sends short items that nobody reads. Each comes among frames that are skipped, with which it shares a buffer.
pub(crate) async fn unread_items(mut attacker: Attacker) -> Attacker {
    const SKIPPED: FrameType = FrameType(0xbf);
    let item = [&[0; 4][..], &1100_u32.to_le_bytes(), &[0; 1101]].concat();
    for call in 1..1000 {
        let mut goes_on = attacker.request(call, IGNORE, b"").await;
        for _ in 0..50 {
            goes_on &= attacker.message(FrameType::ITEM, call, 0, &item).await;
            for _ in 0..4 {
                goes_on &= attacker.message(SKIPPED, 0, 0, &[0; 15_000]).await;
            }
        }
        if !goes_on {
            break;
        }
    }
    attacker
}

/// Calls with lists of empty elements, which take much more memory than bytes.
pub(crate) async fn empty_elements(mut attacker: Attacker) -> Attacker {
    // The length, and then a byte for each element: 54 KiB.
    const ELEMENTS: usize = 220;
    let list = [&[0x80 | (ELEMENTS % 128) as u8, (ELEMENTS / 128) as u8][..], &[0; ELEMENTS]].concat();
    for call in 1..4000 {
        if !attacker.request(call, HOLD, &list).await {
            break;
        }
    }
    attacker
}

/// Calls with 1 MiB of zeros, compressed.
pub(crate) async fn compressed_zeros(mut attacker: Attacker) -> Attacker {
    let request = request_of_zeros();
    for call in 1..4000 {
        if !attacker.message(FrameType::REQUEST, call, 0, &request).await {
            break;
        }
    }
    attacker
}

/// Returns a REQUEST whose arguments are 1 MiB of zeros, compressed by Zstandard.
fn request_of_zeros() -> Vec<u8> {
    const LEN: u32 = 1 << 20;
    const BLOCK: u32 = 128 << 10;
    // Attempt 1, compression 1; no attachments, deadline or metadata.
    let mut request = vec![0, 0, HANG as u8, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    request.extend_from_slice(&LEN.to_le_bytes());
    request.push(0);
    // The magic number, and a header that has nothing but the length (RFC 8878, section 3.1.1).
    request.extend_from_slice(&[0x28, 0xb5, 0x2f, 0xfd, 0xa0]);
    request.extend_from_slice(&LEN.to_le_bytes());
    for block in 1..=LEN / BLOCK {
        // One byte, so many times.
        let is_last = u32::from(block == LEN / BLOCK);
        request.extend_from_slice(&(BLOCK << 3 | 1 << 1 | is_last).to_le_bytes()[..3]);
        request.push(0);
    }
    request
}

/// Begins messages and never ends them.
pub(crate) async fn half_messages(mut attacker: Attacker) -> Attacker {
    const TOTAL: u32 = 16 << 20;
    let piece = vec![0; 256 << 10];
    for call in 1..100 {
        let first = [&TOTAL.to_le_bytes()[..], &piece[..4000]].concat();
        if !attacker.message(FrameType::REQUEST, call, flags::FRAGMENTED, &first).await {
            break;
        }
        for _ in 0..60 {
            if !attacker.message(FrameType::FRAGMENT, call, 0, &piece).await {
                return attacker;
            }
        }
    }
    attacker
}

/// Calls a method that never ends, with long arguments.
pub(crate) async fn hanging_calls(mut attacker: Attacker) -> Attacker {
    for call in 1..4000 {
        if !attacker.request(call, HANG, &[1; 100_000]).await {
            break;
        }
    }
    attacker
}

/// Asks for long answers and reads none.
pub(crate) async fn unread_answers(mut attacker: Attacker) -> Attacker {
    for call in 1..4000 {
        if !attacker.request(call, BIG, b"").await {
            break;
        }
    }
    attacker
}

/// Sends frames of which most are valid, some may not be sent, and some are broken.
pub(crate) async fn random_frames(mut attacker: Attacker) -> Attacker {
    let mut rng = fastrand::Rng::new();
    for _ in 0..2000 {
        let call = rng.u64(1..20);
        let (kind, flags) = match rng.u8(..10) {
            0..5 => (FrameType::REQUEST, 0),
            5 => (FrameType::REQUEST, flags::FRAGMENTED),
            6 => (FrameType::FRAGMENT, 0),
            7 => (FrameType::CANCEL, 0),
            8 => (FrameType::PING, 0),
            _ => (FrameType(rng.u8(..)), rng.u8(..)),
        };
        let mut payload = match kind {
            FrameType::REQUEST => {
                request([ECHO, HANG, BIG][rng.usize(..3)], &vec![1; rng.usize(..50_000)]).to_vec()
            }
            FrameType::CANCEL => vec![rng.u8(..3)],
            FrameType::PING => vec![0; 8],
            _ => vec![1; rng.usize(..50_000)],
        };
        if flags & flags::FRAGMENTED != 0 {
            payload.splice(..0, rng.u32(..20 << 20).to_le_bytes());
        }
        if rng.u8(..20) == 0 && !payload.is_empty() {
            let at = rng.usize(..payload.len().min(64));
            payload[at] ^= 1 << rng.u8(..8);
        }
        if !attacker.message(kind, call, flags, &payload).await {
            break;
        }
    }
    attacker
}
