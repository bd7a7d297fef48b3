//! The codecs against arbitrary values and arbitrary bytes.

use bytes::Bytes;
use fastrand::Rng;

use super::forms::{self, Form, all};
use crate::metadata::{AnswerMetadata, Metadata};
use crate::payload::Payload;
use crate::status::Status;
use crate::wire::*;

pub(super) const SEED: u64 = 0x7769_7265;

/// The most that decoding `len` bytes may allocate at any moment: the worst is an attachment, 32 bytes here for 4 there.
fn allowance(len: usize) -> u64 {
    len as u64 * 16 + 512
}

/// Decodes what a peer might send; whatever it is, the result is an error or a value that survives the way back.
pub(super) fn survives<F: Form>(input: &[u8]) {
    let input = Bytes::copy_from_slice(input);
    let len = input.len();
    let mut decoded = None;
    let used = allocation_counter::measure(|| decoded = Some(F::decode(input)));
    assert!(used.bytes_max <= allowance(len), "{}: {} bytes for {len}", F::NAME, used.bytes_max);
    if let Some(Ok(value)) = decoded {
        assert_eq!(F::decode(value.bytes()).as_ref(), Ok(&value), "{}", F::NAME);
    }
}

fn round_trip<F: Form>() {
    let mut rng = Rng::with_seed(SEED);
    for _ in 0..crate::rounds(1000) {
        let value = F::random(&mut rng);
        assert_eq!(F::decode(value.bytes()).as_ref(), Ok(&value));
    }
}

#[test]
fn every_value_survives_the_way_over_the_wire() {
    all!(round_trip);
}

fn truncation<F: Form>() {
    let mut rng = Rng::with_seed(SEED);
    for _ in 0..crate::rounds(20) {
        let value = F::random(&mut rng);
        let whole = value.bytes();
        for len in 0..whole.len() {
            survives::<F>(&whole[..len]);
            assert_ne!(F::decode(whole.slice(..len)).as_ref(), Ok(&value), "{} cut to {len}", F::NAME);
        }
    }
}

#[test]
fn a_truncated_frame_is_never_taken_for_the_whole() {
    all!(truncation);
}

fn extension<F: Form>() {
    let mut rng = Rng::with_seed(SEED);
    for _ in 0..crate::rounds(100) {
        let longer = [&F::random(&mut rng).bytes()[..], &[rng.u8(..)]].concat();
        assert!(F::decode(longer.into()).is_err(), "{}", F::NAME);
    }
}

#[test]
fn bytes_behind_the_last_field_are_refused() {
    extension::<Bind>();
    extension::<forms::Request>();
    extension::<forms::Response>();
    extension::<forms::Item>();
    extension::<Cancel>();
    extension::<Stop>();
    extension::<Window>();
    extension::<Done>();
    extension::<Credit>();
    extension::<Ping>();
    extension::<Up>();
    extension::<Probe>();
    let head = EndHead { reason: EndReason::Deadline, items: 1 };
    let content = Content { metadata: Bytes::new(), payload: Payload::from_body(Bytes::from_static(b"why")) };
    assert_eq!(forms::End::decode(forms::End { head, content }.bytes()).unwrap_err().what, "end.body");
}

fn mutation<F: Form>() {
    let mut rng = Rng::with_seed(SEED);
    let value = F::random(&mut rng);
    let mut bytes = value.bytes().to_vec();
    let (places, values) = if cfg!(miri) { (10, 85) } else { (1, 1) };
    for i in (0..bytes.len()).step_by(places) {
        let original = bytes[i];
        for other in (0..=u8::MAX).step_by(values) {
            bytes[i] = other;
            survives::<F>(&bytes);
        }
        bytes[i] = original;
    }
}

#[test]
fn no_change_of_a_byte_does_harm() {
    all!(mutation);
}

fn noise<F: Form>() {
    let mut rng = Rng::with_seed(SEED);
    for _ in 0..crate::rounds(10_000) {
        // Small bytes make lengths that are often plausible.
        let top = if rng.bool() { 4 } else { u8::MAX };
        let bytes: Vec<u8> = (0..rng.usize(..200)).map(|_| rng.u8(..=top)).collect();
        survives::<F>(&bytes);
    }
}

#[test]
fn no_random_bytes_do_harm() {
    all!(noise);
}

/// Accepted bytes are those that this side would have sent.
fn canonical<F: Form>() {
    let mut rng = Rng::with_seed(SEED);
    let mut accepted = 0;
    for _ in 0..50 {
        let mut bytes = F::random(&mut rng).bytes().to_vec();
        for _ in 0..50 {
            if !bytes.is_empty() {
                let i = rng.usize(..bytes.len());
                bytes[i] = rng.u8(..);
            }
            if let Ok(value) = F::decode(Bytes::copy_from_slice(&bytes)) {
                accepted += 1;
                assert_eq!(value.bytes(), bytes, "{}", F::NAME);
            }
        }
    }
    assert!(accepted > 0, "{}", F::NAME);
}

/// Left out are the forms that read numbers and bytes of later versions as something else: HELLO, CLOSE, statuses.
#[test]
#[cfg_attr(miri, ignore = "it takes Miri minutes to find changes that are accepted")]
fn a_message_has_one_encoding() {
    canonical::<Bind>();
    canonical::<forms::Request>();
    canonical::<forms::Response>();
    canonical::<forms::Item>();
    canonical::<Metadata>();
    canonical::<AnswerMetadata>();
    canonical::<Down>();
    canonical::<forms::End>();
    canonical::<Offer>();
}

#[test]
fn a_header_survives_and_noise_in_one_does_no_harm() {
    let mut rng = Rng::with_seed(SEED);
    let mut accepted = 0;
    let rounds = crate::rounds(100_000);
    for _ in 0..rounds {
        let mut bytes: [u8; HEADER_LEN] = std::array::from_fn(|_| rng.u8(..));
        // Without these most would be refused at once.
        bytes[1] &= flags::KNOWN;
        bytes[2..4].fill(0);
        bytes[28..].fill(0);
        if rng.bool() {
            bytes[16..20].fill(0);
            bytes[8..16].fill(0);
        }
        if let Ok(header) = Header::decode(&bytes) {
            accepted += 1;
            assert_eq!(header.encode(), bytes);
        }
    }
    assert!(accepted > rounds / 10, "{accepted}");
}
