//! A test suite for the contract of links, for the tests of a transport.
//!
//! ```no_run
//! # async fn my_pair() -> farcall_core::testing::conformance::Pair { unimplemented!() }
//! #[tokio::test]
//! async fn my_transport_conforms() {
//!     farcall_core::testing::conformance::check(my_pair).await;
//! }
//! ```

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;

use super::{End, Event};
use crate::payload::Payload;
use crate::proto::message::{Frame, Message};
use crate::proto::wire::FrameType;
use crate::transport::Link;

/// The two ends of a new connection.
pub type Pair = (Arc<dyn Link>, Arc<dyn Link>);

/// Runs the whole suite. `make` makes a new connection for each part.
///
/// # Panics
///
/// If the transport does not conform; the message says how.
pub async fn check<F: Future<Output = Pair>>(make: impl Fn() -> F) {
    frames_arrive_whole_and_in_order(make().await).await;
    long_payloads_go_straight_to_their_buffer(make().await).await;
    both_ends_send_at_once_more_than_fits(make().await).await;
    messages_sent_before_closing_arrive(make().await).await;
    dropping_an_end_ends_the_other(make().await).await;
}

async fn frames_arrive_whole_and_in_order((near, far): Pair) {
    let max = near.max_frame();
    let mut lengths = vec![0, 1, 31, 32, 33, 2047, 4096, 4097, 16 * 1024, 65_536, max - 1, max];
    lengths.retain(|len| *len <= max);
    let (near, mut far) = (End::start(near), End::start(far));
    near.send((1..).zip(&lengths).map(|(seq, len)| frame(seq, *len)));
    for (seq, len) in (1..).zip(lengths) {
        let (header, payload) = far.frame().await;
        assert_eq!(header.seq, seq, "frames must arrive in order");
        assert_eq!((header.len as usize, payload.len()), (len, len), "frames must arrive whole");
        assert_eq!(payload, content(seq, len), "payloads must arrive unchanged");
    }
    close(&near, &far);
}

async fn long_payloads_go_straight_to_their_buffer((near, far): Pair) {
    let len = near.max_frame();
    let (near, mut far) = (End::start(near), End::start_lending(far));
    near.send([frame(1, len), frame(2, 10)]);
    let (header, payload) = far.frame().await;
    assert_eq!((header.seq, payload), (1, content(1, len)), "a lent buffer must be filled");
    let (header, payload) = far.frame().await;
    assert_eq!((header.seq, payload), (2, content(2, 10)), "the frame behind it must arrive");
    close(&near, &far);
}

async fn both_ends_send_at_once_more_than_fits((near, far): Pair) {
    const FRAMES: u32 = 2000;
    let len = 4096;
    let mut ends = [near, far].map(End::start);
    for end in &ends {
        end.send((1..=FRAMES).map(|seq| frame(seq, len)));
    }
    for end in &mut ends {
        for seq in 1..=FRAMES {
            let (header, payload) = end.frame().await;
            assert_eq!(header.seq, seq, "no frame may be lost or repeated when the link is full");
            assert_eq!(payload, content(seq, len), "payloads must arrive unchanged");
        }
    }
    close(&ends[0], &ends[1]);
}

async fn messages_sent_before_closing_arrive((near, far): Pair) {
    let near = End::start(near);
    near.send((1..=3).map(|seq| frame(seq, 1000)));
    assert_eq!(near.unsent(), 0, "three frames must fit into any link");
    near.link().close();
    let mut far = End::start(far);
    for seq in 1..=3 {
        assert_eq!(far.frame().await.0.seq, seq, "closing must not lose what was sent");
    }
    match far.next().await {
        Some(Event::End(end)) => {
            assert!(!end.failed, "an orderly close must be seen as one, not as: {end}");
        }
        other => panic!("an orderly end must follow, not {other:?}"),
    }
    far.link().close();
}

async fn dropping_an_end_ends_the_other((near, far): Pair) {
    let mut far = End::start(far);
    drop(near);
    far.end().await;
    far.link().close();
}

fn close(near: &End, far: &End) {
    near.link().close();
    far.link().close();
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
