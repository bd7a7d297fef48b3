//! A scripted peer, which sends and expects single frames.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use farcall_core::client::{Connector, RawChannel};
use farcall_core::codec::Raw;
use farcall_core::config::Limits;
use farcall_core::payload::Payload;
use farcall_core::proto::message::Frame;
use farcall_core::proto::wire::{
    Bind, BindMethod, Close, CloseCode, Content, FrameType, Header, Hello, RequestHead, ResponseHead,
    ResponseKind, VERSION, WireError, flags,
};
use farcall_core::service::ServiceInfo;
use farcall_core::status::Result;
use farcall_core::transport::{BoxFuture, FrameSource, Link, LinkEnd, LinkHandler, memory};
use tokio::sync::mpsc;

use super::tap::Tap;

/// A guard against hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Peer {
    pub(crate) link: Arc<dyn Link>,
    arrived: Option<mpsc::UnboundedReceiver<(Header, Bytes)>>,
    seq: u32,
}

struct Recorder(mpsc::UnboundedSender<(Header, Bytes)>);

impl LinkHandler for Recorder {
    fn receive(&self, header: Header, payload: Bytes) -> Result<(), WireError> {
        // Fails if the test has seen enough and ended.
        let _ = self.0.send((header, payload));
        Ok(())
    }

    fn closed(&self, _: LinkEnd) {}
}

#[derive(Default)]
struct Queue(VecDeque<Frame>);

impl FrameSource for Queue {
    fn next(&mut self, _: usize) -> Option<Frame> {
        self.0.pop_front()
    }
}

impl Peer {
    /// Returns a peer that does not read yet.
    pub(crate) fn new(link: Arc<dyn Link>) -> Self {
        Self { link, arrived: None, seq: 0 }
    }

    /// Starts to read.
    pub(crate) fn read(&mut self) {
        let (sender, arrived) = mpsc::unbounded_channel();
        self.link.clone().start(Arc::new(Recorder(sender)));
        self.arrived = Some(arrived);
    }

    /// Returns a peer after the exchange of HELLOs.
    pub(crate) async fn greeted(link: Arc<dyn Link>, hello: Hello) -> Self {
        let mut peer = Self::new(link);
        peer.read();
        peer.hello(&hello);
        peer.expect(FrameType::HELLO).await;
        peer
    }

    pub(crate) fn hello(&mut self, hello: &Hello) {
        let mut payload = BytesMut::new();
        hello.encode(&mut payload);
        self.link_frame(FrameType::HELLO, payload);
    }

    /// Sends exactly this frame. It must fit the link, or it is lost: no test sends more than a link holds without
    /// reading.
    pub(crate) fn send(&mut self, mut header: Header, payload: impl Into<Bytes>) {
        let payload: Bytes = payload.into();
        header.len = payload.len() as u32;
        let frame = Frame { header, pieces: payload.into() };
        self.link.send(&mut Queue([frame].into()));
    }

    pub(crate) fn link_frame(&mut self, kind: FrameType, payload: impl Into<Bytes>) {
        self.send(Header::new(kind, 0), payload);
    }

    /// Sends a session frame with the next number.
    pub(crate) fn session_frame(&mut self, kind: FrameType, call: u64, flags: u8, payload: impl Into<Bytes>) {
        self.seq = self.seq.wrapping_add(1);
        let header = Header { seq: self.seq, flags, ..Header::new(kind, call) };
        self.send(header, payload);
    }

    /// Accounts for session frames that went by another link.
    pub(crate) fn skip(&mut self, frames: u32) {
        self.seq = self.seq.wrapping_add(frames);
    }

    /// Announces the tests' service as number 0.
    pub(crate) fn bind(&mut self) {
        self.bind_to(&super::info("test"));
    }

    /// Announces this service as number 0.
    pub(crate) fn bind_to(&mut self, info: &ServiceInfo) {
        let methods = info.methods.iter();
        let methods =
            methods.map(|m| BindMethod { hash: m.hash(), kind: m.kind as u8, fingerprint: m.fingerprint });
        let bind = Bind {
            service: 0,
            name: info.name.to_string(),
            codec: <Raw as farcall_core::codec::Codec>::NAME.to_owned(),
            methods: methods.collect(),
        };
        let mut payload = BytesMut::new();
        bind.encode(&mut payload);
        self.session_frame(FrameType::BIND, 0, 0, payload);
    }

    pub(crate) fn request(&mut self, call: u64, method: usize, argument: &[u8]) {
        self.request_with(call, method, b"", argument);
    }

    /// Sends a request with this metadata block, valid or not.
    pub(crate) fn request_with(&mut self, call: u64, method: usize, metadata: &[u8], argument: &[u8]) {
        let payload = request_with(method, metadata, argument);
        self.session_frame(FrameType::REQUEST, call, 0, payload);
    }

