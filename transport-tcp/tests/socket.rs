//! The link against a bare socket: what arrives in pieces, what is cut off, and peers that read slowly or not at all.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::future::pending;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use farcall_core::proto::message::Frame;
use farcall_core::proto::wire::{FrameType, HEADER_LEN, Header, PREFACE, WireError};
use farcall_core::transport::{BoxFuture, FrameSource, Link, LinkEnd, LinkHandler};
use farcall_tcp::{Acceptor, TcpConfig, TcpLink};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// A guard against hangs.
const PATIENCE: Duration = Duration::from_secs(60);

enum Event {
    Frame(Header, Bytes),
    Writable,
    End(LinkEnd),
}

struct Recorder(mpsc::UnboundedSender<Event>);

impl Recorder {
    fn note(&self, event: Event) {
        // The test may have seen enough.
        let _ = self.0.send(event);
    }
}

impl LinkHandler for Recorder {
    fn receive(&self, header: Header, payload: Bytes) -> Result<(), WireError> {
        self.note(Event::Frame(header, payload));
        Ok(())
    }

    fn buffer(&self, header: &Header) -> Result<Option<BytesMut>, WireError> {
        let bulk = header.kind == FrameType::FRAGMENT;
        Ok(bulk.then(|| BytesMut::with_capacity(header.len as usize)))
    }

    fn writable(&self) {
        self.note(Event::Writable);
    }

    fn closed(&self, end: LinkEnd) {
        self.note(Event::End(end));
    }
}

/// A bare socket, connected to a link that is started.
struct Pair {
    socket: TcpStream,
    link: Arc<TcpLink>,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Pair {
    async fn new() -> Self {
        let acceptor = Acceptor::bind("127.0.0.1:0", TcpConfig::default()).await.unwrap();
        let address = acceptor.local_addr().unwrap();
        let (socket, link) = tokio::join!(TcpStream::connect(address), acceptor.accept());
        let (sender, events) = mpsc::unbounded_channel();
        link.clone().start(Arc::new(Recorder(sender)));
        let socket = socket.unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket, link, events }
    }

    /// Sends until the peer, which does not read, stops it.
    async fn send_until_stopped(&mut self, source: &mut Endless) {
        self.link.send(source);
        while self.link.unsent() == 0 {
            assert!(
                matches!(next(&mut self.events).await, Event::Writable),
                "it was only the other tasks' turn"
            );
            self.link.send(source);
        }
    }

    async fn frame(&mut self) -> (u32, Bytes) {
        match next(&mut self.events).await {
            Event::Frame(header, payload) => (header.seq, payload),
            Event::Writable => panic!("nothing waits to be written"),
            Event::End(end) => panic!("ended early: {end}"),
        }
    }
}

async fn next(events: &mut mpsc::UnboundedReceiver<Event>) -> Event {
    tokio::time::timeout(PATIENCE, events.recv()).await.expect("something must happen").unwrap()
}

async fn end(events: &mut mpsc::UnboundedReceiver<Event>) -> LinkEnd {
    loop {
        if let Event::End(end) = next(events).await {
            return end;
        }
    }
}

fn encoded(kind: FrameType, seq: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header { seq, len: payload.len() as u32, ..Header::new(kind, 1) };
    [&header.encode(), payload].concat()
}

/// An endless supply of frames.
struct Endless {
    next: u32,
    payload: Bytes,
}

impl Endless {
    fn new(len: usize) -> Self {
        Self { next: 1, payload: vec![7; len].into() }
    }

    fn taken(&self) -> u32 {
        self.next - 1
    }
}

impl FrameSource for Endless {
    fn next(&mut self, max_payload: usize) -> Option<Frame> {
        assert!(self.payload.len() <= max_payload);
        let header =
            Header { seq: self.next, len: self.payload.len() as u32, ..Header::new(FrameType::REQUEST, 1) };
        self.next += 1;
        Some(Frame { header, pieces: self.payload.clone().into() })
    }

