//! Scenarios of exposed memory and of READs that hold on every device, simulated or not.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use farcall_rdma::testing::device::*;
use farcall_rdma::testing::verbs;

use super::beside::beside;
use super::{End, Machine, SLOT, connect, failure, received, request};

/// In memory that a READ has to fail to get.
pub(super) const SECRET: u8 = 0x5a;

/// A page of any machine that has RDMA.
pub(super) const PAGE: usize = 4096;

/// Destroying a queue pair takes 50 s if a window is still bound to it. Nothing here takes a tenth of this limit.
pub(crate) const BEFORE_A_HANG: Duration = Duration::from_secs(20);

/// An arena with a secret everywhere, and a part of it that may be read.
pub(super) struct Victim {
    pub(super) arena: Arc<Arena>,
    /// The whole of an extent, three pages before and after what is exposed.
    whole: Bytes,
    pub(super) exposed: Bytes,
}

impl Victim {
    pub(super) fn new(machine: &Machine, len: usize) -> Self {
        let arena = machine.device.add_arena(1 << 20).unwrap();
        let mut extent = arena.take(len + 6 * PAGE).unwrap();
        extent.fill(SECRET);
        let whole = extent.freeze(0..len + 6 * PAGE);
        let exposed = whole.slice(3 * PAGE..3 * PAGE + len);
        Self { arena, whole, exposed }
    }
}

impl End {
    pub(super) fn post(&self, work: impl IntoIterator<Item = Work>) {
        let mut work: VecDeque<_> = work.into_iter().collect();
        let count = work.len();
        assert_eq!(self.qp.post(&mut work).unwrap(), count);
    }

    /// Exposes bytes, and waits until the peer can read them.
    pub(super) fn grant(&self, bytes: &Bytes) -> Exposure {
        self.bind(self.qp.expose(bytes).unwrap())
    }

    /// Binds a window, and waits until the peer can read through it.
    pub(super) fn bind(&self, exposure: Exposure) -> Exposure {
        let parts = [Bytes::new(), Bytes::new()];
        self.post([Work::Bind(exposure), Work::Send { parts, signaled: true, solicited: false }]);
        let completion = self.poll(Cq::Send, 1).remove(0);
        assert!(matches!(completion, Completion::Sent { .. }), "{completion:?}");
        exposure
    }

    /// Ends an exposure, and waits until the peer can no longer read.
    pub(super) fn revoke(&self, exposure: Exposure) {
        self.post([Work::Invalidate(exposure)]);
        let completion = self.poll(Cq::Send, 1).remove(0);
        assert!(matches!(completion, Completion::Sent { .. }), "{completion:?}");
    }

    /// Reads into a read_target of just that length; how it ends, and what is there then.
    pub(super) fn read(
        &self,
        arena: &Arc<Arena>,
        from: RemoteRange,
        len: usize,
    ) -> (Result<(), WcStatus>, Extent) {
        let mut extent = arena.take(len).unwrap();
        extent.fill(0);
        let into = ReadTarget::new(extent);
        self.post([Work::Read { into: Arc::clone(&into), at: 0, len, from, tag: 7 }]);
        let result = match self.poll(Cq::Send, 1).remove(0) {
            Completion::Moved { tag: 7, .. } => Ok(()),
            other => Err(failure(other)),
        };
        (result, ReadTarget::into_extent(into).expect("the queue still holds it"))
    }

    /// A READ that the peer's device has to refuse.
    pub(super) fn read_in_vain(&self, arena: &Arc<Arena>, from: RemoteRange, len: usize) {
        let (result, extent) = self.read(arena, from, len);
        assert_eq!(result, Err(WcStatus::REM_ACCESS_ERR));
        assert!(!extent.contains(&SECRET), "something was read");
    }
}

pub(super) fn at(exposure: &Exposure) -> RemoteRange {
    RemoteRange { addr: exposure.addr(), rkey: exposure.rkey() }
}

/// A pair of which the second can expose, with a receive for each announcement.
pub(super) fn pair(machine: &Machine) -> (End, End) {
    let (reader, owner) = machine.pair(16);
    owner.qp.alloc_windows(2).unwrap();
    (reader, owner)
}

