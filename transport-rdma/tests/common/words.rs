//! Scenarios of exposed words of an application.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farcall_core::transport::Words;
use farcall_rdma::testing::device::*;
use farcall_rdma::testing::verbs;

use super::windows::{PAGE, SECRET, at, pair};
use super::{End, Machine};

/// Three pages of secrets, words that may be read, and three pages of secrets.
struct Part(Vec<AtomicU64>);

const WORDS: usize = PAGE / 8;

impl AsRef<[AtomicU64]> for Part {
    fn as_ref(&self) -> &[AtomicU64] {
        self.words()
    }
}

impl Part {
    fn new(words: usize) -> Arc<Self> {
        let all: Vec<_> =
            (0..words + 6 * WORDS).map(|_| AtomicU64::new(u64::from_ne_bytes([SECRET; 8]))).collect();
        let this = Self(all);
        this.words().iter().zip(0..).for_each(|(word, i)| word.store(i, Ordering::Relaxed));
        Arc::new(this)
    }

    fn words(&self) -> &[AtomicU64] {
        &self.0[3 * WORDS..self.0.len() - 3 * WORDS]
    }

    fn bytes(&self) -> Vec<u8> {
        self.words().iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }
}

impl End {
    fn grant_words(&self, machine: &Machine, words: Words) -> Exposure {
        let words = machine.device.add_words(words).unwrap();
        self.bind(self.qp.expose_words(Arc::new(words)).unwrap())
    }
}

pub(crate) fn words_are_read_as_they_are_until_the_grant_is_over(machine: Machine) {
    let (part, arena) = (Part::new(3000), machine.device.add_arena(1 << 20).unwrap());
    let (reader, owner) = pair(&machine);
    let exposure = owner.grant_words(&machine, Arc::clone(&part) as Words);
    assert_eq!(exposure.len(), 24_000);
    for i in 0..3 {
        part.words()[7].store(77 + i, Ordering::Relaxed);
        let (result, read) = reader.read(&arena, at(&exposure), 24_000);
        assert_eq!(result, Ok(()));
        assert!(read[..] == part.bytes());
    }
    assert!(Arc::strong_count(&part) > 1, "the peer may still read it");
    owner.revoke(exposure);
    let part = Arc::into_inner(part).expect("nobody else has it");
    assert_eq!(part.words()[7].load(Ordering::Relaxed), 79);
    part.0.iter().for_each(|word| word.store(u64::from_ne_bytes([SECRET; 8]), Ordering::Relaxed));
    reader.read_in_vain(&arena, at(&exposure), 24_000);
}

pub(crate) fn words_beside_a_grant_are_out_of_reach(machine: Machine) {
    let (part, arena) = (Part::new(WORDS + 5), machine.device.add_arena(1 << 20).unwrap());
    let len = 8 * (WORDS + 5);
    let (before, after) = (-(PAGE as i64), len as i64);
    for (offset, count) in
        [(before, PAGE), (after, PAGE), (-1, 1), (after, 1), (-1, len), (1, len), (i64::MIN / 2, 8)]
    {
        let (reader, owner) = pair(&machine);
        let exposure = owner.grant_words(&machine, Arc::clone(&part) as Words);
        let addr = exposure.addr().wrapping_add_signed(offset);
        reader.read_in_vain(&arena, RemoteRange { addr, rkey: exposure.rkey() }, count);
    }
}

/// A window serves words and messages by turns, and each exposure has its own bounds.
pub(crate) fn windows_serve_words_and_messages(machine: Machine) {
    let arena = machine.device.add_arena(1 << 20).unwrap();
    let (reader, owner) = pair(&machine);
    for round in 0..6 {
        let part = Part::new(WORDS);
        let exposure = if round % 3 == 0 {
            let mut extent = arena.take(PAGE).unwrap();
            extent.copy_from_slice(&part.bytes());
            owner.bind(owner.qp.expose(&extent.freeze(0..PAGE)).unwrap())
        } else {
            owner.grant_words(&machine, Arc::clone(&part) as Words)
        };
        let (result, read) = reader.read(&arena, at(&exposure), PAGE);
        assert_eq!(result, Ok(()), "round {round}");
        assert!(read[..] == part.bytes());
        owner.revoke(exposure);
    }
}

pub(crate) fn words_of_queue_pairs_that_are_gone_are_free(machine: Machine) {
    let part = Part::new(WORDS);
    let (reader, owner) = pair(&machine);
    owner.grant_words(&machine, Arc::clone(&part) as Words);
    drop((reader, owner));
    Arc::into_inner(part).expect("nobody else has it");
    assert_eq!(verbs::leaks(), 0);
}

pub(crate) fn empty_words_are_not_exposed(machine: Machine) {
    let (_, owner) = pair(&machine);
    let none: Words = Arc::new(Vec::new());
    if let Ok(none) = machine.device.add_words(none) {
        assert_eq!(owner.qp.expose_words(Arc::new(none)), Err(ExposeError::NotInArena));
    }
}