    /// As if each frame were the last one of a message of 10 MiB.
    fn held(&self) -> usize {
        (1 << 40) - self.taken() as usize * MESSAGE
    }
}

const MESSAGE: usize = 10 << 20;

#[tokio::test]
async fn frames_arrive_whole_however_they_are_cut() {
    let mut pair = Pair::new().await;
    let long = vec![9; 100_000];
    let mut bytes = PREFACE.to_vec();
    bytes.extend(encoded(FrameType::REQUEST, 1, b"abc"));
    bytes.extend(encoded(FrameType::REQUEST, 2, b""));
    for byte in bytes {
        pair.socket.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(pair.frame().await, (1, "abc".into()));
    assert_eq!(pair.frame().await, (2, Bytes::new()));
    // In one piece with the end of a header; straight to its place and not.
    for kind in [FrameType::REQUEST, FrameType::FRAGMENT] {
        let bytes = encoded(kind, 3, &long);
        for piece in [&bytes[..31], &bytes[31..40], &bytes[40..5000], &bytes[5000..]] {
            pair.socket.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(pair.frame().await, (3, long.clone().into()));
    }
}

#[tokio::test]
async fn frames_of_all_lengths_follow_each_other_in_any_order() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut frames = Vec::new();
        for _ in 0..200 {
            let len = rng.choice([1, 40, 1023, 1024, 5000, 16_383, 16_384, 65_536, 200_000]).unwrap();
            let kind = rng.choice([FrameType::REQUEST, FrameType::FRAGMENT]).unwrap();
            // Readers expect that long ones go on.
            let run = rng.usize(1..4);
            frames.resize(frames.len() + run, (kind, vec![rng.u8(..); len]));
        }
        let mut bytes = PREFACE.to_vec();
        for (seq, (kind, payload)) in frames.iter().enumerate() {
            bytes.extend(encoded(*kind, seq as u32, payload));
        }
        let Pair { mut socket, link: _link, mut events } = Pair::new().await;
        let writes = tokio::spawn(async move {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let most = rng.choice([16, 4096, 300_000]).unwrap();
                let cut = rng.usize(1..=most).min(rest.len());
                socket.write_all(&rest[..cut]).await.unwrap();
                tokio::task::yield_now().await;
                rest = &rest[cut..];
            }
            socket
        });
        for (seq, (_, payload)) in frames.into_iter().enumerate() {
            match next(&mut events).await {
                Event::Frame(header, arrived) => {
                    assert_eq!((header.seq, arrived.len()), (seq as u32, payload.len()), "seed {seed}");
                    assert!(arrived == payload, "seed {seed}: frame {seq} has changed");
                }
                Event::Writable => {}
                Event::End(end) => panic!("seed {seed}: {end}"),
            }
        }
        writes.await.unwrap();
    }
}

#[tokio::test]
async fn long_frames_one_after_the_other_are_read_to_where_they_stay() {
    let mut pair = Pair::new().await;
    pair.socket.write_all(PREFACE).await.unwrap();
    for seq in 1..=100 {
        pair.socket.write_all(&encoded(FrameType::REQUEST, seq, &[9; 50_000])).await.unwrap();
        assert_eq!(pair.frame().await, (seq, vec![9; 50_000].into()));
    }
    // The beginning of the first, and headers.
    assert!(pair.link.counters().bytes_copied < 10_000, "{:?}", pair.link.counters());
}

