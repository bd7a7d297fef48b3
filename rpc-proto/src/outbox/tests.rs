use bytes::Bytes;

use super::*;
use crate::leftovers::Leftovers;
use crate::message::{Bulk, ExposeNothing, Sealed};
use crate::wire::flags;

const MAX_FRAME: usize = 2048;

fn request(call: u64, len: usize) -> Message {
    Message::new(FrameType::REQUEST, call, Bytes::from(vec![7; len]))
}

impl Outbox {
    fn extend<const N: usize>(&mut self, requests: [(u64, usize); N]) {
        requests.into_iter().for_each(|(call, len)| self.push(request(call, len)));
    }
}

/// Call, flags and length of the next frame.
fn next(outbox: &mut Outbox) -> Option<(u64, u8, u32)> {
    outbox
        .next(MAX_FRAME, &mut ExposeNothing)
        .map(|frame| (frame.header.call, frame.header.flags, frame.header.len))
}

#[test]
fn a_message_given_up_keeps_its_budget_until_the_peer_is_told() {
    let mut outbox = Outbox::new(10_000, 1 << 20);
    outbox.push(request(1, 9000));
    outbox.push(request(2, 9000));
    assert_eq!(next(&mut outbox), Some((1, flags::FRAGMENTED, 2048)));
    assert_eq!((outbox.abandon(FrameType::REQUEST, 1), outbox.waiting()), (Abandoned::Partly, 1));
    assert_eq!(next(&mut outbox), Some((1, flags::ABANDONED, 0)), "first, for the second has no room");
    assert_eq!(next(&mut outbox), Some((2, flags::FRAGMENTED, 2048)));
}

#[test]
fn messages_count_as_more_than_their_contents() {
    let mut outbox = Outbox::new(10_000, 1 << 20);
    for call in 1..=1000 {
        outbox.push(Message::new(FrameType::WINDOW, call, Bytes::from_static(&[0; 16])));
    }
    assert!(outbox.memory() >= 1000 * (size_of::<Message>() + 16), "{}", outbox.memory());
    while next(&mut outbox).is_some() {}
    assert_eq!(outbox.memory(), 0);
}

#[test]
fn a_message_that_has_not_begun_is_taken_back_and_the_peer_never_hears_of_it() {
    let mut outbox = Outbox::new(10_000, 1 << 20);
    outbox.push(request(1, 9000));
    assert!(next(&mut outbox).is_some());
    outbox.push(Message::new(FrameType::BIND, 0, Bytes::from_static(b"x")));
    outbox.extend([(2, 10), (3, 5000), (4, 900)]);
    assert_eq!(outbox.abandon(FrameType::REQUEST, 4), Abandoned::Unsent);
    assert_eq!(outbox.take_back(FrameType::REQUEST), [2, 3]);
    assert_eq!(next(&mut outbox), Some((0, 0, 1)), "the BIND stays");
    let mut left = 2044;
    while let Some((call, _, len)) = next(&mut outbox) {
        assert_eq!(call, 1);
        left += len;
    }
    assert_eq!((left, outbox.is_empty(), outbox.assembling()), (9000, true, 0));
}

#[test]
fn a_closed_outbox_says_what_has_not_left_whole_and_sends_nothing_more() {
    let mut outbox = Outbox::new(100_000, 1 << 20);
    outbox.extend([(1, 10), (2, 9000), (3, 9000)]);
    assert_eq!(next(&mut outbox), Some((1, 0, 10)));
    assert_eq!(next(&mut outbox), Some((2, flags::FRAGMENTED, 2048)));
    let (mut calls, mut unsent) = outbox.close(FrameType::REQUEST);
    calls.sort_unstable();
    assert_eq!(calls, [2, 3]);
    assert!(unsent.memory() >= 9000 - 2048, "{}", unsent.memory());
    while !unsent.is_empty() {
        unsent.drop_one();
    }
    assert_eq!(unsent.memory(), 0);
    outbox.push(request(4, 10));
    assert_eq!((next(&mut outbox), outbox.is_empty(), outbox.waiting()), (None, true, 0));
}