    /// Sends the first frame of a message in fragments.
    pub(crate) fn begin(&mut self, kind: FrameType, call: u64, total: u32, first: &[u8]) {
        let payload = [&total.to_le_bytes(), first].concat();
        self.session_frame(kind, call, flags::FRAGMENTED, payload);
    }

    pub(crate) fn respond(&mut self, call: u64, body: &[u8]) {
        self.respond_with(call, b"", body);
    }

    /// Sends an answer with this metadata block, valid or not.
    pub(crate) fn respond_with(&mut self, call: u64, metadata: &[u8], body: &[u8]) {
        let content = content(metadata, body);
        let mut payload = BytesMut::new();
        ResponseHead { kind: ResponseKind::Ok }.encode(&content, &mut payload).unwrap();
        payload.extend_from_slice(body);
        self.session_frame(FrameType::RESPONSE, call, 0, payload);
    }

    /// Returns the next frame. `None` if the link has ended.
    pub(crate) async fn next(&mut self) -> Option<(Header, Bytes)> {
        let arrived = self.arrived.as_mut().expect("this peer reads");
        tokio::time::timeout(PATIENCE, arrived.recv()).await.expect("something must arrive")
    }

    /// Returns the next frame of this type, and skips others.
    pub(crate) async fn expect(&mut self, kind: FrameType) -> (Header, Bytes) {
        loop {
            let (header, payload) = self.next().await.unwrap_or_else(|| panic!("ended before any {kind:?}"));
            if header.kind == kind {
                return (header, payload);
            }
            assert_ne!(header.kind, FrameType::CLOSE, "closed: {:?}", Close::decode(payload));
        }
    }

    /// Waits until the other side closes with this code and reason.
    pub(crate) async fn expect_close(&mut self, code: CloseCode, words: &str) {
        while let Some((header, payload)) = self.next().await {
            if header.kind == FrameType::CLOSE {
                let close = Close::decode(payload).unwrap();
                assert_eq!(close.code, code, "{}", close.reason);
                assert!(close.reason.contains(words), "`{words}` is not in `{}`", close.reason);
                return;
            }
        }
        panic!("the link ended without a CLOSE about `{words}`");
    }
}

fn content(metadata: &[u8], body: &[u8]) -> Content {
    let payload = Payload::from_body(Bytes::copy_from_slice(body));
    Content { metadata: Bytes::copy_from_slice(metadata), payload }
}

pub(crate) fn request(method: usize, argument: &[u8]) -> Bytes {
    request_with(method, b"", argument)
}

fn request_with(method: usize, metadata: &[u8], argument: &[u8]) -> Bytes {
    let content = content(metadata, argument);
    let head = RequestHead { service: 0, method: method as u16, attempt: 1, timeout_us: 0 };
    let mut payload = BytesMut::new();
    head.encode(&content, &mut payload).unwrap();
    payload.extend_from_slice(argument);
    payload.freeze()
}

pub(crate) fn hello() -> Hello {
    Hello {
        version_min: VERSION,
        version_max: VERSION,
        features: 0,
        max_frame: 128 << 10,
        max_message: 64 << 20,
        max_assembly: 256 << 20,
        max_calls: 4096,
        max_metadata: 16 << 10,
        class: 0,
        security: 0,
        instance: 1,
        upgrades: Vec::new(),
        auth: Bytes::new(),
        stream_items: 0,
        stream_bytes: 0,
    }
}

/// A server that the test plays, on any number of connections.
pub(crate) struct Played {
    pair: fn() -> Pair,
    far: mpsc::UnboundedSender<Arc<dyn Link>>,
    taps: Arc<Mutex<Vec<Arc<Tap>>>>,
}

/// The two ends of a link.
pub(crate) type Pair = (Arc<dyn Link>, Arc<dyn Link>);

impl Connector for Played {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let (near, far) = (self.pair)();
        self.far.send(far).unwrap();
        let tap = Tap::new(near);
        self.taps.lock().unwrap().push(tap.clone());
        Box::pin(async { Ok(tap as Arc<dyn Link>) })
    }

    fn target(&self) -> String {
        "a server of this test".into()
    }
}

/// A caller, the servers' ends of its links, and taps of its own ends.
pub(crate) type Play = (RawChannel, mpsc::UnboundedReceiver<Arc<dyn Link>>, Arc<Mutex<Vec<Arc<Tap>>>>);

pub(crate) fn played() -> Play {
    played_by(memory::pair)
}

/// Like [`played`], with these links.
pub(crate) fn played_by(pair: fn() -> Pair) -> Play {
    played_with(pair, Limits::default())
}

/// Like [`played_by`], for a caller with these limits.
pub(crate) fn played_with(pair: fn() -> Pair, limits: Limits) -> Play {
    let (far, links) = mpsc::unbounded_channel();
    let taps = Arc::<Mutex<Vec<_>>>::default();
    let caller = RawChannel::new(Played { pair, far, taps: taps.clone() }, super::plain(limits));
    (caller, links, taps)
}