#[tokio::test]
async fn a_frame_in_place_of_a_long_one_does_not_keep_its_buffer() {
    let mut pair = Pair::new().await;
    pair.socket.write_all(PREFACE).await.unwrap();
    pair.socket.write_all(&encoded(FrameType::REQUEST, 1, &[9; 200_000])).await.unwrap();
    let (_, long) = pair.frame().await;
    let copied = pair.link.counters().bytes_copied;
    // It is read to where another long one was expected.
    pair.socket.write_all(&encoded(FrameType::REQUEST, 2, &[7; 2000])).await.unwrap();
    assert_eq!(pair.frame().await, (2, vec![7; 2000].into()));
    assert_eq!(pair.link.counters().bytes_copied, copied + 2000 + HEADER_LEN as u64);
    // And from then on they are short.
    for seq in 3..100 {
        pair.socket.write_all(&encoded(FrameType::REQUEST, seq, &[7; 2000])).await.unwrap();
        assert_eq!(pair.frame().await, (seq, vec![7; 2000].into()));
    }
    assert_eq!(pair.link.counters().bytes_copied, copied + 2000 + HEADER_LEN as u64);
    assert_eq!(long, [9; 200_000][..]);
}

#[tokio::test]
async fn thousands_of_short_frames_in_one_write_keep_their_order() {
    let mut pair = Pair::new().await;
    let mut bytes = PREFACE.to_vec();
    for seq in 1..=20_000 {
        bytes.extend(encoded(FrameType::REQUEST, seq, &seq.to_le_bytes()));
    }
    pair.socket.write_all(&bytes).await.unwrap();
    for seq in 1..=20_000_u32 {
        assert_eq!(pair.frame().await, (seq, seq.to_le_bytes().to_vec().into()));
    }
    // Once, to where they do not keep the receive buffer; besides, now and then, the beginning of one.
    assert!(pair.link.counters().bytes_copied < bytes.len() as u64 * 5 / 4, "{:?}", pair.link.counters());
}

#[tokio::test]
async fn short_payloads_do_not_keep_the_receive_buffer() {
    let mut pair = Pair::new().await;
    let frames = [10, 20, 2000].map(|len| encoded(FrameType::REQUEST, 1, &vec![7; len]));
    pair.socket.write_all(&[PREFACE.to_vec(), frames.concat()].concat()).await.unwrap();
    let payloads = [pair.frame().await.1, pair.frame().await.1, pair.frame().await.1];
    let [first, second, long] = payloads.map(|payload| payload.as_ptr() as usize);
    assert_eq!(second, first + 10 + HEADER_LEN, "short ones that came together share a copy");
    assert_ne!(long, second + 20 + HEADER_LEN, "which is not where they were read to");
}

#[tokio::test]
async fn an_end_between_frames_is_told_from_one_in_the_middle() {
    let whole = [PREFACE.to_vec(), encoded(FrameType::REQUEST, 1, b"abc")].concat();
    let bulk = [PREFACE.to_vec(), encoded(FrameType::FRAGMENT, 1, &[1; 50_000])].concat();
    for (bytes, words) in [
        (&whole[..], None),
        (&whole[..20], Some("in the middle of a frame")),
        (&whole[..41], Some("in the middle of a frame")),
        (&bulk[..40_000], Some("in the middle of a frame")),
        (&whole[..5], Some("before it said HELLO")),
        (b"", Some("before it said HELLO")),
    ] {
        let mut pair = Pair::new().await;
        pair.socket.write_all(bytes).await.unwrap();
        pair.socket.shutdown().await.unwrap();
        let end = end(&mut pair.events).await;
        assert_eq!(end.failed, words.is_some(), "{end}");
        assert!(end.detail.contains(words.unwrap_or("the peer closed the connection")), "{end}");
    }
}

#[tokio::test]
async fn a_reset_in_the_middle_of_a_frame_is_a_failure() {
    for len in [20, 5000] {
        let mut pair = Pair::new().await;
        let bytes = [PREFACE.to_vec(), encoded(FrameType::FRAGMENT, 1, &[1; 50_000])].concat();
        pair.socket.write_all(&bytes[..len]).await.unwrap();
        SockRef::from(&pair.socket).set_linger(Some(Duration::ZERO)).unwrap();
        let Pair { socket, mut events, .. } = pair;
        drop(socket);
        let end = end(&mut events).await;
        assert!(end.failed && !end.malformed, "{end}");
    }
}