pub(crate) fn exposed_bytes_are_read_whole_and_in_parts(machine: Machine) {
    let arena = machine.device.add_arena(1 << 20).unwrap();
    let (reader, owner) = pair(&machine);
    let mut extent = arena.take(200_000).unwrap();
    (0..200_000).for_each(|i| extent[i] = (i % 251) as u8);
    let message = extent.freeze(1001..150_002);
    let exposure = owner.qp.expose(&message).unwrap();
    assert_eq!((exposure.addr(), exposure.len()), (message.as_ptr() as u64, message.len()));
    // The bind and what announces it, in one list.
    owner.post([Work::Bind(exposure), request(owner.message(64, 1))]);
    received(reader.poll(Cq::Receive, 1).remove(0));

    let (result, whole) = reader.read(&arena, at(&exposure), message.len());
    assert_eq!(result, Ok(()));
    assert!(whole[..] == message[..]);
    drop(whole);

    // The parts go behind what stands there already.
    let mut extent = arena.take(100 + message.len()).unwrap();
    extent[..100].fill(9);
    let into = ReadTarget::new(extent);
    let (mut works, mut done) = (VecDeque::new(), 0);
    while done < message.len() {
        let len = (message.len() - done).min(65_536);
        let from = RemoteRange { addr: exposure.addr() + done as u64, rkey: exposure.rkey() };
        works.push_back(Work::Read { into: Arc::clone(&into), at: 100 + done, len, from, tag: done as u64 });
        done += len;
    }
    assert_eq!(reader.qp.post(&mut works).unwrap(), 3);
    let into = ReadTarget::into_extent(into).expect_err("READs are in flight");
    let tags: Vec<u64> = reader.poll(Cq::Send, 3).into_iter().map(read_tag).collect();
    assert_eq!(tags, [0, 65_536, 131_072]);
    let all = ReadTarget::into_extent(into).expect("all READs have completed");
    assert!(all[..100] == [9; 100] && all[100..] == message[..]);
    owner.revoke(exposure);
}

