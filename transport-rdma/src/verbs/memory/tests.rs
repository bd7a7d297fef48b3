use std::sync::{Arc, mpsc};

use super::mapping::HUGE_PAGE;
use super::slab::ALIGN;
use super::*;

fn slab(slot_size: usize, slots: u32) -> Arc<Slab> {
    Slab::map(SlabLayout { slot_size, slots }, None).unwrap()
}

/// How many slots can be taken; they are free again afterwards.
fn free(slab: &Arc<Slab>) -> usize {
    std::iter::from_fn(|| slab.take()).collect::<Vec<_>>().len()
}

#[test]
fn slots_are_disjoint_aligned_and_zeroed() {
    let slab = slab(100, 5);
    let mut slots: Vec<Slot> = std::iter::from_fn(|| slab.take()).collect();
    assert_eq!(slots.len(), 5);
    for (i, slot) in slots.iter_mut().enumerate() {
        assert_eq!(slot.len(), 128);
        assert_eq!(slot.as_ptr() as usize % ALIGN, 0);
        assert!(slab.mapping().range().contains(&(slot.as_ptr() as usize)));
        assert!(slot.iter().all(|&b| b == 0));
        slot.fill(i as u8 + 1);
    }
    for (i, slot) in slots.iter().enumerate() {
        assert!(slot.iter().all(|&b| b == i as u8 + 1), "slot {i} was overwritten");
    }
}

#[test]
fn dropping_a_slot_makes_it_free() {
    let slab = slab(64, 2);
    let (first, _second) = (slab.take().unwrap(), slab.take().unwrap());
    assert!(slab.take().is_none());
    drop(first);
    assert_eq!(free(&slab), 1);
}

#[test]
fn slot_is_free_when_the_last_view_is_gone_on_whatever_thread() {
    let slab = slab(64, 1);
    let mut slot = slab.take().unwrap();
    slot[..5].copy_from_slice(b"hello");
    let address = slot.as_ptr();
    let view = slot.freeze(0..5);
    assert_eq!(view.as_ptr(), address, "a view is not a copy");
    let part = view.slice(1..3);
    drop(view);
    assert_eq!(free(&slab), 0);
    std::thread::spawn(move || assert_eq!(&part[..], b"el")).join().unwrap();
    assert_eq!(free(&slab), 1);
}

#[test]
fn views_outlive_the_slab() {
    let slab = slab(64, 1);
    let mut slot = slab.take().unwrap();
    slot.fill(7);
    let view = slot.freeze(0..64);
    drop(slab);
    assert_eq!(&view[..], [7; 64]);
}

#[test]
#[should_panic(expected = "0..65 of 64 bytes")]
fn view_beyond_the_slot_is_refused() {
    let slab = slab(64, 1);
    slab.take().unwrap().freeze(0..65);
}

#[test]
fn empty_or_absurd_layouts_are_refused() {
    assert!(Slab::map(SlabLayout { slot_size: 64, slots: 0 }, None).is_err());
    assert!(Slab::map(SlabLayout { slot_size: 0, slots: 8 }, None).is_err());
    assert!(Slab::map(SlabLayout { slot_size: usize::MAX, slots: 2 }, None).is_err());
    assert!(Slab::map(SlabLayout { slot_size: isize::MAX as usize, slots: 1 }, None).is_err());
}

#[test]
fn large_slabs_begin_on_huge_pages() {
    let slab = slab(8192, 300);
    assert_eq!(slab.mapping().range().start % HUGE_PAGE, 0);
    assert_eq!(slab.mapping().range().len(), 4 << 20);
    assert_eq!(free(&slab), 300);
    let mut last = slab.take().unwrap();
    last.fill(1);
}

#[test]
fn slots_travel_between_threads_with_their_content() {
    const ROUNDS: u32 = 20_000;
    let slab = slab(64, 3);
    let (send, receive) = mpsc::sync_channel::<Bytes>(2);
    let reader = std::thread::spawn(move || {
        for round in 0..ROUNDS {
            let view = receive.recv().unwrap();
            assert!(view.chunks_exact(4).all(|word| word == round.to_le_bytes()), "round {round}");
        }
    });
    for round in 0..ROUNDS {
        let mut slot = loop {
            match slab.take() {
                Some(slot) => break slot,
                None => std::thread::yield_now(),
            }
        };
        slot.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&round.to_le_bytes()));
        send.send(slot.freeze(0..64)).unwrap();
    }
    reader.join().unwrap();
    assert_eq!(free(&slab), 3);
}