#[test]
fn the_peer_is_told_that_its_memory_is_free_before_anything_else() {
    let mut outbox = Outbox::new(100_000, 1 << 20);
    outbox.extend([(1, 10), (2, 9000), (3, 10)]);
    outbox.push(Message::new(FrameType::DONE, 0, Bytes::from_static(b"x")));
    assert_eq!((next(&mut outbox), outbox.waiting()), (Some((0, 0, 1)), 3));
}

#[test]
fn short_messages_do_not_wait_for_one_that_can_not_be_exposed_yet() {
    struct Full;
    impl Expose for Full {
        fn expose(&mut self, _: u32, _: &Bulk) -> Exposing {
            Exposing::Later
        }
    }
    let mut outbox = Outbox::new(100_000, 1 << 20);
    outbox.go_up(1);
    let mut long = request(1, 10);
    long.bulk = Bulk::Plain(vec![7; 9000].into());
    outbox.push(long);
    (2..60).for_each(|call| outbox.push(request(call, 10)));
    outbox.push(Message::new(FrameType::DONE, 0, Bytes::from_static(b"x")));
    let frames = std::iter::from_fn(|| outbox.next(MAX_FRAME, &mut Full)).count();
    assert_eq!((frames, outbox.waiting()), (59, 1));
}

#[test]
fn many_short_messages_and_a_long_one_take_turns() {
    let mut outbox = Outbox::new(100_000, 1 << 20);
    outbox.push(request(1, 9000));
    (2..200).for_each(|call| outbox.push(request(call, 10)));
    let calls: Vec<u64> = std::iter::from_fn(|| next(&mut outbox)).map(|frame| frame.0).collect();
    let long: Vec<usize> = (0..calls.len()).filter(|i| calls[*i] == 1).collect();
    assert_eq!(long.len(), 5);
    assert!(long.windows(2).all(|w| w[1] - w[0] == SMALL_RUN as usize + 1), "{long:?}");
}

fn item(call: u64, len: usize) -> Message {
    let mut item = Message::new(FrameType::ITEM, call, Bytes::from(vec![7; len]));
    item.keep_place();
    item
}

#[test]
fn messages_of_a_stream_keep_their_order_and_who_waits_for_one_is_told() {
    let mut outbox = Outbox::new(100_000, 1 << 20);
    let mut begin = request(1, 20);
    begin.hold_back();
    outbox.push(begin);
    outbox.extend([(2, 10), (3, 10)]);
    (10..20).for_each(|len| outbox.push(item(1, len)));
    outbox.push(item(1, 5000));
    assert_eq!(outbox.waiting(), 3, "items are none of the calls that wait");
    let frames: Vec<_> = std::iter::from_fn(|| next(&mut outbox)).filter(|frame| frame.0 == 1).collect();
    let lengths: Vec<u32> = frames[..11].iter().map(|frame| frame.2).collect();
    assert_eq!(lengths, [20].into_iter().chain(10..20).collect::<Vec<_>>());
    assert_eq!(frames[11..].iter().map(|frame| frame.2).sum::<u32>(), 5000 + 4);
    assert_eq!(outbox.take_sent(), [1, 1]);
    assert_eq!((outbox.take_sent(), outbox.waiting(), outbox.is_empty()), (vec![], 0, true));
}

#[test]
fn a_waiter_is_told_when_its_message_was_read_or_sent_to_its_end() {
    struct All;
    impl Expose for All {
        fn expose(&mut self, _: u32, _: &Bulk) -> Exposing {
            Exposing::Described(Bytes::from_static(b"here"))
        }
    }
    for outcome in [Done::READ, Done::SEND] {
        let mut outbox = Outbox::new(100_000, 1 << 20);
        outbox.go_up(1);
        let mut long = item(1, 10);
        long.hold_back();
        long.bulk = Bulk::Plain(vec![7; 5000].into());
        outbox.push(long);
        let frame = outbox.next(MAX_FRAME, &mut All).unwrap();
        assert_eq!((frame.header.flags & flags::DESCRIBED, outbox.take_sent()), (flags::DESCRIBED, vec![]));
        outbox.done(&Done { seq: frame.header.seq, outcome }).unwrap();
        if outcome == Done::SEND {
            assert_eq!(outbox.take_sent(), [], "it is yet to be sent");
            while next(&mut outbox).is_some() {}
        }
        assert_eq!((outbox.take_sent(), outbox.waiting(), outbox.assembling()), (vec![1], 0, 0));
    }
}

