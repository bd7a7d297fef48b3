//! Scenarios of exposed words of an application.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use farcall_core::transport::{Exportable, Words};
use farcall_rdma::testing::device::*;
use farcall_rdma::testing::dma::SharedExtent;
use farcall_rdma::testing::verbs;

use super::beside::beside;
use super::windows::{PAGE, SECRET, at, pair};
use super::{End, Machine, failure};

/// Three pages of secrets, words that may be read, and three pages of secrets.
pub(super) struct Part(Vec<AtomicU64>);

pub(super) const WORDS: usize = PAGE / 8;

impl AsRef<[AtomicU64]> for Part {
    fn as_ref(&self) -> &[AtomicU64] {
        self.words()
    }
}

impl Exportable for Part {}

impl Part {
    pub(super) fn new(words: usize) -> Arc<Self> {
        let all: Vec<_> =
            (0..words + 6 * WORDS).map(|_| AtomicU64::new(u64::from_ne_bytes([SECRET; 8]))).collect();
        let this = Self(all);
        this.words().iter().zip(0..).for_each(|(word, i)| word.store(i, Ordering::Relaxed));
        Arc::new(this)
    }

    /// Checks that nothing was written beside the words.
    pub(super) fn is_alone(&self) {
        let (before, rest) = self.0.split_at(3 * WORDS);
        let beside = before.iter().chain(&rest[rest.len() - 3 * WORDS..]);
        assert!(
            beside
                .map(|word| word.load(Ordering::Relaxed))
                .all(|word| word == u64::from_ne_bytes([SECRET; 8]))
        );
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        &self.0[3 * WORDS..self.0.len() - 3 * WORDS]
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.words().iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }
}

const WRITE: RemoteAccess = RemoteAccess { read: false, write: true, atomics: false };
pub(super) const BOTH: RemoteAccess = RemoteAccess { read: true, write: true, atomics: false };

impl End {
    fn grant_words(&self, machine: &Machine, words: Words) -> Exposure {
        self.grant_words_for(machine, words, RemoteAccess::READ)
    }

    pub(super) fn grant_words_for(&self, machine: &Machine, words: Words, access: RemoteAccess) -> Exposure {
        let words = machine.device.add_words(words, access.write || access.atomics).unwrap();
        self.bind(self.qp.expose_words(Arc::new(words), access).unwrap())
    }

    /// Writes to the peer's memory; how it ends.
    pub(super) fn write(&self, bytes: Bytes, to: RemoteRange) -> Result<(), WcStatus> {
        self.post([Work::Write { from: bytes.into(), to, tag: 9 }]);
        match self.poll(Cq::Send, 1).remove(0) {
            Completion::Moved { tag: 9, .. } => Ok(()),
            other => Err(failure(other)),
        }
    }
}

/// A value of this length in registered memory.
fn value(arena: &Arc<Arena>, len: usize, byte: u8) -> Bytes {
    let mut extent = arena.take(len).unwrap();
    extent.fill(byte);
    extent.freeze(0..len)
}

pub(crate) fn words_are_written_until_the_grant_is_over(machine: Machine) {
    let (part, arena) = (Part::new(3000), machine.device.add_arena(1 << 20).unwrap());
    let (writer, owner) = pair(&machine);
    let exposure = owner.grant_words_for(&machine, Arc::clone(&part) as Words, BOTH);
    let mut expected = part.bytes();
    // The first fit into the request, and need not lie in registered memory.
    for (start, bytes) in [
        (0, Bytes::from_static(b"whole wo")),
        (13, Bytes::from_static(b"part")),
        (5, value(&arena, 20_001, 7)),
        (23_999, value(&arena, 1, 9)),
        (0, value(&arena, 24_000, 11)),
        (24_000, Bytes::new()),
    ] {
        expected[start..start + bytes.len()].copy_from_slice(&bytes);
        let to = RemoteRange { addr: exposure.addr() + start as u64, rkey: exposure.rkey() };
        let len = bytes.len();
        assert_eq!(writer.write(bytes, to), Ok(()), "{len} bytes at {start}");
        assert!(part.bytes() == expected, "{len} bytes at {start}");
        let (result, read) = writer.read(&arena, at(&exposure), 24_000);
        assert!(result == Ok(()) && read[..] == expected[..], "{len} bytes at {start}");
    }
    part.is_alone();
    owner.revoke(exposure);
    assert_eq!(writer.write(value(&arena, 100, 13), at(&exposure)), Err(WcStatus::REM_ACCESS_ERR));
    assert!(part.bytes() == expected, "it was written to after its grant");
}

