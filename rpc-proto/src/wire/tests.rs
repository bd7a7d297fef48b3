//! The codecs. The exact bytes are in `golden`.

mod arbitrary;
mod forms;
mod golden;
mod items;

use bytes::{Bytes, BytesMut};
use fastrand::Rng;

use self::arbitrary::{SEED, survives};
use self::forms::Form;
use super::*;
use crate::payload::Payload;
use crate::status::{Code, Status};

/// In the three that can be. No length says where they end.
#[test]
fn compressed_messages_come_back_as_they_were_sent() {
    let mut rng = Rng::with_seed(SEED);
    fn comes_back<F: Form>(value: &F) {
        let whole = value.bytes();
        assert_eq!(F::decode(whole.clone()).as_ref(), Ok(value), "{}", F::NAME);
        (0..whole.len()).for_each(|len| survives::<F>(&whole[..len]));
        assert_ne!(F::decode([&whole[..], b"?"].concat().into()).as_ref(), Ok(value), "{}", F::NAME);
    }
    for _ in 0..crate::rounds(200) {
        let packed = forms::packed(&mut rng);
        let mut request = forms::Request::random(&mut rng);
        request.content.payload = packed.clone();
        comes_back(&request);
        let head = ResponseHead { kind: [ResponseKind::Ok, ResponseKind::Err][rng.usize(..2)] };
        comes_back(&forms::Response { head, content: request.content });
        let head = ItemHead { more: rng.u16(..) };
        comes_back(&forms::Item { head, content: Content::item(packed) });
    }
    let item = |metadata: &'static [u8]| {
        let content = Content { metadata: Bytes::from_static(metadata), payload: Payload::default() };
        ItemHead::decode(forms::Item { head: ItemHead::default(), content }.bytes())
            .map(drop)
            .map_err(|e| e.what)
    };
    assert_eq!(item(b"\x02"), Ok(()));
    assert_eq!(item(b"\x03"), Err("content.compression"));
    assert_eq!(item(b"\x02\x02"), Err("item.metadata"));
}

#[test]
fn a_header_is_held_against_its_type() {
    let refused = |header: Header, what| assert_eq!(Header::decode(&header.encode()).unwrap_err().what, what);
    let request = Header::new(FrameType::REQUEST, 1);
    let ping = Header::new(FrameType::PING, 0);
    let fragment = Header { len: 1, ..Header::new(FrameType::FRAGMENT, 1) };
    for header in [request, ping, fragment] {
        assert_eq!(Header::decode(&header.encode()), Ok(header));
        for flag in [flags::COMPRESSED, flags::CHECKSUM, flags::DESCRIBED, 0x40, 0x80] {
            refused(Header { flags: flag, ..header }, "header.flags");
        }
        refused(Header { checksum: 1, ..header }, "header.checksum");
        for i in [2, 3] {
            let mut bytes = header.encode();
            bytes[i] = 1;
            assert_eq!(Header::decode(&bytes).unwrap_err().what, "header.reserved");
        }
        let starved = Header { flags: flags::STARVED, ..header };
        assert_eq!(Header::decode(&starved.encode()), Ok(starved));
    }
    refused(Header { call: 0, ..request }, "header.call");
    refused(Header { call: 1, ..ping }, "header.call");
    refused(Header { seq: 1, ..ping }, "header.seq");
    refused(Header { flags: flags::FRAGMENTED, ..ping }, "header.flags");
    refused(Header { flags: flags::FRAGMENTED, ..fragment }, "header.flags");
    let described = Header { flags: flags::FRAGMENTED | flags::DESCRIBED, ..request };
    assert_eq!(Header::decode(&described.encode()), Ok(described));
    refused(Header { kind: FrameType::BIND, call: 0, ..described }, "header.flags");
    refused(Header { flags: flags::ABANDONED, ..request }, "header.flags");
    refused(Header { flags: flags::ABANDONED, ..fragment }, "header.flags");
    refused(Header { len: 0, ..fragment }, "header.len");
    refused(Header { len: 1, ..Header::new(FrameType::ACK, 0) }, "header.len");

    // A frame of a later version is for the session to judge.
    let unknown = Header { call: 7, seq: 9, ..Header::new(FrameType(0xbf), 7) };
    assert_eq!(Header::decode(&unknown.encode()), Ok(unknown));
    assert!(unknown.kind.is_ignorable() && !unknown.kind.is_link());
    assert!(!FrameType(0x3f).is_ignorable());
}

