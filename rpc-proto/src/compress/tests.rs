use bytes::Bytes;
use fastrand::Rng;

use super::*;

const ALL: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

fn built_in() -> impl Iterator<Item = Compression> {
    ALL.into_iter().filter(|by| by.is_built_in())
}

/// Bytes that become shorter, but not by much.
fn text(len: usize, seed: u64) -> Bytes {
    let mut rng = Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(b'a'..=b'd')).collect()
}

fn bytes_of(payload: &Payload) -> Bytes {
    payload.to_contiguous().unwrap()
}

/// A payload as a peer may have sent it: these bytes, with this claim of their length.
fn claimed(by: Compression, bytes: &[u8], len: u32) -> Payload {
    Payload::packed(Bytes::copy_from_slice(bytes), Packed::new(by, len, Vec::new()))
}

#[test]
fn a_compressed_payload_comes_back_whole() {
    let attachments = vec![text(70_000, 1), Bytes::new(), text(3, 2)];
    let payload = Payload::new(text(5000, 3), attachments);
    for by in built_in() {
        let packed = super::pack(&mut Workspace::new(), by, &payload).unwrap();
        assert!(packed.len() <= payload.len() * 15 / 16, "{by:?}: {}", packed.len());
        assert_eq!((packed.compression(), packed.attachments().len()), (by, 0));
        assert_eq!(super::unpack(&mut Workspace::new(), packed).unwrap(), payload, "{by:?}");
    }
}

#[test]
fn a_payload_that_does_not_become_shorter_is_left_as_it_is() {
    let mut rng = Rng::with_seed(4);
    let noise = Payload::from_body((0..100_000).map(|_| rng.u8(..)).collect());
    for by in built_in() {
        assert_eq!(super::pack(&mut Workspace::new(), by, &noise), None, "{by:?}");
    }
}

#[test]
fn a_length_that_is_not_so_is_found_out() {
    let payload = Payload::from_body(text(5000, 5));
    for by in built_in() {
        let (packed, _) = super::pack(&mut Workspace::new(), by, &payload).unwrap().into_packed().unwrap();
        for len in [0, 1, 4999, 5001, 10_000] {
            assert_eq!(
                super::unpack(&mut Workspace::new(), claimed(by, &packed, len)),
                Err(CantUnpack::Malformed),
                "{by:?}: {len}"
            );
        }
        let back = super::unpack(&mut Workspace::new(), claimed(by, &packed, 5000)).unwrap();
        assert_eq!(bytes_of(&back), bytes_of(&payload));
    }
}

/// A part whose length is not known yet must fit into the claim.
#[test]
fn a_claim_that_can_not_be_so_costs_no_memory() {
    for by in built_in() {
        let bomb = claimed(by, &[0x5a; 100], 1 << 30);
        let used = allocation_counter::measure(|| {
            assert_eq!(super::unpack(&mut Workspace::new(), bomb), Err(CantUnpack::Malformed));
        });
        assert!(used.bytes_max < 100_000, "{by:?}: {}", used.bytes_max);
    }
}

#[test]
fn damaged_bytes_are_refused_or_become_as_many_as_they_say() {
    let mut rng = Rng::with_seed(6);
    let payload = Payload::from_body(text(5000, 7));
    for by in built_in() {
        let (packed, _) = super::pack(&mut Workspace::new(), by, &payload).unwrap().into_packed().unwrap();
        for _ in 0..crate::rounds(3000) {
            let mut bytes = packed.to_vec();
            for _ in 0..rng.usize(1..5) {
                let at = rng.usize(..bytes.len());
                bytes[at] = rng.u8(..);
            }
            bytes.truncate(rng.usize(bytes.len() / 2..=bytes.len()));
            if let Ok(back) = super::unpack(&mut Workspace::new(), claimed(by, &bytes, 5000)) {
                assert_eq!(back.len(), 5000);
            }
            let noise: Vec<u8> = (0..rng.usize(..200)).map(|_| rng.u8(..)).collect();
            let len = rng.u32(..5000);
            assert!(
                super::unpack(&mut Workspace::new(), claimed(by, &noise, len))
                    .map_or(true, |back| back.len() == len as usize)
            );
        }
    }
}

#[test]
fn compression_that_is_not_built_in_is_refused_and_not_announced() {
    for by in ALL {
        let said = Compression::features() & by.feature() != 0;
        assert_eq!((by.check().is_ok(), said), (by.is_built_in(), by.is_built_in()), "{by:?}");
        if let Err(status) = by.check() {
            assert_eq!((status.code(), status.executed()), (Code::FailedPrecondition, Executed::No));
            assert!(status.message().contains(&format!("built without the feature `{}`", by.name())));
            assert_eq!(super::pack(&mut Workspace::new(), by, &Payload::from_body(text(5000, 8))), None);
        }
    }
}