#[tokio::test]
async fn bytes_that_are_no_frame_are_malformed() {
    let mut too_long = encoded(FrameType::REQUEST, 1, b"");
    too_long[4..8].copy_from_slice(&(256 * 1024 + 1_u32).to_le_bytes());
    let mut unknown_flag = encoded(FrameType::REQUEST, 1, b"");
    unknown_flag[1] = 0x80;
    for (bytes, words) in [(too_long, "262144 is the limit"), (unknown_flag, "header.flags")] {
        let mut pair = Pair::new().await;
        pair.socket.write_all(&[PREFACE.to_vec(), bytes].concat()).await.unwrap();
        let end = end(&mut pair.events).await;
        assert!(end.malformed && end.detail.contains(words), "{end}");
    }
}

#[tokio::test]
async fn a_peer_that_does_not_read_stops_the_sender_and_one_that_reads_lets_it_go_on() {
    let mut pair = Pair::new().await;
    pair.socket.write_all(PREFACE).await.unwrap();
    let mut source = Endless::new(64 << 10);
    pair.send_until_stopped(&mut source).await;
    let taken = source.taken();
    let unsent = pair.link.unsent();
    assert!(unsent > 0 && unsent <= 4 * MESSAGE && unsent % MESSAGE == 0, "a batch is 256 KiB: {unsent}");
    // The kernel's buffers of both sides, and a batch. Nothing more is taken, however often it is asked.
    assert!(taken < 512, "{taken} frames of 64 KiB were taken");
    for _ in 0..100 {
        pair.link.send(&mut source);
    }
    assert_eq!((source.taken(), pair.link.unsent()), (taken, unsent));

    let mut left = PREFACE.len() + taken as usize * (32 + (64 << 10));
    let mut buffer = vec![0; 1 << 20];
    let mut told = false;
    while left > 0 {
        left -= pair.socket.read(&mut buffer).await.unwrap();
        told |= matches!(pair.events.try_recv(), Ok(Event::Writable));
    }
    if !told {
        assert!(matches!(next(&mut pair.events).await, Event::Writable));
    }
    assert_eq!(pair.link.unsent(), 0);
    pair.link.send(&mut source);
    assert!(source.taken() > taken, "there is room again");
}

#[tokio::test]
async fn all_that_was_taken_arrives_before_a_closed_link_says_so() {
    let mut pair = Pair::new().await;
    pair.socket.write_all(PREFACE).await.unwrap();
    let mut source = Endless::new(64 << 10);
    pair.send_until_stopped(&mut source).await;
    pair.link.close();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(pair.events.try_recv().is_err(), "not while there is something to send");
    let mut arrived = Vec::new();
    pair.socket.read_to_end(&mut arrived).await.unwrap();
    assert_eq!(arrived.len(), PREFACE.len() + source.taken() as usize * (32 + (64 << 10)));
    let Pair { socket, mut events, .. } = pair;
    drop(socket);
    assert!(!end(&mut events).await.failed);
}

/// A handler that has no memory for what arrives, from some time on.
struct HeldBack {
    events: Recorder,
    is_held_back: AtomicBool,
}

impl LinkHandler for HeldBack {
    fn receive(&self, header: Header, payload: Bytes) -> Result<(), WireError> {
        self.events.receive(header, payload)
    }

    fn pause(&self) -> Option<BoxFuture<()>> {
        self.is_held_back.load(Ordering::Relaxed).then(|| Box::pin(pending()) as BoxFuture<()>)
    }

    fn closed(&self, end: LinkEnd) {
        self.events.closed(end);
    }
}

