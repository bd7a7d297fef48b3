use bytes::Bytes;

use super::windows::Step;
use super::*;
use crate::device::{Exposure, RemoteAccess};
use crate::dma::{Arena, Exposed, ReadTarget, Slab, SlabLayout};

const SIZE: QpSize = QpSize { sends: 8, signal_every: 4, inline: 0 };

fn slab() -> Arc<Slab> {
    Slab::map(SlabLayout { slot_size: 64, slots: 16 }, None).unwrap()
}

fn free(slab: &Arc<Slab>) -> usize {
    std::iter::from_fn(|| slab.take()).collect::<Vec<_>>().len()
}

fn raw(wr_id: u64, status: WcStatus) -> RawCompletion {
    RawCompletion { wr_id, status, vendor: 0, qp_num: 5, len: 10, foreign: false }
}

fn done(wr_id: u64) -> RawCompletion {
    raw(wr_id, WcStatus::SUCCESS)
}

/// A message that keeps a slot.
fn message(slab: &Arc<Slab>) -> Kept {
    Kept::Message([slab.take().unwrap().freeze(0..64), Bytes::new()])
}

#[test]
fn wr_id_tells_kinds_and_generations_apart() {
    let ring = RingKey { index: MAX_INDEX, generation: RING_GENERATION };
    let ids = [
        WrId::Receive { index: 0, generation: 0 },
        WrId::Receive { index: MAX_INDEX, generation: RECEIVE_GENERATION },
        WrId::Send { ring, seq: u16::MAX },
        WrId::Send { ring: RingKey { index: 1, generation: 2 }, seq: 3 },
    ];
    for id in ids {
        assert_eq!(WrId::decode(id.encode()), Some(id));
    }
    assert_eq!(WrId::decode(0), None);
    assert_eq!(WrId::decode(u64::MAX), None);
}

#[test]
fn receive_comes_back_once() {
    let (in_flight, slab) = (InFlight::new(2), slab());
    let wr_id = in_flight.receives().insert(slab.take().unwrap()).unwrap();
    assert_eq!(in_flight.receives().len(), 1);
    let completion = in_flight.resolve(&done(wr_id));
    assert!(matches!(completion, Some(Completion::Received { qp_num: 5, len: 10, .. })));
    assert!(in_flight.resolve(&done(wr_id)).is_none(), "twice");
    // The entry is in use again, for another receive.
    let again = in_flight.receives().insert(slab.take().unwrap()).unwrap();
    assert_ne!(again, wr_id);
    assert!(in_flight.resolve(&done(wr_id)).is_none(), "late");
    assert_eq!(in_flight.strays(), 2);
    assert_eq!(in_flight.receives().len(), 1);
}

#[test]
fn full_table_gives_the_slot_back() {
    let (in_flight, slab) = (InFlight::new(1), slab());
    in_flight.receives().insert(slab.take().unwrap()).unwrap();
    assert_eq!(in_flight.receives().room(), 0);
    drop(in_flight.receives().insert(slab.take().unwrap()).unwrap_err());
    assert_eq!(free(&slab), 15);
}

#[test]
fn failed_or_impossible_receive_gives_the_slot_back() {
    let (in_flight, slab) = (InFlight::new(2), slab());
    let wr_id = in_flight.receives().insert(slab.take().unwrap()).unwrap();
    let flushed = in_flight.resolve(&raw(wr_id, WcStatus::WR_FLUSH_ERR));
    assert!(
        matches!(flushed, Some(Completion::ReceiveFailed { error, .. }) if error.status == WcStatus::WR_FLUSH_ERR)
    );
    let wr_id = in_flight.receives().insert(slab.take().unwrap()).unwrap();
    let longer = RawCompletion { len: 65, ..done(wr_id) };
    let longer = in_flight.resolve(&longer);
    assert!(
        matches!(longer, Some(Completion::ReceiveFailed { error, .. }) if error.status == WcStatus::LOC_LEN_ERR)
    );
}

#[test]
fn foreign_request_is_no_message() {
    let (in_flight, slab) = (InFlight::new(1), slab());
    let wr_id = in_flight.receives().insert(slab.take().unwrap()).unwrap();
    let foreign = in_flight.resolve(&RawCompletion { foreign: true, ..done(wr_id) });
    assert!(
        matches!(foreign, Some(Completion::ReceiveFailed { error, .. }) if error.status == WcStatus::FOREIGN_REQUEST)
    );
    assert_eq!(free(&slab), 15);
    drop(foreign);
    assert_eq!(free(&slab), 16);
}

