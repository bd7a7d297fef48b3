//! Attackers, which send single frames.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::BytesMut;
use farcall_core::proto::wire::{Bind, BindMethod, Close, FrameType, HEADER_LEN, Header, PREFACE, flags};
use farcall_core::testing::{hello, request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::PATIENCE;
use crate::server::{BIG, ECHO, HANG, info};

/// A client that sends single frames, valid or not, and reads when it is told to.
pub(crate) struct Attacker {
    pub(crate) socket: TcpStream,
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
        let mut socket = connected(server, n).await?;
        socket.write_all(PREFACE).await.ok()?;
        let mut attacker = Self { socket, seq: 0 };
        let mut payload = BytesMut::new();
        hello().encode(&mut payload);
        attacker.send(Header::new(FrameType::HELLO, 0), &payload).await;
        let info = info();
        let methods = info.methods.iter();
        let methods = methods.map(|m| BindMethod { hash: m.hash(), kind: 0, fingerprint: m.fingerprint });
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
        self.socket.write_all(&frame).await.is_ok()
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
