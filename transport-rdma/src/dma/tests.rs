use std::fs::File;
use std::sync::{Arc, mpsc};

use super::arena::PAGE;
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

fn arena(pages: usize) -> Arc<Arena> {
    Arena::map(pages * PAGE, None).unwrap()
}

#[test]
fn extents_are_zeroed_disjoint_and_as_long_as_asked() {
    let arena = arena(100);
    let mut extents: Vec<Extent> = [1, PAGE, PAGE + 1, 70 * PAGE].map(|len| arena.take(len).unwrap()).into();
    assert_eq!(extents.iter().map(|extent| extent.len()).collect::<Vec<_>>(), [1, PAGE, PAGE + 1, 70 * PAGE]);
    assert_eq!(arena.free(), 26 * PAGE);
    for (i, extent) in extents.iter_mut().enumerate() {
        assert!(extent.iter().all(|&b| b == 0));
        assert_eq!(extent.as_ptr() as usize % 4096, 0);
        assert!(arena.mapping().range().contains(&(extent.as_ptr() as usize)));
        extent.fill(i as u8 + 1);
    }
    for (i, extent) in extents.iter().enumerate() {
        assert!(extent.iter().all(|&b| b == i as u8 + 1), "extent {i} was overwritten");
    }
    assert!(arena.take(27 * PAGE).is_none());
    drop(extents);
    assert_eq!(arena.free(), arena.bytes());
    assert_eq!(arena.take(100 * PAGE).unwrap().len(), 100 * PAGE);
}

#[test]
fn first_hole_that_is_long_enough_is_taken() {
    let arena = arena(200);
    let mut extents: Vec<_> = [3, 1, 64, 1, 100].map(|pages| arena.take(pages * PAGE)).into();
    let start = |extent: &Option<Extent>| extent.as_ref().unwrap().as_ptr();
    let (short, long) = (start(&extents[0]), start(&extents[2]));
    extents[0] = None;
    extents[2] = None;
    // Four pages do not fit before the second; the hole of 64 crosses from one word of the bitmap into the next.
    let four = arena.take(4 * PAGE);
    assert_eq!(start(&four), long);
    let rest = arena.take(60 * PAGE);
    assert_eq!(start(&rest) as usize, long as usize + 4 * PAGE);
    assert_eq!(start(&arena.take(3 * PAGE)), short);
    assert_eq!(arena.free(), arena.bytes() - (1 + 64 + 1 + 100) * PAGE);
}

#[test]
fn random_extents_never_overlap() {
    let mut random = fastrand::Rng::with_seed(7);
    let arena = arena(300);
    let mut extents: Vec<(u8, Extent)> = Vec::new();
    for round in 0..3000 {
        let mark = round as u8;
        if random.bool() {
            let len = random.usize(1..20 * PAGE);
            match arena.take(len) {
                Some(mut extent) => {
                    extent.fill(mark);
                    extents.push((mark, extent));
                }
                None => assert!(arena.free() < 300 * PAGE, "an empty arena has room"),
            }
        } else if !extents.is_empty() {
            let (mark, extent) = extents.swap_remove(random.usize(..extents.len()));
            assert!(extent.iter().all(|&b| b == mark), "round {round}");
        }
        let taken: usize = extents.iter().map(|(_, extent)| extent.len().div_ceil(PAGE) * PAGE).sum();
        assert_eq!(arena.free() + taken, arena.bytes());
    }
}

#[test]
fn extents_travel_between_threads_with_their_content() {
    let arena = arena(8);
    let (send, receive) = mpsc::sync_channel::<(u8, Bytes)>(4);
    let reader = std::thread::spawn(move || {
        for (mark, view) in receive {
            assert!(view.iter().all(|&b| b == mark), "round {mark}");
        }
    });
    for round in 0..5000_usize {
        let mut extent = loop {
            match arena.take((round % 3 + 1) * PAGE) {
                Some(extent) => break extent,
                None => std::thread::yield_now(),
            }
        };
        extent[..64].fill(round as u8);
        send.send((round as u8, extent.freeze(0..64))).unwrap();
    }
    drop(send);
    reader.join().unwrap();
    assert_eq!(arena.free(), arena.bytes());
}