#[test]
fn completion_of_a_send_stands_for_those_before_it() {
    let (in_flight, slab) = (InFlight::new(0), slab());
    let ring = in_flight.add_ring(SIZE);
    let tickets: Vec<_> = (0..6).map(|_| ring.push(message(&slab), false)).collect();
    let signaled: Vec<_> = tickets.iter().map(|ticket| ticket.signaled).collect();
    assert_eq!(signaled, [false, false, false, true, false, false]);
    assert_eq!((ring.room(), free(&slab)), (2, 10));
    let completion = in_flight.resolve(&done(tickets[3].wr_id));
    assert!(matches!(completion, Some(Completion::Sent { qp_num: 5, count: 4 })));
    assert_eq!((ring.room(), free(&slab)), (6, 14));
    assert!(in_flight.resolve(&done(tickets[3].wr_id)).is_none(), "twice");
    assert!(in_flight.resolve(&done(tickets[1].wr_id)).is_none(), "out of order");
    // The two silent ones count towards the next that is asked for.
    assert!(!ring.push(message(&slab), false).signaled);
    assert!(ring.push(message(&slab), false).signaled);
}

#[test]
fn a_completion_that_was_asked_for_is_awaited_until_it_is_taken_or_will_not_come() {
    let (in_flight, slab) = (InFlight::new(0), slab());
    let ring = in_flight.add_ring(SIZE);
    ring.push(message(&slab), false);
    assert!(!in_flight.awaits_sends());
    let asked = ring.push(message(&slab), true);
    assert!(in_flight.awaits_sends());
    in_flight.resolve(&done(asked.wr_id));
    assert!(!in_flight.awaits_sends());
    ring.push(message(&slab), true);
    ring.withdraw(1);
    assert!(!in_flight.awaits_sends(), "it was not posted");
    ring.push(message(&slab), true);
    in_flight.remove_ring(&ring);
    drop(ring);
    assert!(!in_flight.awaits_sends(), "its queue pair is gone");
}

#[test]
fn failed_send_that_was_not_asked_for_completes_too() {
    let (in_flight, slab) = (InFlight::new(0), slab());
    let ring = in_flight.add_ring(SIZE);
    let tickets: Vec<_> = (0..3).map(|_| ring.push(message(&slab), false)).collect();
    let failed = in_flight.resolve(&raw(tickets[1].wr_id, WcStatus::RETRY_EXC_ERR));
    assert!(matches!(failed, Some(Completion::SendFailed { count: 2, .. })));
    let flushed = in_flight.resolve(&raw(tickets[2].wr_id, WcStatus::WR_FLUSH_ERR));
    assert!(matches!(flushed, Some(Completion::SendFailed { count: 1, .. })));
    assert_eq!(free(&slab), 16);
}

#[test]
fn marker_has_room_in_a_full_ring_and_ends_it() {
    let (in_flight, slab) = (InFlight::new(0), slab());
    let ring = in_flight.add_ring(SIZE);
    for _ in 0..8 {
        ring.push(message(&slab), false);
    }
    assert_eq!(ring.room(), 0);
    let marker = ring.push_marker().unwrap();
    assert!(marker.signaled && ring.push_marker().is_none());
    let drained = in_flight.resolve(&raw(marker.wr_id, WcStatus::WR_FLUSH_ERR));
    assert!(matches!(drained, Some(Completion::Drained { qp_num: 5, count: 8 })));
    assert_eq!((ring.room(), ring.len(), free(&slab)), (0, 0, 16));
}

#[test]
fn withdrawn_sends_were_never_there() {
    let (in_flight, slab) = (InFlight::new(0), slab());
    let ring = in_flight.add_ring(SIZE);
    let first = ring.push(message(&slab), false);
    let second = ring.push(message(&slab), true);
    ring.push(message(&slab), false);
    ring.withdraw(2);
    assert_eq!((ring.len(), free(&slab)), (1, 15));
    // The silent ones are counted anew: this is the second.
    assert_eq!(ring.push(message(&slab), false), Ticket { wr_id: second.wr_id, signaled: false });
    ring.withdraw(2);
    assert_eq!(ring.push(message(&slab), true).wr_id, first.wr_id);
    let marker = ring.push_marker().unwrap();
    ring.withdraw(1);
    assert_eq!(ring.push_marker(), Some(marker));
}

#[test]
fn sequence_numbers_wrap() {
    let (in_flight, slab) = (InFlight::new(0), slab());
    let ring = in_flight.add_ring(SIZE);
    for _ in 0..70_000 {
        let ticket = ring.push(Kept::Message(Default::default()), true);
        assert!(matches!(in_flight.resolve(&done(ticket.wr_id)), Some(Completion::Sent { count: 1, .. })));
    }
    let kept = ring.push(message(&slab), true);
    assert!(in_flight.resolve(&done(kept.wr_id.wrapping_sub(1))).is_none());
    assert_eq!(free(&slab), 15);
}