#[test]
fn a_body_in_pieces_is_announced_as_one() {
    let long = Bytes::from(vec![7; crate::payload::BY_REFERENCE + 1]);
    let mut encoder = crate::payload::Encoder::new();
    encoder.put_slice(b"before");
    encoder.put_bytes(&long);
    encoder.put_slice(b"after");
    let pieces = encoder.finish();
    let whole = Payload::from_body([&b"before"[..], &long[..], b"after"].concat().into());
    let encode = |payload: Payload| {
        let mut out = BytesMut::new();
        let content = Content { metadata: Bytes::new(), payload };
        ResponseHead { kind: ResponseKind::Ok }.encode(&content, &mut out).unwrap();
        out
    };
    assert_eq!(encode(pieces), encode(whole));
}

#[test]
#[cfg_attr(miri, ignore = "65,536 attachments take Miri minutes")]
fn more_attachments_than_there_is_room_for_are_refused() {
    let content =
        |n| Content { metadata: Bytes::new(), payload: Payload::new(Bytes::new(), vec![Bytes::new(); n]) };
    let request = RequestHead { service: 0, method: 0, attempt: 1, timeout_us: 0 };
    let response = ResponseHead { kind: ResponseKind::Ok };
    let most = content(MAX_ATTACHMENTS);
    let mut out = BytesMut::new();
    assert_eq!(request.encode(&most, &mut out), Ok(()));
    assert_eq!(RequestHead::decode(out.freeze()), Ok((request, most)));

    let more = content(MAX_ATTACHMENTS + 1);
    let refused = |what| Err(TooLong { what, max: 65_535 });
    let mut out = BytesMut::new();
    assert_eq!(request.encode(&more, &mut out), refused("request.attachments"));
    assert_eq!(response.encode(&more, &mut out), refused("response.attachments"));
    assert_eq!(ItemHead::default().encode(&more, &mut out), refused("item.attachments"));
    let end = EndHead { reason: EndReason::Error, items: 0 };
    assert_eq!(end.encode(&more, &mut out), refused("end.attachments"));
}

#[test]
fn texts_are_cut_between_characters_so_that_their_frames_are_short() {
    let text = "x".to_owned() + &"𝄞".repeat(10_000);
    let status = Status::new(Code::NotFound, text.clone());
    let sent = decode_status(encode_status(&status)).unwrap();
    assert_eq!(sent.message().len(), 16 * 1024);
    assert!(text.starts_with(sent.message().strip_suffix("… (cut: 40,001 bytes)").unwrap()));

    let pulls = vec![Pull { seq: 1 }; Down::MAX_PULLS];
    let down = Down { epoch: 1, rx_seq: 0, reason: 255, pulls, detail: text.clone() };
    let close = Close { code: CloseCode::Internal, reason: text.clone() };
    let goaway = Goaway { last_call: 0, reason: text.clone() };
    for frame in [down.bytes(), close.bytes(), goaway.bytes()] {
        assert!(frame.len() <= MIN_LIMIT as usize);
    }
    assert_eq!(Close::decode(close.bytes()).unwrap().reason.len(), 512);
}

#[test]
fn texts_that_their_senders_did_not_cut_are_cut() {
    let text = [b'x'; 40_000];
    let close = Close::decode([&[0], &text[..]].concat().into()).unwrap();
    assert_eq!(close.reason, "x".repeat(489) + "… (cut: 40,000 bytes)");
    assert_eq!(Goaway::decode([&[0; 8], &text[..]].concat().into()).unwrap().reason.len(), 512);
    assert_eq!(Down::decode([&[0; 11], &text[..]].concat().into()).unwrap().detail.len(), 512);
    let len = (text.len() as u32).to_le_bytes();
    let status = decode_status([&[0; 4], &len, &text[..]].concat().into()).unwrap();
    assert_eq!(status.message().len(), 16 * 1024);
}

