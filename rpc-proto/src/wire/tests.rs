//! The codecs against arbitrary values and arbitrary bytes. The exact bytes are in `golden`.

mod forms;
mod golden;

use bytes::{Bytes, BytesMut};
use fastrand::Rng;

use self::forms::{Form, all};
use super::*;
use crate::metadata::{AnswerMetadata, Metadata};
use crate::payload::{BY_REFERENCE, COPY_OUT, Decoder, Encoder, Payload};
use crate::status::{Code, Status};

const SEED: u64 = 0x7769_7265;

/// The most that decoding `len` bytes may allocate at any moment: the worst is an attachment, 32 bytes here for 4 there.
fn allowance(len: usize) -> u64 {
    len as u64 * 16 + 512
}

/// Decodes what a peer might send; whatever it is, the result is an error or a value that survives the way back.
fn survives<F: Form>(input: &[u8]) {
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
    for _ in 0..20 {
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
    for _ in 0..100 {
        let longer = [&F::random(&mut rng).bytes()[..], &[rng.u8(..)]].concat();
        assert!(F::decode(longer.into()).is_err(), "{}", F::NAME);
    }
}

#[test]
fn what_follows_the_last_field_is_refused() {
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
    for _ in 0..200 {
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

fn batch(items: &[Payload]) -> Bytes {
    let mut batch = Batch::new(Encoder::new());
    items.iter().for_each(|item| batch.put(item));
    let (head, payload) = batch.finish();
    forms::Item { head, content: Content { metadata: Bytes::new(), payload } }.bytes()
}

fn items(message: Bytes) -> Result<Vec<Payload>, WireError> {
    let (head, content) = ItemHead::decode(message)?;
    let mut items = Items::default();
    items.go_on_in(head, content);
    let mut read = Vec::new();
    while items.advance().transpose()?.is_some() {
        read.push(whole(items.input()));
    }
    Ok(read)
}

/// The rest of the input.
fn whole(input: &mut Decoder) -> Payload {
    let attachments = (0..).map_while(|index| input.attachment(index)).collect();
    Payload::new(input.take_rest(), attachments)
}

#[test]
fn items_that_come_together_are_those_that_were_sent() {
    let mut rng = Rng::with_seed(SEED);
    for count in [1, 2, 3, 100] {
        let sent: Vec<Payload> =
            (0..count).map(|_| forms::Request::random(&mut rng).content.payload).collect();
        let message = batch(&sent);
        assert_eq!(ItemHead::count(&message), Ok(count));
        assert_eq!(items(message), Ok(sent));
    }
}

#[test]
fn an_item_that_does_not_fit_is_taken_off_and_leaves_the_others_as_they_are() {
    let (long, beside) = (Bytes::from(vec![7; BY_REFERENCE + 1]), Bytes::from_static(b"beside"));
    let in_pieces = |out: &mut Encoder| {
        out.put_slice(b"before");
        out.put_bytes(&long);
        out.put_slice(b"behind");
    };
    let with_attachment = |out: &mut Encoder| {
        out.put_slice(b"body");
        out.attach(beside.clone());
    };
    let too_long = |out: &mut Encoder| out.put_slice(&[1; 100]);
    type Case<'a> = (&'a dyn Fn(&mut Encoder), usize);
    let cases: [Case<'_>; 3] = [(&in_pieces, 1 << 20), (&with_attachment, 1 << 20), (&too_long, 100)];
    for (others, (write, most)) in [0, 1, 3].into_iter().flat_map(|others| cases.map(|case| (others, case))) {
        let mut alone = Encoder::new();
        write(&mut alone);
        let mut batch = Batch::new(Encoder::to(BytesMut::new()));
        for _ in 0..others {
            batch.write().put_slice(b"other");
            assert!(batch.keep(most));
        }
        write(batch.write());
        assert!(!batch.keep(most));
        let (taken, alone) = (batch.take_off(), alone.finish());
        assert_eq!(taken.clone().into_parts(), alone.clone().into_parts());
        // Once more, to be dropped this time.
        write(batch.write());
        batch.undo();
        assert_eq!((batch.count(), batch.len()), (others, others as usize * 11));
        batch.put(&taken);
        let (head, payload) = if others == 3 { batch.finish_with(BytesMut::freeze) } else { batch.finish() };
        let content = Content { metadata: Bytes::new(), payload };
        let read = items(forms::Item { head, content }.bytes()).unwrap();
        let (body, attachments) = alone.into_parts();
        assert_eq!(read.len(), others as usize + 1);
        assert!(read[..others as usize].iter().all(|item| *item == Payload::from_body("other".into())));
        assert_eq!(read.last(), Some(&Payload::new(body, attachments)));
    }
}

#[test]
fn parts_of_items_are_what_was_sent_and_pin_little() {
    let mut rng = Rng::with_seed(SEED);
    for _ in 0..200 {
        let part = |rng: &mut Rng| {
            let most = [10, 100, COPY_OUT, 5 * COPY_OUT][rng.usize(..4)];
            let mut part = vec![0; rng.usize(1..most)];
            rng.fill(&mut part);
            Bytes::from(part)
        };
        let sent: Vec<Vec<Bytes>> =
            (0..rng.usize(1..100)).map(|_| (0..rng.usize(..4)).map(|_| part(&mut rng)).collect()).collect();
        let whole: Vec<Payload> =
            sent.iter().map(|parts| Payload::from_body(parts.concat().into())).collect();
        let message = batch(&whole);
        let (lies, is_long) = (message.as_ptr_range(), message.len() >= 2 * COPY_OUT);
        let (head, content) = ItemHead::decode(message).unwrap();
        let mut items = Items::default();
        items.go_on_in(head, content);
        for parts in &sent {
            items.advance().unwrap().unwrap();
            for part in parts {
                let read = items.input().take(part.len()).unwrap();
                assert_eq!(&read, part);
                let is_view = lies.contains(&read.as_ptr());
                assert!(!is_long || is_view == (part.len() >= COPY_OUT), "{} bytes", part.len());
                if rng.u8(..) == 0 {
                    // A reader of an item does not have to read all of it.
                    break;
                }
            }
        }
        assert!(items.advance().is_none());
    }
}

#[test]
fn a_short_part_does_not_pin_what_came_beside_it() {
    let sent = Payload::new(Bytes::from_static(b"short"), vec![vec![7; 1 << 20].into()]);
    for count in [1, 2] {
        let message = batch(&vec![sent.clone(); count]);
        let lies = message.as_ptr_range();
        let (head, content) = ItemHead::decode(message).unwrap();
        let mut items = Items::default();
        items.go_on_in(head, content);
        while items.advance().transpose().unwrap().is_some() {
            let part = items.input().take(5).unwrap();
            assert!(part == "short" && !lies.contains(&part.as_ptr()), "{count} items");
        }
    }
}

#[test]
fn items_that_come_together_fill_their_message() {
    let two = batch(&[Payload::from_body("one".into()), Payload::new("two".into(), vec!["beside".into()])]);
    let altered = |at: usize, to: u8| {
        let mut message = two.to_vec();
        message[at] = to;
        items(message.into()).unwrap_err().what
    };
    // Behind 4 bytes of prefix and 9 of lengths come 6 before each item.
    assert_eq!(items(two.clone()).unwrap().len(), 2);
    assert_eq!(altered(0, 2), "item.length", "three items");
    assert_eq!(altered(13, 2), "item.body", "the first is shorter, the second then nonsense");
    assert_eq!(altered(13, 200), "item.body");
    assert_eq!(altered(17, 2), "item.attachments");
    assert_eq!(altered(17, 1), "item.attachments", "the second has none left");
    assert_eq!(altered(26, 0), "item", "nobody has it");
    assert_eq!(altered(22, 2), "item", "a byte is left");
}

fn mutation<F: Form>() {
    let mut rng = Rng::with_seed(SEED);
    let value = F::random(&mut rng);
    let mut bytes = value.bytes().to_vec();
    for i in 0..bytes.len() {
        let original = bytes[i];
        for other in 0..=u8::MAX {
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
