use std::collections::VecDeque;

use super::*;

/// The expected contents: call and payload of each frame, oldest first.
#[derive(Default)]
struct Model(VecDeque<(u64, Vec<u8>)>);

fn push(small_frames: &mut SmallFrames, model: &mut Model, call: u64, payload: &[u8]) {
    let (head, body) = payload.split_at(payload.len() / 3);
    small_frames.push(FrameType::REQUEST, call, head, body);
    model.0.push_back((call, payload.to_vec()));
}

/// The frames that were moved, which are stamped with these numbers.
fn moved(mut frames: &[u8], seq: u32, rx_seq: u32) -> VecDeque<(u64, Vec<u8>)> {
    let mut all = VecDeque::new();
    while let Some((header, rest)) = frames.split_first_chunk() {
        let header = Header::decode(header).unwrap();
        assert_eq!((header.seq, header.rx_seq), (seq.wrapping_add(all.len() as u32), rx_seq));
        let (payload, rest) = rest.split_at(header.len as usize);
        all.push_back((header.call, payload.to_vec()));
        frames = rest;
    }
    all
}

#[test]
fn it_is_a_queue_from_which_any_can_be_taken() {
    for seed in 0..crate::rounds(200) as u64 {
        let mut rng = fastrand::Rng::with_seed(seed);
        // With the longer ones there are several chunks.
        let longest = [100, MAX_SHORT][seed as usize % 2];
        let (mut small_frames, mut model) = (SmallFrames::default(), Model::default());
        let (mut others, mut other_model) = (SmallFrames::default(), Model::default());
        for call in 1..300 {
            let payload = vec![rng.u8(..); rng.usize(..longest)];
            match rng.u32(..12) {
                0..4 => push(&mut small_frames, &mut model, call, &payload),
                4..7 => push(&mut others, &mut other_model, call, &payload),
                7 => {
                    small_frames.append(&mut others);
                    model.0.append(&mut other_model.0);
                }
                8 => {
                    let popped = small_frames.pop().map(|frame| {
                        let payload: Vec<u8> = frame.pieces.slices().flatten().copied().collect();
                        (frame.header.call, payload)
                    });
                    assert_eq!(popped, model.0.pop_front(), "seed {seed}");
                }
                9 => {
                    let seq = rng.u32(..);
                    let mut chunk = BytesMut::with_capacity(rng.usize(..2 * CHUNK));
                    let given = small_frames.pop_chunk(&mut chunk, seq, 7);
                    assert!(given > 0 || small_frames.is_empty(), "seed {seed}");
                    let expected: VecDeque<_> = model.0.drain(..given as usize).collect();
                    assert_eq!(moved(&chunk, seq, 7), expected, "seed {seed}");
                }
                10 => {
                    let one = rng.u64(..=call);
                    let taken = small_frames.take_out(|header| header.call == one);
                    let before = model.0.len();
                    model.0.retain(|(call, _)| *call != one);
                    assert_eq!(taken, before - model.0.len(), "seed {seed}");
                }
                _ => {
                    let rest = rng.u64(..8);
                    small_frames.take_out(|header| header.call % 8 == rest);
                    model.0.retain(|(call, _)| *call % 8 != rest);
                }
            }
            assert_eq!(
                (small_frames.len(), small_frames.is_empty()),
                (model.0.len(), model.0.is_empty()),
                "seed {seed}"
            );
        }
    }
}

#[test]
fn calls_given_up_while_nothing_leaves_take_no_memory() {
    let mut small_frames = SmallFrames::default();
    small_frames.push(FrameType::REQUEST, 1, b"", b"stays");
    for call in 2..crate::rounds(10_000) as u64 {
        small_frames.push(FrameType::REQUEST, call, b"", &[7; 1000]);
        assert_eq!(small_frames.take_out(|header| header.call == call), 1);
    }
    assert!(small_frames.full.is_empty());
    assert_eq!(small_frames.pop().unwrap().header.call, 1);
}

#[test]
fn a_queue_that_has_once_been_long_keeps_little() {
    let leave: [fn(&mut SmallFrames); 4] = [
        |small_frames| while small_frames.pop().is_some() {},
        |small_frames| while small_frames.pop_chunk(&mut BytesMut::new(), 1, 0) > 0 {},
        |small_frames| SmallFrames::default().append(small_frames),
        |small_frames| small_frames.clear(),
    ];
    for leave in leave {
        let mut small_frames = SmallFrames::default();
        (1..2000).for_each(|call| small_frames.push(FrameType::REQUEST, call, b"", &[7; 1000]));
        assert!(small_frames.full.len() > 10);
        leave(&mut small_frames);
        assert!(small_frames.is_empty() && small_frames.full.is_empty());
        assert!(!small_frames.last.try_reclaim(2 * CHUNK), "more than a chunk");
    }
}

#[test]
fn many_change_hands_without_being_copied() {
    let (mut all, mut more) = (SmallFrames::default(), SmallFrames::default());
    (1..20).for_each(|call| all.push(FrameType::REQUEST, call, b"", &[7; MAX_SHORT]));
    (20..40).for_each(|call| more.push(FrameType::REQUEST, call, b"", &[7; MAX_SHORT]));
    let lie = |small_frames: &SmallFrames| -> Vec<_> {
        small_frames.full.iter().chain([&small_frames.last]).map(|chunk| chunk.as_ptr()).collect()
    };
    let before = [lie(&all), lie(&more)].concat();
    all.append(&mut more);
    assert_eq!(lie(&all), before);
}