#[test]
fn sealed_message_that_is_not_read_is_sent_as_it_was() {
    struct All;
    impl Expose for All {
        fn expose(&mut self, _: u32, bulk: &Bulk) -> Exposing {
            let Bulk::Sealed(sealed) = bulk else { return Exposing::Never };
            assert_eq!((sealed.len, sealed.bytes.len()), (6000, 6016));
            Exposing::Described(Bytes::from_static(b"here"))
        }
    }
    let mut outbox = Outbox::new(100_000, 1 << 20);
    outbox.go_up(1);
    let mut message = Message::new(FrameType::REQUEST, 1, Bytes::from_static(b"head"));
    let attachments = vec![vec![2; 2000].into(), vec![3; 4000].into()];
    message.payload = crate::payload::Payload::new(vec![1; 10].into(), attachments);
    message.bulk = Bulk::Sealed(Sealed { len: 6000, bytes: vec![0; 6016].into(), number: 5, link: 1 });
    outbox.push(message);
    let frame = outbox.next(MAX_FRAME, &mut All).unwrap();
    let begin = [&6014_u32.to_le_bytes()[..], &[4, 0], b"here", b"head", &[1; 10]].concat();
    assert_eq!(frame.pieces.slices().collect::<Vec<_>>().concat(), begin);
    assert_eq!(frame.header.len as usize, begin.len());
    outbox.done(&Done { seq: frame.header.seq, outcome: Done::SEND }).unwrap();
    let mut rest = Vec::new();
    while let Some(frame) = outbox.next(MAX_FRAME, &mut ExposeNothing) {
        frame.pieces.slices().for_each(|piece| rest.extend_from_slice(piece));
    }
    assert!(rest == [vec![2; 2000], vec![3; 4000]].concat());
    assert_eq!((outbox.waiting(), outbox.assembling()), (0, 0));
}

#[test]
fn a_stream_that_is_given_up_leaves_nothing_behind_but_what_the_peer_must_hear() {
    let mut outbox = Outbox::new(100_000, 1 << 20);
    // Begun, waiting for its turn, and in the queue.
    outbox.push(item(1, 5000));
    assert_eq!(next(&mut outbox), Some((1, flags::FRAGMENTED, 2048)));
    outbox.push(item(2, 5000));
    outbox.push(item(3, 10));
    outbox.extend([(4, 10)]);
    for call in [1, 2, 3] {
        outbox.abandon_streams(call);
    }
    assert_eq!(outbox.waiting(), 1);
    let frames: Vec<_> = std::iter::from_fn(|| next(&mut outbox)).collect();
    assert_eq!(frames, [(4, 0, 10), (1, flags::ABANDONED, 0)]);
    assert_eq!((outbox.waiting(), outbox.assembling(), outbox.is_empty()), (0, 0, true));
}

#[test]
fn a_request_whose_items_are_under_way_has_left() {
    let mut outbox = Outbox::new(100_000, 1 << 20);
    outbox.extend([(1, 10)]);
    assert!(next(&mut outbox).is_some());
    outbox.push(item(1, 5000));
    assert_eq!(next(&mut outbox), Some((1, flags::FRAGMENTED, 2048)));
    outbox.abandon_streams(1);
    assert_eq!(outbox.abandon(FrameType::REQUEST, 1), Abandoned::Sent, "its CANCEL must be said");
}

fn short(kind: FrameType, call: u64) -> Message {
    Message::new(kind, call, Bytes::from_static(b"short"))
}

