//! Bytes as they are.

use bytes::Bytes;

use super::{Codec, CodecError, Decode, Encode, Postcard, Shape};
use crate::payload::{Decoder, Encoder};
use crate::status::Status;

/// Passes one [`Bytes`] through, or nothing (`()`): neither copied nor looked at. For proxies, and for applications
/// with a format of their own.
#[derive(Debug)]
pub enum Raw {}

impl Codec for Raw {
    const NAME: &'static str = "raw";
    const ARGUMENTS: usize = 1;
}

impl Encode<Bytes> for Raw {
    fn encode(value: &Bytes, out: &mut Encoder) -> Result<(), CodecError> {
        out.put_bytes(value);
        Ok(())
    }
}

impl Decode<Bytes> for Raw {
    fn decode(input: &mut Decoder) -> Result<Bytes, CodecError> {
        Ok(input.take(input.rest().len()).unwrap_or_default())
    }

    fn shape(shape: &mut Shape) {
        shape.opaque("raw");
    }
}

impl Encode<()> for Raw {
    fn encode(_: &(), _: &mut Encoder) -> Result<(), CodecError> {
        Ok(())
    }
}

impl Decode<()> for Raw {
    fn decode(_: &mut Decoder) -> Result<(), CodecError> {
        Ok(())
    }

    fn shape(shape: &mut Shape) {
        shape.opaque("raw");
    }
}

impl Encode<Status> for Raw {
    fn encode(value: &Status, out: &mut Encoder) -> Result<(), CodecError> {
        Postcard::encode(value, out)
    }
}

impl Decode<Status> for Raw {
    fn decode(input: &mut Decoder) -> Result<Status, CodecError> {
        Postcard::decode(input)
    }

    fn shape(shape: &mut Shape) {
        <Postcard as Decode<Status>>::shape(shape);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{from_payload, to_payload};
    use crate::payload::Payload;

    #[test]
    fn long_bytes_are_passed_through_uncopied() {
        let bytes = Bytes::from(vec![7; 100_000]);
        let payload = to_payload::<Raw, _>(&bytes).unwrap();
        assert_eq!((payload.body_len(), payload.attachments().len()), (bytes.len(), 0));
        assert_eq!(payload.more()[0].as_ptr(), bytes.as_ptr());

        let received: Bytes = from_payload::<Raw, _>(Payload::from_body(bytes.clone())).unwrap();
        assert_eq!(received.as_ptr(), bytes.as_ptr());
    }

    #[test]
    fn nothing_is_nothing() {
        assert!(to_payload::<Raw, _>(&()).unwrap().is_empty());
        assert_eq!(from_payload::<Raw, ()>(Payload::default()), Ok(()));
        assert_eq!(from_payload::<Raw, Bytes>(Payload::default()), Ok(Bytes::new()));
        assert!(from_payload::<Raw, ()>(Payload::from_body(Bytes::from_static(b"x"))).is_err());
    }

    #[test]
    fn attachments_are_refused() {
        let payload = Payload::new(Bytes::new(), vec![Bytes::from_static(b"x")]);
        assert!(from_payload::<Raw, Bytes>(payload).is_err());
    }
}
