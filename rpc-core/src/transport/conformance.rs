//! A test suite for the contract of links, for the tests of a transport.
//!
//! ```no_run
//! # async fn my_pair() -> farcall_core::transport::conformance::Pair { unimplemented!() }
//! #[tokio::test]
//! async fn my_transport_conforms() {
//!     farcall_core::transport::conformance::check(my_pair).await;
//! }
//! ```

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;

use super::{FrameSource, Link, LinkEnd, LinkHandler};
use crate::payload::Payload;
use crate::proto::message::{Frame, Message};
use crate::proto::wire::{FrameType, Header, WireError};

/// The two ends of a new connection.
pub type Pair = (Arc<dyn Link>, Arc<dyn Link>);

/// A guard against hangs; no test takes long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the whole suite. `make` makes a new connection for each part.
///
/// # Panics
///
/// If the transport does not conform; the message says how.
pub async fn check<F: Future<Output = Pair>>(make: impl Fn() -> F) {
    frames_arrive_whole_and_in_order(make().await).await;
    long_payloads_go_straight_to_their_buffer(make().await).await;
    both_ends_send_at_once_more_than_fits(make().await).await;
    what_was_sent_before_closing_arrives(make().await).await;
    dropping_an_end_ends_the_other(make().await).await;
}

async fn frames_arrive_whole_and_in_order((near, far): Pair) {
    let max = near.max_frame();
    let mut lengths = vec![0, 1, 31, 32, 33, 2047, 4096, 4097, 16 * 1024, 65_536, max - 1, max];
    lengths.retain(|len| *len <= max);
    let mut outgoing = Outgoing::default();
    for (i, len) in lengths.iter().enumerate() {
        outgoing.frames.push_back(frame(i as u32 + 1, *len));
    }
    let (recorder, _) = Recorder::start(&near, false);
    let (_far, mut arrived) = Recorder::start(&far, false);
    // Frames that do not fit at first are sent as room appears.
    *lock(&recorder.outgoing) = outgoing;
    recorder.pump();
    for (i, len) in lengths.into_iter().enumerate() {
        let (header, payload) = next_frame(&mut arrived).await;
        assert_eq!(header.seq, i as u32 + 1, "frames must arrive in order");
        assert_eq!((header.len as usize, payload.len()), (len, len), "frames must arrive whole");
        assert_eq!(payload, content(i as u32 + 1, len), "payloads must arrive unchanged");
    }
    near.close();
    far.close();
}

async fn long_payloads_go_straight_to_their_buffer((near, far): Pair) {
    let len = near.max_frame();
    let mut outgoing = Outgoing::default();
    outgoing.frames.extend([frame(1, len), frame(2, 10)]);
    let (_near, _) = Recorder::start(&near, false);
    let (_far, mut arrived) = Recorder::start(&far, true);
    near.send(&mut outgoing);
    let (header, payload) = next_frame(&mut arrived).await;
    assert_eq!((header.seq, payload), (1, content(1, len)), "a lent buffer must be filled");
    near.send(&mut outgoing);
    let (header, payload) = next_frame(&mut arrived).await;
    assert_eq!((header.seq, payload), (2, content(2, 10)), "the frame behind it must arrive");
    near.close();
    far.close();
}

async fn both_ends_send_at_once_more_than_fits((near, far): Pair) {
    const FRAMES: u32 = 2000;
    let len = 4096;
    let ends = [&near, &far].map(|link| {
        let frames = (1..=FRAMES).map(|seq| frame(seq, len)).collect();
        let (recorder, arrived) = Recorder::start(link, false);
        *lock(&recorder.outgoing) = Outgoing { frames };
        recorder.pump();
        (recorder, arrived)
    });
    for (_, mut arrived) in ends {
        for seq in 1..=FRAMES {
            let (header, payload) = next_frame(&mut arrived).await;
            assert_eq!(header.seq, seq, "no frame may be lost or repeated when the link is full");
            assert_eq!(payload, content(seq, len), "payloads must arrive unchanged");
        }
    }
    near.close();
    far.close();
}