/// The count that a server holds against the calls that it takes: the beginning of a stream is of one that its handler
/// counts for, its end of one that has no handler any more.
#[test]
fn of_a_stream_its_end_alone_counts_as_an_answer_until_it_has_left() {
    let mut outbox = Outbox::new(100_000, 1 << 20);
    let begin = Message::begin_stream(1, Bytes::from_static(b"short"));
    outbox.push(begin.clone());
    outbox.push(item(1, 10));
    outbox.push(short(FrameType::WINDOW, 1));
    outbox.push(short(FrameType::STOP, 1));
    assert_eq!(outbox.waiting(), 0);
    outbox.push(short(FrameType::END, 1));
    outbox.push(short(FrameType::RESPONSE, 2));
    assert_eq!(outbox.waiting(), 2);
    outbox.abandon_streams(1);
    assert_eq!(outbox.waiting(), 1);
    outbox.push(begin);
    assert_eq!((outbox.abandon(FrameType::RESPONSE, 1), outbox.waiting()), (Abandoned::Unsent, 1));
    while next(&mut outbox).is_some() {}
    assert_eq!((outbox.waiting(), outbox.is_empty()), (0, true));

    // A long beginning keeps its place, and counts as little as a short one.
    outbox.push(Message::begin_stream(4, Bytes::from(vec![7; 5000])));
    assert_eq!((next(&mut outbox), outbox.waiting()), (Some((4, flags::FRAGMENTED, 2048)), 0));
    assert_eq!((outbox.abandon(FrameType::RESPONSE, 4), outbox.waiting()), (Abandoned::Partly, 0));
    assert_eq!((next(&mut outbox), outbox.waiting()), (Some((4, flags::ABANDONED, 0)), 0));
    // One that waits for its turn.
    outbox.push(Message::new(FrameType::RESPONSE, 5, Bytes::from(vec![7; 99_000])));
    outbox.push(Message::begin_stream(6, Bytes::from(vec![7; 5000])));
    assert_eq!((next(&mut outbox), outbox.waiting()), (Some((5, flags::FRAGMENTED, 2048)), 1));
    assert_eq!((outbox.abandon(FrameType::RESPONSE, 6), outbox.waiting()), (Abandoned::Unsent, 1));
    assert_eq!((outbox.abandon(FrameType::RESPONSE, 5), outbox.waiting()), (Abandoned::Partly, 0));
    assert_eq!((next(&mut outbox), outbox.waiting()), (Some((5, flags::ABANDONED, 0)), 0));

    // A long one counts until it has left whole, or is given up.
    outbox.push(Message::new(FrameType::END, 3, Bytes::from(vec![7; 5000])));
    assert_eq!((next(&mut outbox), outbox.waiting()), (Some((3, flags::FRAGMENTED, 2048)), 1));
    outbox.abandon_streams(3);
    assert_eq!(outbox.waiting(), 0);
    assert_eq!((next(&mut outbox), outbox.waiting()), (Some((3, flags::ABANDONED, 0)), 0));
}

/// Whoever floods a side with CANCELs of calls that it does not have must not make it look at all that waits each time.
#[test]
#[cfg_attr(miri, ignore = "ten thousand calls take Miri minutes")]
fn calls_given_up_are_looked_for_together() {
    let mut outbox = Outbox::new(100_000, 1 << 20);
    (1..=1000).for_each(|call| outbox.push(short(FrameType::RESPONSE, call)));
    outbox.push(Message::new(FrameType::RESPONSE, 1001, Bytes::from(vec![7; 5000])));
    let (mut looks, calls) = (0, 10_000);
    for call in 2001..=2000 + calls {
        outbox.give_up(call);
        looks += u64::from(outbox.given_up() == 0);
    }
    assert!((1..=calls / 15).contains(&looks), "all were looked at {looks} times");
    // One call, again and again, is looked for with others, and the long answer of another is taken back, too.
    (0..1000).for_each(|_| outbox.give_up(7));
    (1001..=1020).for_each(|call| outbox.give_up(call));
    assert_eq!(outbox.waiting(), 999);

    // Where little waits, what is given up is found at once.
    let mut outbox = Outbox::new(100_000, 1 << 20);
    (1..=60).for_each(|call| outbox.push(short(FrameType::RESPONSE, call)));
    for call in [60, 99, 1] {
        outbox.give_up(call);
    }
    assert_eq!((outbox.waiting(), outbox.given_up()), (58, 0));
}

/// Or the peer would have one call more than it takes.
#[test]
fn a_cancel_leaves_before_the_call_that_gets_its_place() {
    for long in [10, 3000] {
        let mut outbox = Outbox::new(100_000, 1 << 20);
        outbox.extend([(2, 10), (3, long), (4, 10), (5, 300)]);
        assert_eq!((outbox.push(short(FrameType::CANCEL, 1)), outbox.waiting()), ((), 4));
        assert_eq!(next(&mut outbox), Some((1, 0, 5)));
    }
}