/// A part of an arena, not of whole words, may be written exactly, and be nobody's to read.
pub(crate) fn words_in_an_arena_are_written_until_the_grant_is_over(machine: Machine) {
    const LEN: usize = PAGE + 13;
    let arena = machine.device.add_arena(1 << 20).unwrap();
    let shared = || {
        let mut extent = arena.take(LEN + 3 * PAGE).unwrap();
        extent.fill(SECRET);
        SharedExtent::new(extent)
    };
    let bytes_of = |shared: &Arc<SharedExtent>| {
        let words = (**shared).as_ref().iter();
        words.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect::<Vec<_>>()
    };
    let granted = |owner: &End, shared: &Arc<SharedExtent>| {
        let words = RegisteredWords::within_arena(Arc::clone(shared) as Words, LEN);
        owner.bind(owner.qp.expose_words(Arc::new(words), WRITE).unwrap())
    };
    let (writer, owner) = pair(&machine);
    let memory = shared();
    let exposure = granted(&owner, &memory);
    assert_eq!(exposure.len(), LEN);
    assert_eq!(writer.write(value(&arena, LEN, 7), at(&exposure)), Ok(()));
    assert!(bytes_of(&memory)[..LEN] == [7; LEN] && bytes_of(&memory)[LEN..LEN + PAGE] == [SECRET; PAGE]);
    let memory = SharedExtent::into_extent(memory).expect_err("the peer may still write it");
    owner.revoke(exposure);
    let extent = SharedExtent::into_extent(memory).expect("nobody else has it");
    assert!(extent[..LEN] == [7; LEN]);
    assert_eq!(writer.write(value(&arena, 8, 9), at(&exposure)), Err(WcStatus::REM_ACCESS_ERR));
    assert!(extent[..LEN] == [7; LEN], "it was written to after its grant");

    for (begin, count) in beside(LEN) {
        let (writer, owner) = pair(&machine);
        let memory = shared();
        let exposure = granted(&owner, &memory);
        let to = begin.of(&exposure);
        let written = writer.write(value(&arena, count, 0xee), to);
        assert_eq!(written, Err(WcStatus::REM_ACCESS_ERR), "{count} bytes at {begin:?}");
        assert!(bytes_of(&memory)[LEN..LEN + 3 * PAGE] == [SECRET; 3 * PAGE], "{count} bytes at {begin:?}");
    }
    let (reader, owner) = pair(&machine);
    let memory = shared();
    reader.read_in_vain(&arena, at(&granted(&owner, &memory)), LEN);
}

pub(crate) fn words_beside_a_grant_are_not_written(machine: Machine) {
    let (part, arena) = (Part::new(WORDS + 5), machine.device.add_arena(1 << 20).unwrap());
    let (expected, len) = (part.bytes(), 8 * (WORDS + 5));
    for (begin, count) in beside(len) {
        let (writer, owner) = pair(&machine);
        let exposure = owner.grant_words_for(&machine, Arc::clone(&part) as Words, BOTH);
        let to = begin.of(&exposure);
        let written = writer.write(value(&arena, count, 0xee), to);
        assert_eq!(written, Err(WcStatus::REM_ACCESS_ERR), "{count} bytes at {begin:?}");
        part.is_alone();
        // A write that goes past the end may have been done up to there, by devices that check each packet.
        if !begin.is_within(len) {
            assert!(part.bytes() == expected, "{count} bytes at {begin:?}");
        }
    }
}