#[test]
fn the_data_of_an_offer_are_short_and_keep_no_longer_buffer() {
    let frame = Bytes::from(vec![0; 9 + 512]);
    assert_eq!(Offer::decode(frame.slice(4..)).unwrap().data.len(), 512);
    assert_eq!(Answer::decode(frame.slice(5..)).unwrap().data.len(), 512);
    assert!(frame.is_unique());
    assert_eq!(Offer::decode(frame.slice(3..)).unwrap_err().what, "offer.data");
    assert_eq!(Answer::decode(frame.slice(4..)).unwrap_err().what, "answer.data");
}

#[test]
fn a_hello_that_can_not_work_is_refused() {
    let mut rng = Rng::with_seed(SEED);
    let good = Hello::random(&mut rng);
    let refused = |hello: Hello, what| assert_eq!(Hello::decode(hello.bytes()).unwrap_err().what, what);
    refused(Hello { version_min: 2, version_max: 1, ..good.clone() }, "hello.version_min");
    refused(Hello { max_frame: 1023, ..good.clone() }, "hello.max_frame");
    refused(Hello { max_message: 1023, ..good.clone() }, "hello.max_message");
    refused(Hello { max_message: 2000, max_assembly: 1999, ..good.clone() }, "hello.max_assembly");

    let streams = Hello { features: features::STREAMS, stream_items: 1, stream_bytes: 1, ..good.clone() };
    refused(Hello { stream_items: 0, ..streams.clone() }, "hello.stream_items");
    refused(Hello { stream_bytes: 0, ..streams }, "hello.stream_items");

    let boundless = Hello { max_message: u64::MAX, max_assembly: u64::MAX, ..good.clone() };
    assert_eq!(Hello::decode(boundless.bytes()).unwrap().max_message, u64::from(u32::MAX));

    let mut long = good.bytes().to_vec();
    long.resize(MAX_HELLO, 0);
    assert_eq!(Hello::decode(long.clone().into()), Ok(good));
    long.push(0);
    assert_eq!(Hello::decode(long.into()).unwrap_err().what, "hello");

    let mut auth = |len: u32| {
        let mut bytes =
            Hello { features: 0, upgrades: vec![], auth: Bytes::new(), ..Hello::random(&mut rng) }
                .bytes()
                .to_vec();
        bytes.truncate(bytes.len() - 4);
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.resize(bytes.len() + len as usize, 0);
        Hello::decode(bytes.into()).map(|hello| hello.auth.len())
    };
    assert_eq!(auth(64 * 1024), Ok(64 * 1024));
    assert_eq!(auth(64 * 1024 + 1).unwrap_err().what, "hello.auth");
}

#[test]
fn a_probe_must_arrive_as_it_was_sent() {
    let probe = Probe { epoch: 1, len: 8192 };
    let sent = probe.bytes();
    assert_eq!(sent.len(), 8192);
    let mut other = sent.to_vec();
    other[5000] ^= 1;
    assert_eq!(Probe::decode(other.into()).unwrap_err().what, "probe.filling");
    assert_eq!(Probe::decode(sent.slice(..8191)).unwrap_err().what, "probe.len");
    assert_eq!(Probe { epoch: 1, len: 0 }.bytes(), Probe { epoch: 1, len: 8 }.bytes());
}

#[test]
fn numbers_of_later_versions_are_read_as_what_promises_least() {
    let close = Close::decode(Bytes::from_static(b"\xfewhy")).unwrap();
    assert_eq!(close, Close { code: CloseCode::Internal, reason: "why".into() });
    let status = decode_status(Bytes::from_static(b"\xfe\xfe\xfe\0\0\0\0\0")).unwrap();
    assert_eq!(status.code(), Code::Unknown);
    assert_eq!(status.executed(), crate::status::Executed::Maybe);
    // A reserved byte is not a number.
    assert!(decode_status(Bytes::from_static(b"\x01\0\0\x01\0\0\0\0")).is_err());
}

#[test]
fn a_short_body_does_not_keep_the_metadata_that_came_with_it() {
    let content =
        Content { metadata: vec![7; 5000].into(), payload: Payload::from_body(vec![1; 100].into()) };
    let head = RequestHead { service: 0, method: 0, attempt: 1, timeout_us: 0 };
    let mut message = BytesMut::new();
    head.encode(&content, &mut message).unwrap();
    message.extend_from_slice(&content.payload.body);
    let message = message.freeze();
    let (_, decoded) = RequestHead::decode(message.clone()).unwrap();
    assert_eq!(decoded, content);
    assert!(!message.as_ptr_range().contains(&decoded.payload.body.as_ptr()));
}

