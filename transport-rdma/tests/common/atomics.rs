//! Scenarios of numbers that peers have the owner's device change.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farcall_core::transport::Words;
use farcall_rdma::testing::device::*;

use super::windows::{PAGE, at, pair};
use super::words::{BOTH, Part, WORDS};
use super::{End, Machine, failure};

const ATOMICS: RemoteAccess = RemoteAccess { read: false, write: false, atomics: true };

impl End {
    /// Posts an operation on a number of the peer.
    fn begin(&self, arena: &Arc<Arena>, atomic: Atomic, on: RemoteRange) -> Arc<ReadTarget> {
        let into = ReadTarget::new(arena.take(8).unwrap());
        self.post([Work::Atomic { atomic, on, into: Arc::clone(&into), tag: 5 }]);
        into
    }

    /// Has the peer's device change a number. Returns the one before.
    fn change(&self, arena: &Arc<Arena>, atomic: Atomic, on: RemoteRange) -> Result<u64, WcStatus> {
        let into = self.begin(arena, atomic, on);
        match self.poll(Cq::Send, 1).remove(0) {
            Completion::Moved { tag: 5, .. } => Ok(number(into)),
            other => Err(failure(other)),
        }
    }
}

fn number(into: Arc<ReadTarget>) -> u64 {
    let extent = ReadTarget::into_extent(into).expect("the queue still holds it");
    u64::from_le_bytes(extent[..].try_into().unwrap())
}

fn beyond(exposure: &Exposure, offset: i64) -> RemoteRange {
    RemoteRange { addr: exposure.addr().wrapping_add_signed(offset), rkey: exposure.rkey() }
}

pub(crate) fn numbers_are_changed_until_the_grant_is_over(machine: Machine) {
    let (part, arena) = (Part::new(WORDS), machine.device.add_arena(1 << 20).unwrap());
    let (peer, owner) = pair(&machine);
    let exposure = owner.grant_words_for(&machine, Arc::clone(&part) as Words, ATOMICS);
    part.words()[3].store(u64::MAX - 1, Ordering::Relaxed);
    let mut expected: Vec<_> = part.words().iter().map(|word| word.load(Ordering::Relaxed)).collect();
    let last = WORDS - 1;
    for (word, atomic) in [
        (3, Atomic::FetchAdd(5)),
        (3, Atomic::FetchAdd(0)),
        (0, Atomic::CompareAndSwap { expected: 0, new: u64::MAX }),
        (0, Atomic::CompareAndSwap { expected: 1 << 40, new: 7 }),
        (last, Atomic::CompareAndSwap { expected: last as u64, new: 1 << 40 }),
        (last, Atomic::FetchAdd(u64::MAX)),
    ] {
        let before = peer.change(&arena, atomic, beyond(&exposure, 8 * word as i64));
        assert_eq!(before, Ok(expected[word]), "{atomic:?}");
        expected[word] = atomic.apply(expected[word]);
        let now: Vec<_> = part.words().iter().map(|word| word.load(Ordering::Relaxed)).collect();
        assert!(now == expected, "{atomic:?}");
    }
    part.is_alone();
    owner.revoke(exposure);
    assert_eq!(peer.change(&arena, Atomic::FetchAdd(1), at(&exposure)), Err(WcStatus::REM_ACCESS_ERR));
    assert_eq!(part.words()[0].load(Ordering::Relaxed), expected[0]);
}

/// Several queue pairs count in one number, several operations at once.
pub(crate) fn no_addition_is_lost(machine: Machine) {
    const ROUNDS: u64 = 50;
    let (part, arena) = (Part::new(WORDS), machine.device.add_arena(1 << 20).unwrap());
    let pairs: Vec<_> = (0..4).map(|_| pair(&machine)).collect();
    let grants: Vec<_> = pairs
        .iter()
        .map(|(_, owner)| owner.grant_words_for(&machine, Arc::clone(&part) as Words, ATOMICS))
        .collect();
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        let begun: Vec<_> = pairs
            .iter()
            .zip(&grants)
            .map(|((peer, _), grant)| {
                [(); 2].map(|()| peer.begin(&arena, Atomic::FetchAdd(1), beyond(grant, 80)))
            })
            .collect();
        for ((peer, _), targets) in pairs.iter().zip(begun) {
            assert!(
                peer.poll(Cq::Send, 2).iter().all(|done| matches!(done, Completion::Moved { tag: 5, .. }))
            );
            seen.extend(targets.map(number));
        }
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(10..10 + 8 * ROUNDS), "two have seen one number");
    assert_eq!(part.words()[10].load(Ordering::Relaxed), 10 + 8 * ROUNDS);
}

pub(crate) fn numbers_beside_a_grant_are_not_changed(machine: Machine) {
    let (part, arena) = (Part::new(WORDS), machine.device.add_arena(1 << 20).unwrap());
    let expected = part.bytes();
    let len = PAGE as i64;
    for offset in [-8, len, -len, 2 * len, i64::MIN / 2, i64::MIN] {
        let (peer, owner) = pair(&machine);
        let exposure = owner.grant_words_for(&machine, Arc::clone(&part) as Words, ATOMICS);
        let changed = peer.change(&arena, Atomic::FetchAdd(1), beyond(&exposure, offset));
        assert!(changed.is_err(), "the number at {offset}");
        part.is_alone();
        assert!(part.bytes() == expected, "the number at {offset}");
    }
}

pub(crate) fn numbers_are_changed_by_right(machine: Machine) {
    let (part, arena) = (Part::new(WORDS), machine.device.add_arena(1 << 20).unwrap());
    let expected = part.bytes();
    // The right to read and to write is no right to this.
    let (peer, owner) = pair(&machine);
    let exposure = owner.grant_words_for(&machine, Arc::clone(&part) as Words, BOTH);
    let changed = peer.change(&arena, Atomic::FetchAdd(1), at(&exposure));
    assert_eq!(changed, Err(WcStatus::REM_ACCESS_ERR));
    // This right is none to read or to write.
    let (peer, owner) = pair(&machine);
    let exposure = owner.grant_words_for(&machine, Arc::clone(&part) as Words, ATOMICS);
    peer.read_in_vain(&arena, at(&exposure), 8);
    let (peer, owner) = pair(&machine);
    let exposure = owner.grant_words_for(&machine, Arc::clone(&part) as Words, ATOMICS);
    assert_eq!(peer.write(b"whole wo"[..].into(), at(&exposure)), Err(WcStatus::REM_ACCESS_ERR));
    // Another connection may do nothing.
    let ((_peer, owner), (stranger, _other)) = (pair(&machine), pair(&machine));
    let exposure = owner.grant_words_for(&machine, Arc::clone(&part) as Words, ATOMICS);
    let changed = stranger.change(&arena, Atomic::FetchAdd(1), at(&exposure));
    assert_eq!(changed, Err(WcStatus::REM_ACCESS_ERR));
    assert!(part.bytes() == expected);
    // A number lies at a multiple of eight.
    for offset in [1, 4, 7] {
        let into = ReadTarget::new(arena.take(8).unwrap());
        let on = beyond(&exposure, offset);
        let mut works = [Work::Atomic { atomic: Atomic::FetchAdd(1), on, into, tag: 5 }].into();
        assert_eq!(owner.qp.post(&mut works), Err(PostError::Misaligned));
    }
    // Words that were registered to be read stay as they are.
    let words = machine.device.add_words(part as Words, false).unwrap();
    assert_eq!(owner.qp.expose_words(Arc::new(words), ATOMICS), Err(ExposeError::NotInArena));
}