pub(crate) fn a_grant_gives_the_rights_that_it_names(machine: Machine) {
    let (part, arena) = (Part::new(WORDS), machine.device.add_arena(1 << 20).unwrap());
    let expected = part.bytes();
    let (peer, owner) = pair(&machine);
    let exposure = owner.grant_words_for(&machine, Arc::clone(&part) as Words, RemoteAccess::READ);
    assert_eq!(peer.write(value(&arena, 8, 0xee), at(&exposure)), Err(WcStatus::REM_ACCESS_ERR));
    let (peer, owner) = pair(&machine);
    let exposure = owner.grant_words_for(&machine, Arc::clone(&part) as Words, WRITE);
    let (result, read) = peer.read(&arena, at(&exposure), PAGE);
    assert!(result == Err(WcStatus::REM_ACCESS_ERR) && read[..] != expected[..]);
    // Nobody may write to a message.
    let (peer, owner) = pair(&machine);
    let message = value(&arena, PAGE, 1);
    let exposure = owner.bind(owner.qp.expose(&message).unwrap());
    assert_eq!(peer.write(value(&arena, 8, 0xee), at(&exposure)), Err(WcStatus::REM_ACCESS_ERR));
    assert!(part.bytes() == expected && message[..] == [1; PAGE]);
    // Nor to words that were registered to be read.
    let words = machine.device.add_words(part as Words, false).unwrap();
    assert_eq!(owner.qp.expose_words(Arc::new(words), WRITE), Err(ExposeError::NotInArena));
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
    for (begin, count) in beside(len) {
        let (reader, owner) = pair(&machine);
        let exposure = owner.grant_words(&machine, Arc::clone(&part) as Words);
        reader.read_in_vain(&arena, begin.of(&exposure), count);
    }
}

/// All of a [`Part`], secrets included.
struct Whole(Arc<Part>);

impl AsRef<[AtomicU64]> for Whole {
    fn as_ref(&self) -> &[AtomicU64] {
        &self.0.0
    }
}

impl Exportable for Whole {}

/// The part without the secrets, of words that are registered with them.
#[derive(Debug)]
struct Inner {
    all: Arc<RegisteredWords>,
    range: std::ops::Range<usize>,
}

impl SharesWords for Inner {
    fn words(&self) -> &RegisteredWords {
        &self.all
    }

    fn range(&self) -> std::ops::Range<usize> {
        self.range.clone()
    }
}

/// The device knows the secrets' memory, too. The peer gets at the exposed part, and at nothing beside it.
pub(crate) fn a_part_of_words_has_bounds_of_its_own(machine: Machine) {
    const LEN: usize = 8 * (WORDS + 5);
    let arena = machine.device.add_arena(1 << 20).unwrap();
    let registered = || {
        let part = Part::new(WORDS + 5);
        let all = machine.device.add_words(Arc::new(Whole(Arc::clone(&part))), true).unwrap();
        (part, Arc::new(all))
    };
    let granted = |owner: &End, part: &Part, all: &Arc<RegisteredWords>, access| {
        let start = part.words().as_ptr() as usize;
        let inner = Inner { all: Arc::clone(all), range: start..start + LEN };
        owner.bind(owner.qp.expose_words(Arc::new(inner), access).unwrap())
    };
    let (part, all) = registered();
    let (peer, owner) = pair(&machine);
    let exposure = granted(&owner, &part, &all, BOTH);
    assert_eq!((exposure.addr(), exposure.len()), (part.words().as_ptr() as u64, LEN));
    let (result, read) = peer.read(&arena, at(&exposure), LEN);
    assert!(result == Ok(()) && read[..] == part.bytes());
    let last = RemoteRange { addr: exposure.addr() + LEN as u64 - 3, rkey: exposure.rkey() };
    assert_eq!(peer.write(value(&arena, 3, 7), last), Ok(()));
    assert!(part.bytes()[LEN - 3..] == [7; 3]);
    owner.revoke(exposure);
    let weak = Arc::downgrade(&part);
    drop((part, all));
    assert_eq!(weak.strong_count(), 0, "the window keeps words that nobody can use by it");

    let (part, all) = registered();
    for (begin, count) in beside(LEN) {
        let (peer, owner) = pair(&machine);
        let exposure = granted(&owner, &part, &all, RemoteAccess::READ);
        peer.read_in_vain(&arena, begin.of(&exposure), count);
        let (peer, owner) = pair(&machine);
        let exposure = granted(&owner, &part, &all, WRITE);
        let to = begin.of(&exposure);
        let written = peer.write(value(&arena, count, 0xee), to);
        assert_eq!(written, Err(WcStatus::REM_ACCESS_ERR), "{count} bytes at {begin:?}");
        part.is_alone();
    }
}