#[test]
fn completion_for_a_destroyed_queue_pair_does_not_reach_its_successor() {
    let (in_flight, slab) = (InFlight::new(0), slab());
    let ring = in_flight.add_ring(SIZE);
    let stale = ring.push(message(&slab), true);
    in_flight.remove_ring(&ring);
    drop(ring);
    assert_eq!(free(&slab), 16);
    let successor = in_flight.add_ring(SIZE);
    let fresh = successor.push(message(&slab), true);
    assert!(in_flight.resolve(&done(stale.wr_id)).is_none());
    assert_eq!((successor.len(), free(&slab)), (1, 15));
    assert!(in_flight.resolve(&done(fresh.wr_id)).is_some());
}

#[test]
fn leaked_memory_is_not_used_again() {
    let (in_flight, slab) = (InFlight::new(4), slab());
    let ring = in_flight.add_ring(SIZE);
    ring.push(message(&slab), true);
    in_flight.receives().insert(slab.take().unwrap()).unwrap();
    ring.leak();
    in_flight.receives().leak();
    drop((ring, in_flight));
    assert_eq!(free(&slab), 14);
}

#[test]
fn read_keeps_its_target_until_its_own_completion() {
    let in_flight = InFlight::new(0);
    let ring = in_flight.add_ring(SIZE);
    let arena = Arena::map(1, None).unwrap();
    let read_target = ReadTarget::new(arena.take(100).unwrap());
    let silent = ring.push(Kept::Message(Default::default()), false);
    let read = ring.push(Kept::ReadTarget(Arc::clone(&read_target), 77), false);
    assert!(!silent.signaled && read.signaled);
    let read_target = ReadTarget::into_extent(read_target).unwrap_err();
    let completion = in_flight.resolve(&done(read.wr_id));
    assert!(matches!(completion, Some(Completion::Moved { qp_num: 5, count: 2, tag: 77 })));
    assert!(in_flight.resolve(&done(read.wr_id)).is_none(), "twice");
    let read_target = ReadTarget::new(ReadTarget::into_extent(read_target).unwrap());
    let failed = ring.push(Kept::ReadTarget(Arc::clone(&read_target), 78), false);
    let completion = in_flight.resolve(&raw(failed.wr_id, WcStatus::REM_ACCESS_ERR));
    assert!(matches!(completion, Some(Completion::SendFailed { count: 1, .. })));
    assert!(ReadTarget::into_extent(read_target).is_ok());
}

/// A ring with one window, an exposure of a page, and the page's arena.
fn exposure(in_flight: &InFlight) -> (Arc<SendRing>, Arc<Arena>, Exposure) {
    let ring = in_flight.add_ring(SIZE);
    ring.windows().add(0x1234_56ff);
    let arena = Arena::map(1, None).unwrap();
    let bytes = arena.take(100).unwrap().freeze(10..60);
    let exposure = ring.windows().take(Exposed::Message(bytes.clone()), RemoteAccess::READ).unwrap();
    assert_eq!((exposure.addr(), exposure.len()), (bytes.as_ptr() as u64, 50));
    assert_eq!(exposure.rkey(), 0x1234_5600);
    assert_eq!(
        (ring.windows().take(Exposed::Message(bytes.clone()), RemoteAccess::READ), arena.free()),
        (None, 0)
    );
    (ring, arena, exposure)
}

#[test]
fn exposure_ends_with_the_completion_of_its_invalidation() {
    let in_flight = InFlight::new(0);
    let (ring, arena, exposure) = exposure(&in_flight);
    assert_eq!((ring.windows().bind(&exposure), ring.windows().bound()), (Step::Post, 1));
    assert!(!ring.push(Kept::Bind(exposure), false).signaled);
    assert_eq!(ring.windows().bind(&exposure), Step::Skip, "twice");
    assert_eq!(ring.windows().invalidate(&exposure), Step::Post);
    let invalidation = ring.push(Kept::Invalidate(exposure), false);
    assert!(invalidation.signaled);
    assert_eq!(ring.windows().invalidate(&exposure), Step::Skip, "twice");
    assert_eq!((arena.free(), ring.windows().bound()), (0, 1));
    let completion = in_flight.resolve(&done(invalidation.wr_id));
    assert!(matches!(completion, Some(Completion::Sent { count: 2, .. })));
    assert_eq!((arena.free(), ring.windows().bound()), (arena.bytes(), 0));
    let again = ring
        .windows()
        .take(Exposed::Message(arena.take(9).unwrap().freeze(0..9)), RemoteAccess::READ)
        .unwrap();
    assert_eq!(again.rkey(), 0x1234_5601);
    assert_eq!(ring.windows().bind(&exposure), Step::Skip, "stale");
    assert_eq!(ring.windows().invalidate(&exposure), Step::Skip, "stale");
    ring.windows().release(&exposure);
    assert_eq!(ring.windows().bind(&again), Step::Post);
}