fn read_tag(completion: Completion) -> u64 {
    match completion {
        Completion::Moved { tag, count: 1, .. } => tag,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn more_reads_than_the_device_serves_wait_for_each_other(machine: Machine) {
    let victim = Victim::new(&machine, 64 * PAGE);
    let (reader, owner) = pair(&machine);
    let exposure = owner.grant(&victim.exposed);
    let into = ReadTarget::new(victim.arena.take(64 * PAGE).unwrap());
    let mut works: VecDeque<_> = (0..64)
        .map(|i| {
            let from = RemoteRange { addr: exposure.addr() + (i * PAGE) as u64, rkey: exposure.rkey() };
            Work::Read { into: Arc::clone(&into), at: i * PAGE, len: PAGE, from, tag: i as u64 }
        })
        .collect();
    while !works.is_empty() {
        assert!(reader.qp.post(&mut works).unwrap() > 0);
    }
    let tags: Vec<u64> = reader.poll(Cq::Send, 64).into_iter().map(read_tag).collect();
    assert!(tags.iter().copied().eq(0..64), "{tags:?}");
    assert!(ReadTarget::into_extent(into).unwrap()[..] == victim.exposed[..]);
    owner.revoke(exposure);
}

pub(crate) fn memory_is_kept_until_its_exposure_is_over(machine: Machine) {
    let victim = Victim::new(&machine, PAGE);
    let (_reader, owner) = pair(&machine);
    let (arena, before) = (victim.arena, victim.whole.len());
    let free = arena.free();
    let exposure = owner.grant(&victim.exposed);
    drop((victim.whole, victim.exposed));
    assert_eq!(arena.free(), free, "the peer may still read it");
    owner.post([Work::Invalidate(exposure)]);
    assert_eq!(arena.free(), free, "nobody knows yet that it is over");
    owner.poll(Cq::Send, 1);
    assert!(arena.free() >= free + before);
}

pub(crate) fn grant_that_is_over_grants_nothing(machine: Machine) {
    let victim = Victim::new(&machine, 2 * PAGE);
    for rebind in [false, true] {
        let (reader, owner) = pair(&machine);
        let exposure = owner.grant(&victim.exposed);
        owner.revoke(exposure);
        if rebind {
            // There are two windows, taken in turn, so the second of these is the one from before.
            let others = [owner.grant(&victim.exposed), owner.grant(&victim.exposed)];
            let same = others.iter().find(|other| other.rkey() >> 8 == exposure.rkey() >> 8);
            assert_ne!(same.expect("another window").rkey(), exposure.rkey());
        }
        reader.read_in_vain(&victim.arena, at(&exposure), 2 * PAGE);
    }
}

pub(crate) fn bytes_beside_a_grant_are_out_of_reach(machine: Machine) {
    // Neither on pages of its own, nor a multiple of one.
    let victim = Victim::new(&machine, 2 * PAGE);
    let exposed = victim.exposed.slice(100..PAGE + 200);
    let len = exposed.len();
    for (begin, count) in beside(len) {
        let (reader, owner) = pair(&machine);
        let (result, extent) = reader.read(&victim.arena, begin.of(&owner.grant(&exposed)), count);
        assert_eq!(result, Err(WcStatus::REM_ACCESS_ERR), "{count} bytes at {begin:?}");
        assert!(!extent.contains(&SECRET), "{count} bytes at {begin:?}");
    }
}

/// A peer that may read a message can't change it while its owner uses it.
pub(crate) fn exposed_bytes_are_nobodys_to_write(machine: Machine) {
    let victim = Victim::new(&machine, PAGE);
    let before = victim.exposed.to_vec();
    let (writer, owner) = pair(&machine);
    let exposure = owner.grant(&victim.exposed);
    let written = writer.write(Bytes::from_static(b"changed"), at(&exposure));
    assert_eq!(written, Err(WcStatus::REM_ACCESS_ERR));
    assert!(victim.exposed[..] == before[..]);
}

pub(crate) fn arena_is_removed_once_nothing_of_it_is_used(machine: Machine) {
    let victim = Victim::new(&machine, PAGE);
    let (reader, owner) = pair(&machine);
    let exposure = owner.grant(&victim.exposed);
    let Victim { arena, whole, exposed } = victim;
    drop((whole, exposed));
    assert!(!machine.device.remove_arena(&arena), "the peer may still read it");
    owner.revoke(exposure);
    let into = ReadTarget::new(arena.take(PAGE).unwrap());
    assert!(!machine.device.remove_arena(&arena), "a READ may write to it");
    drop(into);
    assert!(machine.device.remove_arena(&arena));
    assert!(arena.take(1).is_none());
    let other = machine.device.add_arena(PAGE).unwrap();
    let view = other.take(PAGE).unwrap().freeze(0..PAGE);
    reader.send(view.clone());
    assert_eq!(received(owner.poll(Cq::Receive, 1).remove(0)), view);
    assert_eq!(verbs::leaks(), 0);
}

pub(crate) fn windows_run_out_and_come_back(machine: Machine) {
    let victim = Victim::new(&machine, PAGE);
    let (_reader, owner) = pair(&machine);
    let exposures = [&victim.exposed, &victim.whole].map(|bytes| owner.qp.expose(bytes).unwrap());
    assert_eq!(owner.qp.expose(&victim.exposed), Err(ExposeError::NoWindow));
    owner.qp.alloc_windows(1).unwrap();
    let third = owner.qp.expose(&victim.exposed).unwrap();
    assert_eq!(owner.qp.expose(&victim.exposed), Err(ExposeError::NoWindow));
    // An exposure that was never bound ends without a request.
    owner.post([Work::Invalidate(exposures[0]), Work::Invalidate(exposures[1]), Work::Invalidate(third)]);
    assert_eq!(owner.qp.sends_outstanding(), 0);
    for _ in 0..3 {
        owner.qp.expose(&victim.exposed).unwrap();
    }
}

pub(crate) fn exposure_that_is_over_does_nothing(machine: Machine) {
    let victim = Victim::new(&machine, PAGE);
    let (reader, owner) = pair(&machine);
    let over = owner.grant(&victim.exposed);
    owner.revoke(over);
    let (_, stranger) = pair(&machine);
    let foreign = stranger.qp.expose(&victim.exposed).unwrap();
    owner.post([Work::Bind(over), Work::Invalidate(over), Work::Bind(foreign), Work::Invalidate(foreign)]);
    assert_eq!(owner.qp.sends_outstanding(), 0);
    // Nor does it hold up, or take the place of, what is posted with it.
    let [first, second] = [owner.qp.expose(&victim.exposed), owner.qp.expose(&victim.exposed)];
    let (first, second) = (first.unwrap(), second.unwrap());
    let parts = [owner.message(SLOT, 1), Bytes::new()];
    let announce = Work::Send { parts, signaled: true, solicited: false };
    owner.post([Work::Bind(over), Work::Bind(first), Work::Invalidate(over), Work::Bind(second), announce]);
    let completion = owner.poll(Cq::Send, 1).remove(0);
    assert!(matches!(completion, Completion::Sent { count: 3, .. }), "{completion:?}");
    for exposure in [first, second] {
        let (result, bytes) = reader.read(&victim.arena, at(&exposure), PAGE);
        assert_eq!(result, Ok(()));
        assert!(bytes[..] == victim.exposed[..]);
    }
}

pub(crate) fn only_what_lies_in_an_arena_is_exposed(machine: Machine) {
    let (reader, owner) = pair(&machine);
    assert_eq!(owner.qp.expose(&owner.message(SLOT, 1)), Err(ExposeError::NotInArena), "a slab's slot");
    assert_eq!(owner.qp.expose(&Bytes::from(vec![1; PAGE])), Err(ExposeError::NotInArena), "the heap");
    let arena = machine.device.add_arena(PAGE).unwrap();
    let view = arena.take(PAGE).unwrap().freeze(0..PAGE);
    assert_eq!(owner.qp.expose(&view.slice(5..5)), Err(ExposeError::NotInArena), "nothing");
    // The bytes there can be sent, too.
    owner.send(view.clone());
    assert_eq!(received(reader.poll(Cq::Receive, 1).remove(0)), view);
}

pub(crate) fn read_beyond_its_landing_is_refused(machine: Machine) {
    let victim = Victim::new(&machine, 2 * PAGE);
    let (reader, owner) = pair(&machine);
    let exposure = owner.grant(&victim.exposed);
    let into = ReadTarget::new(victim.arena.take(PAGE).unwrap());
    for (start, len) in [(0, PAGE + 1), (1, PAGE), (PAGE + 1, 0), (usize::MAX, 2)] {
        let read = Work::Read { into: Arc::clone(&into), at: start, len, from: at(&exposure), tag: 0 };
        assert_eq!(reader.qp.post(&mut VecDeque::from([read])), Err(PostError::OutOfBounds));
    }
    assert_eq!(reader.qp.sends_outstanding(), 0);
    ReadTarget::into_extent(into).unwrap();
}

pub(crate) fn failed_read_gives_its_landing_back(machine: Machine) {
    let victim = Victim::new(&machine, PAGE);
    let (reader, owner) = pair(&machine);
    let exposure = owner.grant(&victim.exposed);
    drop(owner);
    let into = ReadTarget::new(victim.arena.take(PAGE).unwrap());
    let read = |tag| Work::Read { into: Arc::clone(&into), at: 0, len: PAGE, from: at(&exposure), tag };
    reader.post([read(1), read(2)]);
    let statuses: Vec<_> = reader.poll(Cq::Send, 2).into_iter().map(failure).collect();
    assert_eq!(statuses, [WcStatus::RETRY_EXC_ERR, WcStatus::WR_FLUSH_ERR]);
    ReadTarget::into_extent(into).unwrap();
}

pub(crate) fn queue_pairs_with_bound_windows_go_at_once(machine: Machine) {
    let victim = Victim::new(&machine, PAGE);
    let free = victim.arena.free();
    let start = Instant::now();
    for drained in [true, false] {
        let (reader, owner) = machine.pair(16);
        owner.qp.alloc_windows(8).unwrap();
        for _ in 0..8 {
            owner.grant(&victim.exposed);
        }
        if drained {
            let (count, failures) = owner.drain();
            assert_eq!((count, failures), (0, vec![]));
        }
        drop((owner, reader));
    }
    assert!(start.elapsed() < BEFORE_A_HANG, "{:?}", start.elapsed());
    drop((victim.whole, victim.exposed));
    assert!(victim.arena.free() > free, "an exposure was left");
    assert_eq!(verbs::leaks(), 0);
}

pub(crate) fn extents_outlive_the_device(machine: Machine) {
    let victim = Victim::new(&machine, PAGE);
    let mut extent = victim.arena.take(PAGE).unwrap();
    let (reader, owner) = pair(&machine);
    owner.grant(&victim.exposed);
    let Victim { exposed, .. } = victim;
    drop((reader, owner, machine));
    extent.fill(1);
    assert!(exposed.iter().all(|&byte| byte == SECRET));
    assert_eq!(verbs::leaks(), 0);
}

pub(crate) fn device_says_what_it_can_read_and_expose(machine: Machine) {
    let limits = machine.device.limits();
    assert!(limits.windows > 0, "{limits:?}");
    assert!((1..=MAX_READS).contains(&limits.reads) && (1..=MAX_READS).contains(&limits.reads_served));
    // One that is told to serve no READ refuses it.
    let victim = Victim::new(&machine, PAGE);
    let (reader, owner) = (machine.end(16), machine.end(16));
    connect(&reader, &owner, &QpTuning { reads_served: 0, ..machine.tuning() });
    owner.qp.alloc_windows(1).unwrap();
    let exposure = owner.grant(&victim.exposed);
    let (result, _) = reader.read(&victim.arena, at(&exposure), PAGE);
    assert!(result.is_err());
}

/// A pair whose second end has windows bound, in every state there is, and keeps what they expose.
pub(crate) fn with_bound_windows(machine: &Machine) -> (End, End) {
    let victim = Victim::new(machine, 64 * PAGE);
    let (reader, owner) = machine.pair(16);
    owner.qp.alloc_windows(16).unwrap();
    for _ in 0..14 {
        owner.grant(&victim.exposed);
    }
    let over = owner.grant(&victim.exposed);
    owner.revoke(over);
    owner.qp.expose(&victim.exposed).unwrap();
    (reader, owner)
}