#[test]
fn metadata_has_one_form_for_each_length() {
    let request = |metadata: Vec<u8>| forms::Request {
        head: RequestHead { service: 0, method: 0, attempt: 1, timeout_us: 0 },
        content: Content { metadata: metadata.into(), payload: Payload::default() },
    };
    assert_eq!(request(vec![]).bytes().len(), REQUEST_PREFIX + 1);
    for len in [0, 1, 254, 255, 256, 70_000] {
        let sent = request(vec![7; len]);
        assert_eq!(forms::Request::decode(sent.bytes()), Ok(sent));
    }
    let mut long_form = request(vec![7; 255]).bytes().to_vec();
    long_form[REQUEST_PREFIX + 1] = 254;
    long_form.pop();
    assert_eq!(forms::Request::decode(long_form.into()).unwrap_err().what, "content.metadata");
}

/// Blocks that are none, whether of a call or of an answer, with the part that is wrong.
const BAD_METADATA: &[(&[u8], &str)] = &[
    (b"\x01", "metadata.key"),
    (b"\x02k", "metadata.key"),
    (b"\xffk\x00\x00", "metadata.key"),
    (b"\x01k", "metadata.value"),
    (b"\x01k\x01", "metadata.value"),
    (b"\x01k\x01\x00", "metadata.value"),
    (b"\x01k\xff\xffv", "metadata.value"),
    (b"\x01k\x01\x00v\x01", "metadata.key"),
    (b"\x01K\x00\x00", "metadata"),
    (b"\x01 \x00\x00", "metadata"),
    (b"\x01/\x00\x00", "metadata"),
    (b"\x01:\x00\x00", "metadata"),
    (b"\x01`\x00\x00", "metadata"),
    (b"\x01{\x00\x00", "metadata"),
    (b"\x01\x00\x00\x00", "metadata"),
    (b"\x02\xc3\xa4\x00\x00", "metadata"),
    (b"\x01\x80\x00\x00", "metadata"),
    (b"\x01k\x01\x00\t", "metadata"),
    (b"\x01k\x01\x00\x1f", "metadata"),
    (b"\x01k\x01\x00\x7f", "metadata"),
    (b"\x01k\x02\x00\xc3\xa4", "metadata"),
    (b"\x05k-biN\x00\x00", "metadata"),
    (b"\x05k-bi_\x01\x00\x00", "metadata"),
];

#[test]
fn bad_metadata_is_refused() {
    for (block, what) in BAD_METADATA {
        let block = Bytes::from_static(block);
        assert_eq!(decode_metadata(block.clone()).unwrap_err().what, *what, "{block:?}");
        assert_eq!(decode_answer_metadata(block.clone()).unwrap_err().what, *what, "{block:?}");
        let trailing = [b"\0", &block[..]].concat();
        assert_eq!(decode_answer_metadata(trailing.into()).unwrap_err().what, *what, "{block:?}");
    }
    // Trailing ones are of an answer, there once, and not announced if there are none.
    assert_eq!(decode_metadata(Bytes::from_static(b"\0\x01k\0\0")).unwrap_err().what, "metadata.key");
    for block in [&b"\0"[..], b"\x01k\0\0\0", b"\0\0", b"\0\x01k\0\0\0\x01k\0\0", b"\0\x01k\0\0\0"] {
        let error = decode_answer_metadata(Bytes::from_static(block)).unwrap_err();
        assert_eq!(error.what, "metadata.trailing", "{block:?}");
    }
}

#[test]
fn metadata_of_the_protocols_own_are_not_shown() {
    let block = Bytes::from_static(b"\x09farcall-x\x01\0v\x01k\x01\0v\x0bfarcall-bin\x01\0\0");
    let metadata = decode_metadata(block.clone()).unwrap();
    assert!(metadata.iter().map(|(key, _)| key).eq(["k"]));
    let trailing = [b"\0", &block[..]].concat();
    assert_eq!(decode_answer_metadata(trailing.into()).unwrap().trailing, metadata);
}