/// Other memory of the application is a target and a source like that of an arena, as it was registered.
pub(crate) fn words_of_this_side_are_read_into_and_written_from(machine: Machine) {
    let (part, theirs) = (Part::new(WORDS), Part::new(WORDS));
    let (near, far) = pair(&machine);
    let exposure = far.grant_words_for(&machine, Arc::clone(&theirs) as Words, BOTH);
    let ours = Arc::new(machine.device.add_words(Arc::clone(&part) as Words, true).unwrap());
    part.words().iter().for_each(|word| word.store(5, Ordering::Relaxed));
    let into = ReadTarget::within(Arc::clone(&ours) as Arc<dyn SharesWords>);
    near.post([Work::Read { into, at: 24, len: 16, from: at(&exposure), tag: 3 }]);
    assert!(matches!(near.poll(Cq::Send, 1)[..], [Completion::Moved { tag: 3, .. }]));
    let values: Vec<_> = part.words()[..6].iter().map(|word| word.load(Ordering::Relaxed)).collect();
    assert_eq!(values, [5, 5, 5, 0, 1, 5]);
    let from = Source::Words(Arc::clone(&ours) as Arc<dyn SharesWords>, 8 * 4..8 * WORDS);
    near.post([Work::Write { from, to: at(&exposure), tag: 4 }]);
    assert!(matches!(near.poll(Cq::Send, 1)[..], [Completion::Moved { tag: 4, .. }]));
    assert!(theirs.bytes()[..8 * (WORDS - 4)] == part.bytes()[32..]);
    part.is_alone();
    theirs.is_alone();

    let refused = |work| near.qp.post(&mut [work].into()).unwrap_err();
    let into = ReadTarget::within(Arc::clone(&ours) as Arc<dyn SharesWords>);
    let read = Work::Read { into, at: PAGE - 8, len: 9, from: at(&exposure), tag: 5 };
    assert_eq!(refused(read), PostError::OutOfBounds);
    let from = Source::Words(Arc::clone(&ours) as Arc<dyn SharesWords>, 8..PAGE + 1);
    assert_eq!(refused(Work::Write { from, to: at(&exposure), tag: 6 }), PostError::OutOfBounds);
    // Registered to be read only.
    let fixed: Arc<dyn SharesWords> = Arc::new(machine.device.add_words(part as Words, false).unwrap());
    let into = ReadTarget::within(fixed);
    let read = Work::Read { into, at: 0, len: 8, from: at(&exposure), tag: 7 };
    assert_eq!(refused(read), PostError::NotRegistered);
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
    if let Ok(none) = machine.device.add_words(none, false) {
        assert_eq!(owner.qp.expose_words(Arc::new(none), RemoteAccess::READ), Err(ExposeError::NotInArena));
    }
}