#[test]
fn extent_is_free_when_the_last_view_is_gone_and_outlives_the_arena() {
    let arena = arena(4);
    let mut extent = arena.take(2 * PAGE).unwrap();
    extent.fill(7);
    let address = extent.as_ptr();
    let view = extent.freeze(100..PAGE);
    assert_eq!(view.as_ptr() as usize, address as usize + 100, "a view is not a copy");
    let part = view.slice(5..);
    drop(view);
    assert_eq!(arena.free(), arena.bytes() - 2 * PAGE);
    drop(arena);
    assert!(part.len() == PAGE - 105 && part.iter().all(|&b| b == 7));
}

#[test]
fn target_gives_its_extent_to_the_last_owner_only() {
    let arena = arena(4);
    let mut extent = arena.take(1000).unwrap();
    extent[..10].fill(1);
    let read_target = ReadTarget::new(extent);
    let request = Arc::clone(&read_target);
    let read_target = ReadTarget::into_extent(read_target).expect_err("a request holds it");
    request.write(10, &[2; 990]);
    request.write(11, &[3; 990]);
    request.write(usize::MAX, &[3]);
    drop(request);
    let extent = ReadTarget::into_extent(read_target).unwrap();
    assert!(extent[..10] == [1; 10] && extent[10..] == [2; 990]);
}

#[test]
fn target_has_addresses_within_its_extent_only() {
    let arena = arena(4);
    let extent = arena.take(1000).unwrap();
    let start = extent.as_ptr() as usize;
    let read_target = ReadTarget::new(extent);
    assert_eq!(read_target.len(), 1000);
    assert_eq!(read_target.address(10, 990), Some(start + 10));
    assert_eq!(read_target.address(1000, 0), Some(start + 1000));
    for (at, len) in [(10, 991), (1001, 0), (usize::MAX, 2), (0, usize::MAX)] {
        assert_eq!(read_target.address(at, len), None);
    }
}

#[test]
fn arena_is_retired_only_when_nothing_is_taken() {
    let arena = arena(3);
    let view = arena.take(1).unwrap().freeze(0..1);
    assert!(!arena.retire());
    drop(view);
    assert!(arena.retire());
    assert!(arena.take(1).is_none() && arena.free() == 0);
}

#[test]
fn absurd_arenas_are_refused() {
    for bytes in [0, usize::MAX, isize::MAX as usize] {
        assert!(Arena::map(bytes, None).is_err(), "{bytes}");
    }
}

#[test]
fn numa_node_that_there_is_not_changes_nothing() {
    for node in [0, 63, 64, 1023, 1024, u32::MAX] {
        let arena = Arena::map(PAGE, Some(node)).unwrap();
        arena.mapping().prefault();
        arena.take(PAGE).unwrap().fill(1);
    }
    let text = format!("{:?}", Arena::map(PAGE, Some(u32::MAX)).unwrap());
    assert!(text.contains("node: None"), "{text}");
}

#[test]
fn words_are_mapped_in_memory_and_in_files() {
    let memory = MappedWords::zeroed((1 << 20) + 3).unwrap();
    let words = memory.as_ref();
    assert_eq!(words.len(), (1 << 17) + 1);
    assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    words[1 << 17].store(7, Ordering::Relaxed);
    assert!(MappedWords::zeroed(0).is_err() && MappedWords::zeroed(usize::MAX).is_err());

    let path = std::env::temp_dir().join(format!("farcall-words-{}", std::process::id()));
    let open = || std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    assert!(MappedWords::of_file(&open().unwrap()).is_err(), "an empty file has no words");
    std::fs::write(&path, [1; 8201]).unwrap();
    let of_file = MappedWords::of_file(&open().unwrap()).unwrap();
    assert_eq!(of_file.as_ref().len(), 1025);
    assert_eq!(of_file.as_ref()[1024].load(Ordering::Relaxed).to_ne_bytes(), [1; 8]);
    of_file.as_ref()[1].store(u64::from_ne_bytes([2; 8]), Ordering::Relaxed);
    of_file.sync().unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[..24], [[1; 8], [2; 8], [1; 8]].concat());
    let read_only = File::open(&path).unwrap();
    assert!(MappedWords::of_file(&read_only).is_err(), "it can't be written");
    std::fs::remove_file(&path).unwrap();
}
