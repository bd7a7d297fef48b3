#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use farcall_core::class::TrafficClass;
use farcall_core::proto::message::{Frame, Pieces};
use farcall_core::proto::wire::{FrameType, HEADER_LEN, Header, PREFACE, WireError};
use farcall_core::transport::{BusyPoll, FrameSource, Link, LinkEnd, LinkHandler};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::{Reading, TcpLink};
use crate::stream::Stream;
use crate::waits::Waits;
use crate::{Acceptor, TcpConfig, connect};

/// Both ends of a connection to an address that listens here; `None` where the system does not have that.
async fn ends(listen: &str, host: &str, config: &TcpConfig) -> Option<[Arc<TcpLink>; 2]> {
    let acceptor = Acceptor::bind(listen, config.clone()).await.ok()?;
    let target = format!("{host}:{}", acceptor.local_addr().unwrap().port());
    let connect = connect(&target, config, Duration::from_secs(60));
    let (near, far) = tokio::join!(connect, acceptor.accept());
    Some([near.unwrap(), far])
}

/// The socket under a link.
fn tcp(link: &TcpLink) -> &TcpStream {
    match &link.socket.stream {
        Stream::Tcp(socket) => socket,
        other => panic!("{other:?} is no TCP socket"),
    }
}

/// Whether a caller that polls finds anything.
fn finds(link: &TcpLink) -> bool {
    link.busy_poll(Duration::ZERO) == BusyPoll::Found
}

#[tokio::test]
async fn sockets_have_the_mark_of_their_class() {
    let mut config = TcpConfig::default();
    config.dscp.urgent = Some(46);
    config.dscp.bulk = Some(8);
    let marks = [(TrafficClass::Normal, 0), (TrafficClass::Urgent, 46 << 2), (TrafficClass::Bulk, 8 << 2)];
    for (class, tos) in marks {
        for (listen, host) in [("127.0.0.1:0", "127.0.0.1"), ("[::]:0", "127.0.0.1"), ("[::1]:0", "[::1]")] {
            let v6 = host.starts_with('[');
            let Some(ends) = ends(listen, host, &config).await else {
                assert!(listen.starts_with('['), "IPv4 is everywhere");
                continue;
            };
            for link in ends {
                link.mark(class);
                let socket = SockRef::from(tcp(&link));
                let marked = if v6 { socket.tclass_v6() } else { socket.tos_v4() };
                assert_eq!(marked.unwrap(), tos, "{class} by {host} at {listen}");
            }
        }
    }
}

/// Frames that have arrived, by number, and how the link ended.
struct Arrivals(mpsc::UnboundedSender<Result<u32, LinkEnd>>);

/// Arrivals of which each frame is answered where it is delivered.
struct Answers(Arrivals, Weak<TcpLink>);

struct One(Option<Frame>);

impl FrameSource for One {
    fn next(&mut self, _: usize) -> Option<Frame> {
        self.0.take()
    }
}

impl LinkHandler for Answers {
    fn receive(&self, header: Header, payload: Bytes) -> Result<(), WireError> {
        self.0.receive(header, payload)?;
        let answer = Header { seq: header.seq, ..Header::new(FrameType::RESPONSE, 1) };
        let frame = Frame { header: answer, pieces: Pieces::default() };
        self.1.upgrade().unwrap().send(&mut One(Some(frame)));
        Ok(())
    }

    fn buffer(&self, header: &Header) -> Result<Option<BytesMut>, WireError> {
        self.0.buffer(header)
    }

    fn filled(&self, header: Header, buffer: BytesMut) -> Result<(), WireError> {
        self.0.filled(header, buffer)
    }

    fn closed(&self, end: LinkEnd) {
        self.0.closed(end);
    }
}

impl LinkHandler for Arrivals {
    fn receive(&self, header: Header, _: Bytes) -> Result<(), WireError> {
        self.0.send(Ok(header.seq)).unwrap();
        Ok(())
    }

    fn closed(&self, end: LinkEnd) {
        self.0.send(Err(end)).unwrap();
    }
}

struct Looking {
    peer: std::net::TcpStream,
    link: Arc<TcpLink>,
    handler: Arc<Arrivals>,
    arrivals: mpsc::UnboundedReceiver<Result<u32, LinkEnd>>,
}

/// A link of which every wait begins with a look, from a peer that is a bare socket. Not started.
async fn looking() -> Looking {
    let acceptor = Acceptor::bind("127.0.0.1:0", TcpConfig::default()).await.unwrap();
    let peer = std::net::TcpStream::connect(acceptor.local_addr().unwrap()).unwrap();
    peer.set_nodelay(true).unwrap();
    (&peer).write_all(PREFACE).unwrap();
    let link = acceptor.accept().await;
    *link.reading() = Reading::new(Waits::looking());
    let (sender, arrivals) = mpsc::unbounded_channel();
    Looking { peer, link, handler: Arc::new(Arrivals(sender)), arrivals }
}

