//! The decoders of every frame type.

use bytes::{Bytes, BytesMut};
use farcall_core::proto::wire::{
    Access, Accessed, Answer, Bind, Cancel, Close, Content, Credit, Done, Down, EndHead, FrameType, Frames,
    Goaway, Hello, ItemHead, Items, Offer, Ping, Probe, RequestHead, ResponseHead, Stop, Up, Window,
    decode_answer_metadata, decode_metadata, decode_status, encode_answer_metadata, encode_metadata,
    encode_status,
};

/// Decodes a payload as one type. A payload that decodes must encode to bytes that decode, and these to the same bytes:
/// the first time, a long text for people is cut.
macro_rules! there_and_back {
    ($payload:expr, $type:ident) => {
        if let Ok(decoded) = $type::decode($payload) {
            let encode = |value: $type| {
                let mut encoded = BytesMut::new();
                value.encode(&mut encoded);
                encoded.freeze()
            };
            let encoded = encode(decoded);
            let again = $type::decode(encoded.clone()).expect("what farcall encodes decodes");
            assert_eq!(encode(again), encoded);
        }
    };
}

/// Decodes a content with its prefix as one type, likewise.
macro_rules! content_there_and_back {
    ($payload:expr, $type:ident) => {
        if let Ok((head, content)) = $type::decode($payload) {
            let mut encoded = BytesMut::new();
            if head.encode(&content, &mut encoded).is_ok() {
                assert_eq!(encoded.len(), head.len(&content));
                put_payload(&mut encoded, &content);
                assert_eq!($type::decode(encoded.freeze()), Ok((head, content.clone())));
            }
            Some((head, content))
        } else {
            None
        }
    };
}

/// Decodes the input as the payload of one frame, whose type its first byte says.
pub fn payloads(data: &[u8]) {
    if let Some((&kind, payload)) = data.split_first() {
        decode(FrameType(kind), Bytes::copy_from_slice(payload));
    }
}

/// Reads the input as frames, one behind the other, and decodes the payload of each.
pub fn frames(data: &[u8]) {
    let mut frames = Frames::new(Bytes::copy_from_slice(data));
    let mut at = 0;
    for (header, payload) in &mut frames {
        assert_eq!(
            header.encode(),
            data[at..at + 32],
            "a header encodes to the bytes that it was decoded from"
        );
        at += 32 + payload.len();
        decode(header.kind, payload);
    }
    assert!(
        frames.malformed().is_some() || data.len() - at < 32,
        "frames end at the end or at a malformed one"
    );
}

fn decode(kind: FrameType, payload: Bytes) {
    match kind {
        FrameType::BIND => there_and_back!(payload, Bind),
        FrameType::REQUEST => {
            if let Some((_, content)) = content_there_and_back!(payload.clone(), RequestHead) {
                let (_, metadata, apart) = RequestHead::decode_apart(payload).expect("it decoded before");
                assert_eq!(
                    (metadata.map(|it| *it).unwrap_or_default(), apart),
                    (content.metadata, content.payload)
                );
            }
        }
        FrameType::RESPONSE => {
            if let Some((_, content)) = content_there_and_back!(payload.clone(), ResponseHead) {
                let (_, metadata, apart) = ResponseHead::decode_apart(payload).expect("it decoded before");
                status(content.payload.clone().into_body());
                assert_eq!(
                    (metadata.map(|it| *it).unwrap_or_default(), apart),
                    (content.metadata, content.payload)
                );
            }
        }
        FrameType::ITEM => {
            if let Some((head, content)) = content_there_and_back!(payload, ItemHead) {
                items(head, content);
            }
        }
        FrameType::END => {
            if let Some((_, content)) = content_there_and_back!(payload, EndHead) {
                status(content.payload.into_body());
            }
        }
        FrameType::CANCEL => there_and_back!(payload, Cancel),
        FrameType::WINDOW => there_and_back!(payload, Window),
        FrameType::GOAWAY => there_and_back!(payload, Goaway),
        FrameType::DONE => there_and_back!(payload, Done),
        FrameType::ACCESS => there_and_back!(payload, Access),
        FrameType::ACCESSED => there_and_back!(payload, Accessed),
        FrameType::STOP => there_and_back!(payload, Stop),
        FrameType::HELLO => there_and_back!(payload, Hello),
        FrameType::CREDIT => there_and_back!(payload, Credit),
        FrameType::PING | FrameType::PONG => there_and_back!(payload, Ping),
        FrameType::OFFER => there_and_back!(payload, Offer),
        FrameType::ANSWER => there_and_back!(payload, Answer),
        FrameType::UP => there_and_back!(payload, Up),
        FrameType::DOWN => there_and_back!(payload, Down),
        FrameType::PROBE => there_and_back!(payload, Probe),
        FrameType::CLOSE => there_and_back!(payload, Close),
        _ => metadata(payload),
    }
}

fn put_payload(out: &mut BytesMut, content: &Content) {
    content.payload.clone().into_pieces().for_each(|piece| out.extend_from_slice(&piece));
}

fn items(head: ItemHead, content: Content) {
    let (mut items, mut count) = (Items::default(), 0);
    items.go_on_in(head, content);
    while let Some(begun) = items.advance() {
        count += 1;
        if begun.is_ok() {
            let len = items.input().rest().len();
            items.input().advance(len);
        }
    }
    assert!(count <= u32::from(head.more) + 1, "there are no more items than the ITEM says");
}

fn status(body: Bytes) {
    if let Ok(status) = decode_status(body) {
        let encoded = encode_status(&status);
        let again = decode_status(encoded.clone()).expect("an encoded status decodes");
        assert_eq!(encode_status(&again), encoded);
    }
}

fn metadata(block: Bytes) {
    if let Ok(metadata) = decode_metadata(block.clone()) {
        assert_eq!(decode_metadata(encode_metadata(&metadata)), Ok(metadata));
    }
    if let Ok(metadata) = decode_answer_metadata(block) {
        assert_eq!(decode_answer_metadata(encode_answer_metadata(&metadata)), Ok(metadata));
    }
}
