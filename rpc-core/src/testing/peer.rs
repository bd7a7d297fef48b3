//! A scripted peer, which sends and expects single frames.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::end::{End, Event, Queue};
use crate::codec::{Codec, Raw};
use crate::payload::Payload;
use crate::proto::message::Frame;
use crate::proto::wire::{
    Bind, BindMethod, Close, CloseCode, Content, FrameType, Header, Hello, RequestHead, ResponseHead,
    ResponseKind, VERSION, flags,
};
use crate::service::ServiceInfo;
use crate::transport::Link;

/// A peer that a test plays, frame by frame, valid or not. Its session is on one link.
#[derive(Debug)]
pub struct Peer {
    link: Arc<dyn Link>,
    /// `None` as long as the peer does not read.
    end: Option<End>,
    seq: u32,
}

impl Peer {
    /// Returns a peer that does not read yet.
    pub fn new(link: Arc<dyn Link>) -> Self {
        Self { link, end: None, seq: 0 }
    }

    /// Returns the link.
    pub fn link(&self) -> &Arc<dyn Link> {
        &self.link
    }

    /// Starts to read.
    pub fn read(&mut self) {
        self.end = Some(End::start(self.link.clone()));
    }

    /// Returns a peer after the exchange of HELLOs.
    pub async fn greeted(link: Arc<dyn Link>, hello: Hello) -> Self {
        let mut peer = Self::new(link);
        peer.read();
        peer.hello(&hello);
        peer.expect(FrameType::HELLO).await;
        peer
    }

    /// Sends a HELLO.
    pub fn hello(&self, hello: &Hello) {
        let mut payload = BytesMut::new();
        hello.encode(&mut payload);
        self.link_frame(FrameType::HELLO, payload);
    }

    /// Sends exactly this frame. It is lost if the link has no room for it.
    pub fn send(&self, mut header: Header, payload: impl Into<Bytes>) {
        let payload: Bytes = payload.into();
        header.len = payload.len() as u32;
        let frame = Frame { header, pieces: payload.into() };
        self.link.send(&mut Queue::from([frame]));
    }

    /// Sends a frame of the link, which has no number.
    pub fn link_frame(&self, kind: FrameType, payload: impl Into<Bytes>) {
        self.send(Header::new(kind, 0), payload);
    }

    /// Sends a session frame with the next number.
    pub fn session_frame(&mut self, kind: FrameType, call: u64, flags: u8, payload: impl Into<Bytes>) {
        self.seq = self.seq.wrapping_add(1);
        let header = Header { seq: self.seq, flags, ..Header::new(kind, call) };
        self.send(header, payload);
    }

    /// Accounts for session frames that went by another link.
    pub fn skip(&mut self, frames: u32) {
        self.seq = self.seq.wrapping_add(frames);
    }

    /// Announces this service, with the codec `Raw`, as number 0.
    pub fn bind(&mut self, info: &ServiceInfo) {
        let methods = info.methods.iter();
        let methods =
            methods.map(|m| BindMethod { hash: m.hash(), kind: m.kind as u8, fingerprint: m.fingerprint });
        let bind = Bind {
            service: 0,
            name: info.name.to_string(),
            codec: <Raw as Codec>::NAME.to_owned(),
            methods: methods.collect(),
        };
        let mut payload = BytesMut::new();
        bind.encode(&mut payload);
        self.session_frame(FrameType::BIND, 0, 0, payload);
    }

    /// Sends a request to a method of the announced service.
    pub fn request(&mut self, call: u64, method: usize, argument: &[u8]) {
        self.request_with(call, method, b"", argument);
    }

    /// Sends a request with this metadata block, valid or not.
    pub fn request_with(&mut self, call: u64, method: usize, metadata: &[u8], argument: &[u8]) {
        let payload = request_with(method, metadata, argument);
        self.session_frame(FrameType::REQUEST, call, 0, payload);
    }

    /// Sends the first frame of a message in fragments.
    pub fn begin(&mut self, kind: FrameType, call: u64, total: u32, first: &[u8]) {
        let payload = [&total.to_le_bytes(), first].concat();
        self.session_frame(kind, call, flags::FRAGMENTED, payload);
    }

    /// Sends an answer.
    pub fn respond(&mut self, call: u64, body: &[u8]) {
        self.respond_with(call, b"", body);
    }

    /// Sends an answer with this metadata block, valid or not.
    pub fn respond_with(&mut self, call: u64, metadata: &[u8], body: &[u8]) {
        let content = content(metadata, body);
        let mut payload = BytesMut::new();
        ResponseHead { kind: ResponseKind::Ok }.encode(&content, &mut payload).expect("few attachments");
        payload.extend_from_slice(body);
        self.session_frame(FrameType::RESPONSE, call, 0, payload);
    }

    /// Returns the next frame. `None` if the link has ended.
    ///
    /// # Panics
    ///
    /// If the peer does not read, or nothing happens for a minute.
    pub async fn next(&mut self) -> Option<(Header, Bytes)> {
        match self.end.as_mut().expect("this peer reads").next().await? {
            Event::Frame(header, payload) => Some((header, payload)),
            Event::End(_) => None,
        }
    }

    /// Returns the next frame of this type, and skips others.
    ///
    /// # Panics
    ///
    /// If the link ends or the other side closes before one arrives, or nothing happens for a minute.
    pub async fn expect(&mut self, kind: FrameType) -> (Header, Bytes) {
        loop {
            let (header, payload) = self.next().await.unwrap_or_else(|| panic!("ended before any {kind:?}"));
            if header.kind == kind {
                return (header, payload);
            }
            assert_ne!(header.kind, FrameType::CLOSE, "closed: {:?}", Close::decode(payload));
        }
    }

    /// Waits until the other side closes with this code and these words in its reason.
    ///
    /// # Panics
    ///
    /// If the other side closes otherwise, or nothing happens for a minute.
    pub async fn expect_close(&mut self, code: CloseCode, words: &str) {
        while let Some((header, payload)) = self.next().await {
            if header.kind == FrameType::CLOSE {
                let close = Close::decode(payload).expect("a valid CLOSE");
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

/// Returns the payload of a REQUEST.
pub fn request(method: usize, argument: &[u8]) -> Bytes {
    request_with(method, b"", argument)
}

fn request_with(method: usize, metadata: &[u8], argument: &[u8]) -> Bytes {
    let content = content(metadata, argument);
    let head = RequestHead { service: 0, method: method as u16, attempt: 1, timeout_us: 0 };
    let mut payload = BytesMut::new();
    head.encode(&content, &mut payload).expect("few attachments");
    payload.extend_from_slice(argument);
    payload.freeze()
}

/// Returns a HELLO with the limits of a usual client and no upgrade.
pub fn hello() -> Hello {
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
