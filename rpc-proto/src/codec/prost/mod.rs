//! Protocol Buffers, by prost.

mod memory;

use prost::{DecodeError, Message};

use self::memory::Counted;
use super::{Codec, CodecError, Decode, Encode, Postcard, Shape};
use crate::payload::{Decoder, Encoder, FREE, check_memory};
use crate::status::Status;

/// Carries one protobuf message, or none (`()`), with prost's types.
///
/// `bytes` fields generated as [`Bytes`](bytes::Bytes) are not copied: long ones are sent by reference, and all are
/// slices of the receive buffer on arrival, so that a kept one keeps that buffer. Messages may change as protobuf
/// allows, which the signature fingerprint therefore leaves out. Nesting is limited to prost's 100 levels.
///
/// The memory of the values is limited, as with [`Postcard`](super::Postcard). farcall counts up to 16 bytes for each number and
/// 32 for each field, the bytes of strings, and `MESSAGE` bytes more for each message within the message, by default 256. It can't see
/// how large the structs of such messages are. A service with larger ones (`size_of` tells) says so, or a peer makes it hold more than
/// is counted: `#[farcall::service(codec = farcall::Prost<1024>)]`. Peers need not agree about it.
///
/// Nothing is counted of messages that take less than 8 KiB in any case. By default, these are the messages of up to 56 bytes. With a
/// larger `MESSAGE` they are shorter.
#[derive(Debug)]
pub enum Prost<const MESSAGE: usize = 256> {}

impl<const MESSAGE: usize> Codec for Prost<MESSAGE> {
    const NAME: &'static str = "prost";
    const ARGUMENTS: usize = 1;
}

/// The memory that each field counts as, in bytes.
const FIELD: usize = 32;

impl<T: Message, const MESSAGE: usize> Encode<T> for Prost<MESSAGE> {
    fn encode(value: &T, out: &mut Encoder) -> Result<(), CodecError> {
        value.encode(&mut out.segments()).map_err(|e| CodecError::new(e.to_string()))
    }
}

#[cold]
fn malformed(error: DecodeError) -> CodecError {
    CodecError::new(error.to_string())
}

impl<const MESSAGE: usize> Prost<MESSAGE> {
    /// The longest message whose memory need not be counted, in bytes. Two of its bytes may be a message within it.
    const SHORT: usize = 2 * FREE as usize / MESSAGE.saturating_add(FIELD);
}

impl<T: Message + Default, const MESSAGE: usize> Decode<T> for Prost<MESSAGE> {
    fn decode(input: &mut Decoder) -> Result<T, CodecError> {
        let body = input.take_rest();
        if body.len() <= Self::SHORT {
            return T::decode(body).map_err(malformed);
        }
        // prost copies strings and byte strings, and aborts the process where there is no memory for them.
        check_memory(body.len())?;
        input.take_memory(memory::of_messages(&body, MESSAGE))?;
        let mut body = Counted::new(body, input);
        let decoded = T::decode(&mut body);
        body.finish()?;
        decoded.map_err(malformed)
    }

    fn shape(shape: &mut Shape) {
        shape.protobuf::<T>();
    }
}

impl<const MESSAGE: usize> Encode<Status> for Prost<MESSAGE> {
    fn encode(value: &Status, out: &mut Encoder) -> Result<(), CodecError> {
        Postcard::encode(value, out)
    }
}

impl<const MESSAGE: usize> Decode<Status> for Prost<MESSAGE> {
    fn decode(input: &mut Decoder) -> Result<Status, CodecError> {
        Postcard::decode(input)
    }

    fn shape(shape: &mut Shape) {
        <Postcard as Decode<Status>>::shape(shape);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::codec::{from_payload, to_payload};
    use crate::payload::{BY_REFERENCE, Payload};

    #[test]
    fn a_long_bytes_field_is_sent_by_reference_and_arrives_as_a_slice() {
        let long = Bytes::from(vec![7; 100_000]);
        let payload = to_payload::<Prost, _>(&long).unwrap();
        assert_eq!(payload.more()[0].as_ptr(), long.as_ptr());
        assert_eq!(payload.body_len(), long.encode_to_vec().len());

        // As it arrives.
        let body = Bytes::from(long.encode_to_vec());
        let value: Bytes = from_payload::<Prost, _>(Payload::from_body(body.clone())).unwrap();
        assert_eq!((value.as_ptr(), value.len()), (body[4..].as_ptr(), long.len()));
    }

    #[test]
    fn the_bytes_are_those_of_prost() {
        for len in [0, 1, BY_REFERENCE, BY_REFERENCE + 1, 70_000] {
            let bytes = Bytes::from(vec![1; len]);
            let text = "x".repeat(len);
            let sent = (to_payload::<Prost, _>(&bytes).unwrap(), to_payload::<Prost, _>(&text).unwrap());
            assert_eq!(Decoder::new(sent.0.clone()).rest(), &bytes.encode_to_vec()[..]);
            assert_eq!(Decoder::new(sent.1.clone()).rest(), &text.encode_to_vec()[..]);
            assert_eq!(from_payload::<Prost, Bytes>(sent.0).unwrap(), bytes);
            assert_eq!(from_payload::<Prost, String>(sent.1).unwrap(), text);
        }
    }

    #[test]
    fn nothing_is_an_empty_message() {
        assert!(to_payload::<Prost, _>(&()).unwrap().is_empty());
        assert_eq!(from_payload::<Prost, ()>(Payload::default()), Ok(()));
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = fastrand::Rng::with_seed(0x5eed);
        for _ in 0..crate::rounds(50_000) {
            let bytes: Bytes = (0..random.usize(..40)).map(|_| random.u8(..)).collect();
            let payload = Payload::from_body(bytes);
            let _ = from_payload::<Prost, Bytes>(payload.clone());
            let _ = from_payload::<Prost, String>(payload.clone());
            let _ = from_payload::<Prost, Status>(payload);
        }
    }

    #[test]
    fn a_status_is_carried_too() {
        let status = Status::new(crate::status::Code::Aborted, "again");
        let payload = to_payload::<Prost, _>(&status).unwrap();
        assert_eq!(from_payload::<Prost, Status>(payload), Ok(status));
    }
}