async fn what_was_sent_before_closing_arrives((near, far): Pair) {
    let mut outgoing = Outgoing::default();
    outgoing.frames.extend((1..=3).map(|seq| frame(seq, 1000)));
    let (_near, _) = Recorder::start(&near, false);
    near.send(&mut outgoing);
    assert!(outgoing.frames.is_empty(), "three frames must fit into any link");
    near.close();
    let (_far, mut arrived) = Recorder::start(&far, false);
    for seq in 1..=3 {
        assert_eq!(next_frame(&mut arrived).await.0.seq, seq, "closing must not lose what was sent");
    }
    let end = next_end(&mut arrived).await;
    assert!(!end.failed, "an orderly close must be seen as one, not as: {end}");
    far.close();
}

async fn dropping_an_end_ends_the_other((near, far): Pair) {
    let (_far, mut arrived) = Recorder::start(&far, false);
    drop(near);
    next_end(&mut arrived).await;
    far.close();
}

fn content(seq: u32, len: usize) -> Bytes {
    (0..len).map(|i| (i as u32).wrapping_mul(31).wrapping_add(seq) as u8).collect()
}

/// Returns a frame whose payload is in several pieces.
fn frame(seq: u32, len: usize) -> Frame {
    let whole = content(seq, len);
    let (a, b) = (len / 7, len / 3);
    let payload = Payload::new(whole.slice(a..b), vec![whole.slice(b..)]);
    let message = Message::with_payload(FrameType::ITEM, 1, whole.slice(..a).into(), payload);
    let mut frame = message.into_frame();
    frame.header.seq = seq;
    frame
}

#[derive(Default)]
struct Outgoing {
    frames: VecDeque<Frame>,
}

impl FrameSource for Outgoing {
    fn next(&mut self, max_payload: usize) -> Option<Frame> {
        let frame = self.frames.pop_front()?;
        assert!(frame.header.len as usize <= max_payload, "a link must take its own longest frame");
        Some(frame)
    }
}

enum Event {
    Frame(Header, Bytes),
    End(LinkEnd),
}

/// A handler that records what a link delivers, and sends more when there is room.
struct Recorder {
    link: std::sync::Weak<dyn Link>,
    outgoing: Mutex<Outgoing>,
    events: mpsc::UnboundedSender<Event>,
    lend: bool,
}

impl Recorder {
    fn start(link: &Arc<dyn Link>, lend: bool) -> (Arc<Self>, mpsc::UnboundedReceiver<Event>) {
        let (events, arrived) = mpsc::unbounded_channel();
        let recorder =
            Arc::new(Self { link: Arc::downgrade(link), outgoing: Mutex::default(), events, lend });
        link.clone().start(recorder.clone());
        (recorder, arrived)
    }

    fn pump(&self) {
        if let Some(link) = self.link.upgrade() {
            link.send(&mut *lock(&self.outgoing));
        }
    }
}

impl LinkHandler for Recorder {
    fn receive(&self, header: Header, payload: Bytes) -> Result<(), WireError> {
        // Fails if the test has seen enough and ended.
        let _ = self.events.send(Event::Frame(header, payload));
        Ok(())
    }

    fn buffer(&self, header: &Header) -> Result<Option<BytesMut>, WireError> {
        Ok((self.lend && header.len > 4096).then(|| BytesMut::with_capacity(header.len as usize)))
    }

    fn writable(&self) {
        self.pump();
    }

    fn closed(&self, end: LinkEnd) {
        let _ = self.events.send(Event::End(end));
    }
}

async fn next(arrived: &mut mpsc::UnboundedReceiver<Event>) -> Event {
    let event = tokio::time::timeout(PATIENCE, arrived.recv()).await;
    event.expect("something must arrive").expect("a link must not forget its handler before its end")
}

async fn next_frame(arrived: &mut mpsc::UnboundedReceiver<Event>) -> (Header, Bytes) {
    match next(arrived).await {
        Event::Frame(header, payload) => (header, payload),
        Event::End(end) => panic!("the link ended early: {end}"),
    }
}

async fn next_end(arrived: &mut mpsc::UnboundedReceiver<Event>) -> LinkEnd {
    match next(arrived).await {
        Event::End(end) => end,
        Event::Frame(header, _) => panic!("an unexpected frame: {header:?}"),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