#[tokio::test]
async fn a_link_is_closed_although_there_is_no_memory_for_what_arrives() {
    for yields in 0..10 {
        let acceptor = Acceptor::bind("127.0.0.1:0", TcpConfig::default()).await.unwrap();
        let address = acceptor.local_addr().unwrap();
        let (socket, link) = tokio::join!(TcpStream::connect(address), acceptor.accept());
        let (sender, mut events) = mpsc::unbounded_channel();
        let handler = Arc::new(HeldBack { events: Recorder(sender), is_held_back: AtomicBool::new(false) });
        link.clone().start(handler.clone());
        let mut socket = socket.unwrap();
        socket.write_all(&[PREFACE.to_vec(), encoded(FrameType::REQUEST, 1, b"abc")].concat()).await.unwrap();
        assert!(matches!(next(&mut events).await, Event::Frame(..)));
        // Its task may wait for bytes by now, or may be about to.
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        handler.is_held_back.store(true, Ordering::Relaxed);
        link.close();
        drop(socket);
        end(&mut events).await;
    }
}

/// Closes the link when something arrives, and has more arrive.
struct Flood {
    link: Arc<TcpLink>,
    socket: std::net::TcpStream,
    frames: Vec<u8>,
    /// Where in `frames` it goes on.
    at: AtomicUsize,
}

impl Flood {
    fn fill(&self) {
        let mut at = self.at.load(Ordering::Relaxed);
        while let Ok(n) = (&self.socket).write(&self.frames[at..]) {
            at = (at + n) % self.frames.len();
        }
        self.at.store(at, Ordering::Relaxed);
    }
}

impl LinkHandler for Flood {
    fn receive(&self, _: Header, _: Bytes) -> Result<(), WireError> {
        self.fill();
        self.link.close();
        Ok(())
    }

    fn closed(&self, _: LinkEnd) {}
}

#[tokio::test]
async fn a_peer_that_sends_without_a_pause_does_not_keep_a_link_from_closing() {
    let acceptor = Acceptor::bind("127.0.0.1:0", TcpConfig::default()).await.unwrap();
    let (socket, link) = tokio::join!(TcpStream::connect(acceptor.local_addr().unwrap()), acceptor.accept());
    let (socket, link) = (socket.unwrap().into_std().unwrap(), link);
    (&socket).write_all(PREFACE).unwrap();
    let frames = encoded(FrameType::REQUEST, 1, &[7; 4000]).repeat(64);
    let flood =
        Flood { link: link.clone(), socket: socket.try_clone().unwrap(), frames, at: AtomicUsize::new(0) };
    flood.fill();
    link.start(Arc::new(flood));
    let mut socket = TcpStream::from_std(socket).unwrap();
    let mut read = Vec::new();
    tokio::time::timeout(PATIENCE, socket.read_to_end(&mut read)).await.expect("it must close").unwrap();
}

fn shut_down_takes_the_connection_with_it(runtime: tokio::runtime::Runtime) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, mut events) = mpsc::unbounded_channel();
    let link = runtime.block_on(async {
        let link = farcall_tcp::connect(&address, &TcpConfig::default(), PATIENCE).await.unwrap();
        link.clone().start(Arc::new(Recorder(sender)));
        link
    });
    let (mut socket, _) = listener.accept().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    drop(runtime);
    // The link is still there: a channel or a handle has it.
    let mut sent = Vec::new();
    std::io::Read::read_to_end(&mut socket, &mut sent).expect("the connection ends");
    assert_eq!(Arc::strong_count(&link), 1);
    assert!(events.try_recv().is_err(), "a handler learns it by being dropped");
}

#[test]
fn a_runtime_that_is_shut_down_takes_the_connection_with_it() {
    shut_down_takes_the_connection_with_it(tokio::runtime::Runtime::new().unwrap());
}

#[test]
fn a_runtime_that_is_shut_down_at_once_takes_the_connection_with_it() {
    // Nothing polls the link's task.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    shut_down_takes_the_connection_with_it(runtime);
}