#[test]
fn exposure_outlives_an_invalidation_that_failed_or_was_skipped() {
    let in_flight = InFlight::new(0);
    for status in [WcStatus::WR_FLUSH_ERR, WcStatus::SUCCESS] {
        let (ring, arena, exposure) = exposure(&in_flight);
        ring.windows().bind(&exposure);
        ring.windows().invalidate(&exposure);
        let mut completed = ring.push(Kept::Invalidate(exposure), false);
        if status == WcStatus::SUCCESS {
            // A device that loses completions has not said that the window is closed.
            completed = ring.push(Kept::Message(Default::default()), true);
        }
        assert!(in_flight.resolve(&raw(completed.wr_id, status)).is_some());
        assert_eq!((arena.free(), ring.windows().bound()), (0, 1));
        in_flight.remove_ring(&ring);
        drop(ring);
        assert_eq!(arena.free(), arena.bytes());
    }
}

#[test]
fn exposure_that_was_not_bound_ends_without_a_request() {
    let in_flight = InFlight::new(0);
    let (ring, arena, first) = exposure(&in_flight);
    assert_eq!(ring.windows().invalidate(&first), Step::Skip);
    assert_eq!(arena.free(), arena.bytes());
    let second = ring
        .windows()
        .take(Exposed::Message(arena.take(5).unwrap().freeze(0..5)), RemoteAccess::READ)
        .unwrap();
    // The device has not seen the key, so it is the next one still.
    assert_eq!(second.rkey(), first.rkey());
    assert_eq!(ring.windows().bind(&first), Step::Skip);
}

#[test]
fn withdrawn_binds_and_invalidations_were_never_there() {
    let in_flight = InFlight::new(0);
    let (ring, arena, exposure) = exposure(&in_flight);
    ring.windows().bind(&exposure);
    ring.push(Kept::Bind(exposure), false);
    ring.withdraw(1);
    assert_eq!(ring.windows().bound(), 0);
    assert_eq!(ring.windows().bind(&exposure), Step::Post);
    ring.push(Kept::Bind(exposure), false);
    ring.windows().invalidate(&exposure);
    ring.push(Kept::Invalidate(exposure), false);
    ring.withdraw(1);
    assert_eq!((arena.free(), ring.windows().bound()), (0, 1));
    assert_eq!(ring.windows().invalidate(&exposure), Step::Post);
}

#[test]
fn exposure_of_another_queue_pair_is_recognised() {
    let in_flight = InFlight::new(0);
    let ((one, ..), (other, _, theirs)) = (exposure(&in_flight), exposure(&in_flight));
    assert_eq!(one.windows().bind(&theirs), Step::Skip);
    assert_eq!(one.windows().invalidate(&theirs), Step::Skip);
    assert_eq!(other.windows().bind(&theirs), Step::Post);
}

#[test]
fn posting_and_completing_on_different_threads_loses_nothing() {
    const ROUNDS: usize = 20_000;
    let (in_flight, slab) = (InFlight::new(4), slab());
    let ring = in_flight.add_ring(SIZE);
    let (post, posted) = std::sync::mpsc::sync_channel(8);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut completed = 0;
            for ticket in posted {
                match in_flight.resolve(&done(ticket)) {
                    Some(Completion::Sent { count, .. }) => completed += count,
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(completed, ROUNDS);
        });
        for _ in 0..ROUNDS / 4 {
            while ring.room() < 4 {
                std::thread::yield_now();
            }
            let tickets: Vec<_> = (0..4).map(|_| ring.push(message(&slab), false)).collect();
            assert!(tickets[3].signaled);
            post.send(tickets[3].wr_id).unwrap();
        }
        drop(post);
    });
    assert_eq!((free(&slab), in_flight.strays()), (16, 0));
}

#[test]
fn printing_the_table_shows_no_payload() {
    let (in_flight, slab) = (InFlight::new(1), slab());
    let ring = in_flight.add_ring(SIZE);
    let mut slot = slab.take().unwrap();
    slot[..6].copy_from_slice(b"secret");
    in_flight.receives().insert(slot).unwrap();
    ring.push(Kept::Message([Bytes::from_static(b"secret"), Bytes::from_static(b"secret")]), false);
    let printed = format!("{in_flight:?} {ring:?}");
    assert!(printed.contains("[6, 6]") && !printed.contains("secret"), "{printed}");
}