fn request(seq: u32) -> [u8; HEADER_LEN] {
    Header { seq, ..Header::new(FrameType::REQUEST, 1) }.encode()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_look_miss_nothing_and_take_nothing_from_the_links_task() {
    const COUNT: u32 = 3000;
    let Looking { mut peer, link, handler, mut arrivals } = looking().await;
    Arc::clone(&link).start(handler);
    let writer = thread::spawn(move || {
        let mut rng = fastrand::Rng::with_seed(1);
        for seq in 1..=COUNT {
            // At any time of a look and of the sleep behind it; and in two pieces.
            thread::sleep(Duration::from_micros(rng.u64(..60)));
            let frame = request(seq);
            let (first, rest) = frame.split_at(rng.usize(..frame.len()));
            peer.write_all(first).unwrap();
            peer.write_all(rest).unwrap();
        }
    });
    let mut found = 0;
    for seq in 1..=COUNT {
        let arrived = loop {
            if let Ok(arrived) = arrivals.try_recv() {
                break arrived;
            }
            let caller = Arc::clone(&link);
            found += u32::from(tokio::spawn(async move { finds(&caller) }).await.unwrap());
        };
        assert_eq!(arrived.unwrap(), seq);
    }
    writer.join().unwrap();
    assert!(found > 0, "no look was of use");
    // In order, and once.
    while finds(&link) {}
    let end = arrivals.recv().await.unwrap().unwrap_err();
    assert!(!end.failed, "{end}");
}

#[tokio::test]
async fn its_debug_form_shows_nothing_of_what_is_read() {
    let Looking { mut peer, link, handler, .. } = looking().await;
    link.handler.set(Arc::downgrade(&handler) as _).unwrap();
    let header = Header { len: 100, ..Header::new(FrameType::REQUEST, 1) };
    peer.write_all(&[&header.encode()[..], b"a secret"].concat()).unwrap();
    while !link.is_amid_frame() {
        finds(&link);
    }
    let shown = format!("{link:?}");
    assert!(shown.contains("transport: \"tcp\"") && !shown.contains("secret"), "{shown}");
}

#[tokio::test]
async fn a_link_that_looks_when_it_has_answered_misses_nothing() {
    const COUNT: u32 = 3000;
    let Looking { mut peer, link, handler: _, arrivals: _ } = looking().await;
    let (sender, mut arrivals) = mpsc::unbounded_channel();
    let answers = Answers(Arrivals(sender), Arc::downgrade(&link));
    link.start(Arc::new(answers));
    let writer = thread::spawn(move || {
        let mut rng = fastrand::Rng::with_seed(2);
        let mut answer = [0; HEADER_LEN];
        for seq in 1..=COUNT {
            let frame = request(seq);
            let (first, rest) = frame.split_at(rng.usize(..frame.len()));
            peer.write_all(first).unwrap();
            peer.write_all(rest).unwrap();
            if seq == 1 {
                peer.read_exact(&mut [0; PREFACE.len()]).unwrap();
            }
            peer.read_exact(&mut answer).unwrap();
            assert_eq!(Header::decode(&answer).unwrap().seq, seq);
            // Long enough, at times, for it to have gone to sleep.
            thread::sleep(Duration::from_micros(rng.u64(..60)));
        }
    });
    for seq in 1..=COUNT {
        assert_eq!(arrivals.recv().await.unwrap().unwrap(), seq);
    }
    assert!(!arrivals.recv().await.unwrap().unwrap_err().failed);
    writer.join().unwrap();
}

#[tokio::test]
async fn a_fault_that_a_caller_meets_ends_the_link() {
    let Looking { mut peer, link, handler, mut arrivals } = looking().await;
    Arc::clone(&link).start(handler);
    peer.write_all(&[0xff; HEADER_LEN]).unwrap();
    // On this thread, where the link's task has not run.
    while !finds(&link) {}
    let end = arrivals.recv().await.unwrap().unwrap_err();
    assert!(end.malformed, "{end}");
}

#[tokio::test]
async fn a_reset_that_a_caller_meets_is_told() {
    let Looking { mut peer, link, handler, mut arrivals } = looking().await;
    Arc::clone(&link).start(handler);
    peer.write_all(&request(1)).unwrap();
    while !finds(&link) {}
    assert_eq!(arrivals.recv().await.unwrap().unwrap(), 1);
    SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    while !finds(&link) {}
    let end = arrivals.recv().await.unwrap().unwrap_err();
    assert!(end.failed && end.detail.contains("reading failed"), "{end}");
}

#[tokio::test]
async fn nobody_delivers_what_comes_when_a_link_is_over() {
    let Looking { mut peer, link, handler, mut arrivals } = looking().await;
    Arc::clone(&link).start(handler);
    link.close();
    let mut other = peer.try_clone().unwrap();
    tokio::task::spawn_blocking(move || other.read(&mut [0]).unwrap()).await.unwrap();
    // It has said that no more comes, and waits for the peer to close.
    peer.write_all(&request(1)).unwrap();
    assert!(!finds(&link));
    drop(peer);
    assert!(!arrivals.recv().await.unwrap().unwrap_err().failed, "the end, and no frame before it");
}

/// Frames of a long answer, and how many are left of it.
struct Long(u32);

impl FrameSource for Long {
    fn next(&mut self, _: usize) -> Option<Frame> {
        self.0 = self.0.checked_sub(1)?;
        let payload = Bytes::from_static(&[7; 200_000]);
        let header = Header {
            seq: 1,
            len: payload.len() as u32,
            ..Header::new(FrameType::RESPONSE, u64::from(self.0))
        };
        Some(Frame { header, pieces: payload.into() })
    }
}

/// Sends what is left of a long answer, when it may.
struct Sends(Arc<TcpLink>, std::sync::Mutex<Long>);

impl LinkHandler for Sends {
    fn receive(&self, _: Header, _: Bytes) -> Result<(), WireError> {
        Ok(())
    }

    fn writable(&self) {
        self.0.send(&mut *self.1.lock().unwrap());
    }

    fn closed(&self, _: LinkEnd) {}
}

#[tokio::test]
async fn a_long_answer_to_a_peer_that_reads_as_fast_is_sent_in_turns() {
    const FRAMES: u32 = 200;
    let Looking { mut peer, link, .. } = looking().await;
    let reader = thread::spawn(move || {
        let mut read = vec![0; PREFACE.len() + FRAMES as usize * (HEADER_LEN + 200_000)];
        peer.read_exact(&mut read).map(|()| read[read.len() - 1])
    });
    let handler = Arc::new(Sends(link.clone(), std::sync::Mutex::new(Long(FRAMES))));
    handler.writable();
    let left = handler.1.lock().unwrap().0;
    assert!(left > FRAMES - 15, "{} frames were sent at once", FRAMES - left);
    link.start(handler);
    let read = tokio::task::spawn_blocking(|| reader.join().unwrap());
    assert_eq!(tokio::time::timeout(Duration::from_secs(60), read).await.unwrap().unwrap().unwrap(), 7);
}

#[tokio::test]
async fn sockets_have_the_buffers_that_are_configured() {
    let mut config = TcpConfig::default();
    (config.receive_buffer, config.send_buffer) = (50_000, 60_000);
    for link in ends("127.0.0.1:0", "127.0.0.1", &config).await.unwrap() {
        let socket = SockRef::from(tcp(&link));
        // The kernel doubles it, for what it keeps beside the bytes: socket(7).
        assert_eq!(socket.recv_buffer_size().unwrap(), 100_000);
        assert_eq!(socket.send_buffer_size().unwrap(), 120_000);
    }
    config.send_buffer = 100;
    assert!(config.check().unwrap_err().starts_with("tcp.send_buffer must be"));
}

/// The only place in the runtime's queue is taken for good, and the peer has sent more than fits in a turn.
#[tokio::test]
async fn a_link_that_waits_for_its_turn_can_be_closed() {
    const FRAMES: u32 = 4 * (super::TURN as u32 / HEADER_LEN as u32);
    let Looking { mut peer, link, handler, mut arrivals } = looking().await;
    let turns = link.turns();
    let mut place = pin!(turns.next());
    assert!(poll_fn(|cx| Poll::Ready(place.as_mut().poll(cx).is_pending())).await);
    link.clone().start(handler);
    let frames: Vec<u8> = (1..=FRAMES).flat_map(request).collect();
    // The kernel may not take all of it, because the link will not read all of it.
    peer.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
    let _ = peer.write_all(&frames);
    assert!(matches!(arrivals.recv().await, Some(Ok(1))));
    link.abort();
    let mut last = 1;
    let end = async {
        loop {
            match arrivals.recv().await.unwrap() {
                Ok(seq) => last = seq,
                Err(end) => return end,
            }
        }
    };
    let end = tokio::time::timeout(Duration::from_secs(60), end).await.expect("it waits for its turn");
    assert!(!end.failed && last < FRAMES, "{end:?} after frame {last}");
}

/// A link that is told of something else gives way nevertheless.
#[tokio::test]
async fn a_link_gives_way_before_its_next_turn() {
    let Looking { link, .. } = looking().await;
    let turns = link.turns();
    link.attention.notify_one();
    let mut attention = pin!(link.attention.notified());
    let mut turn = pin!(link.wait_for_turn(&turns, attention.as_mut()));
    let mut polls = 0;
    poll_fn(|cx| {
        polls += 1;
        turn.as_mut().poll(cx)
    })
    .await;
    assert_eq!(polls, 2);
}
