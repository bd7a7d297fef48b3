//! Every frame byte for byte. These bytes also stand in `docs/WIRE.md`, and a test holds the two together.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};

use super::super::*;
use super::forms::{End, Form, Item, Request, Response};
#[cfg(any(feature = "lz4", feature = "zstd"))]
use crate::compress::{Workspace, unpack};
use crate::compression::Compression;
use crate::message::{Bulk, Expose, Exposing, Fragmenter, Message};
use crate::metadata::{AnswerMetadata, Metadata};
use crate::payload::{Encoder, Packed, Payload};
use crate::status::{Code, Status};

/// Reads hexadecimal bytes. `0c*255` is 255 times the same one; a remark goes from `;` to the end of its line.
fn unhex(text: &str) -> Vec<u8> {
    let bytes = |digits: &str| -> Vec<u8> {
        assert!(digits.is_ascii() && digits.len().is_multiple_of(2), "not hexadecimal bytes: {digits}");
        (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
    };
    let tokens = text.lines().filter_map(|line| line.split(';').next()).flat_map(str::split_whitespace);
    tokens
        .flat_map(|token| match token.split_once('*') {
            Some((digits, times)) => bytes(digits).repeat(times.parse().unwrap()),
            None => bytes(token),
        })
        .collect()
}

/// The bytes by name, in the form of the specification: ```` ```hex NAME ````, then the bytes.
fn blocks(text: &str) -> BTreeMap<&str, Vec<u8>> {
    let mut blocks = BTreeMap::new();
    for block in text.split("\n```hex ").skip(1) {
        let (name, rest) = block.split_once('\n').unwrap();
        let (hex, _) = rest.split_once("\n```").unwrap();
        assert!(blocks.insert(name, unhex(hex)).is_none(), "`{name}` is there twice");
    }
    blocks
}

/// The bytes that the codecs make of the values below.
#[derive(Default)]
struct Vectors(BTreeMap<&'static str, Vec<u8>>);

impl Vectors {
    fn raw(&mut self, name: &'static str, bytes: &[u8]) {
        assert!(self.0.insert(name, bytes.to_vec()).is_none(), "`{name}` is there twice");
    }

    fn payload(&mut self, name: &'static str, mut header: Header, payload: &[u8]) {
        header.len = payload.len() as u32;
        assert_eq!(Header::decode(&header.encode()), Ok(header), "{name}");
        self.raw(name, &[&header.encode()[..], payload].concat());
    }

    fn frame<F: Form>(&mut self, name: &'static str, header: Header, value: &F) {
        let payload = value.bytes();
        assert_eq!(F::decode(payload.clone()).as_ref(), Ok(value), "{name}");
        self.payload(name, header, &payload);
    }
}

fn session(kind: FrameType, call: u64, seq: u32, rx_seq: u32) -> Header {
    Header { seq, rx_seq, ..Header::new(kind, call) }
}

fn link(kind: FrameType, rx_seq: u32) -> Header {
    Header { rx_seq, ..Header::new(kind, 0) }
}

fn content(body: &'static [u8], attachments: &[&'static [u8]]) -> Content {
    let attachments = attachments.iter().map(|a| Bytes::from_static(a)).collect();
    Content { metadata: Bytes::new(), payload: Payload::new(Bytes::from_static(body), attachments) }
}

fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        features: 0,
        max_frame: 131_072,
        max_message: 67_108_864,
        max_assembly: 268_435_456,
        max_calls: 4096,
        max_metadata: 16_384,
        class: 0,
        security: 0,
        instance: 0x1122_3344_5566_7788,
        upgrades: Vec::new(),
        auth: Bytes::new(),
        stream_items: 0,
        stream_bytes: 0,
    }
}

fn status() -> Status {
    Status::new(Code::NotFound, "no k").with_details(Bytes::from_static(b"\x01\x02"))
}

fn vectors() -> Vectors {
    let mut v = Vectors::default();
    connecting(&mut v);
    calls(&mut v);
    fragments(&mut v);
    streams(&mut v);
    accesses(&mut v);
    link_frames(&mut v);
    switching(&mut v);
    a_session(&mut v);
    v
}

fn connecting(v: &mut Vectors) {
    v.raw("preface", PREFACE);
    let upgrades = vec![
        Upgrade { name: "rdma".into(), reason: 4, data: Bytes::new() },
        Upgrade { name: "shm".into(), reason: 0, data: Bytes::from_static(b"\xd0\xd1") },
    ];
    v.frame("HELLO", link(FrameType::HELLO, 0), &Hello { upgrades, ..hello() });
    let reserved = Hello {
        version_max: 2,
        features: features::CHECKSUM
            | features::ZSTD
            | features::DESCRIBED
            | features::STREAMS
            | features::METADATA,
        class: 2,
        security: 1,
        auth: Bytes::from_static(b"\xa0\xa1\xa2"),
        stream_items: 256,
        stream_bytes: 65_536,
        ..hello()
    };
    // Bytes that a later version appends are skipped.
    let later = [&reserved.bytes()[..], b"\xe0\xe1"].concat();
    assert_eq!(Hello::decode(later.clone().into()), Ok(reserved));
    v.payload("HELLO of a later version", link(FrameType::HELLO, 0), &later);
    v.frame(
        "CLOSE",
        link(FrameType::CLOSE, 0),
        &Close { code: CloseCode::Version, reason: "v2 only".into() },
    );
}

fn calls(v: &mut Vectors) {
    let bind = Bind {
        service: 0,
        name: "shop.v1.Kv".into(),
        codec: "postcard".into(),
        methods: vec![
            BindMethod { hash: 0x0101_0101_0101_0101, kind: 0, fingerprint: 0x1111_1111_1111_1111 },
            BindMethod { hash: 0x0202_0202_0202_0202, kind: 1, fingerprint: 0x2222_2222_2222_2222 },
        ],
    };
    v.frame("BIND", session(FrameType::BIND, 0, 1, 0), &bind);
    let head = RequestHead { service: 0, method: 1, attempt: 1, timeout_us: 250_000 };
    let request = Request { head, content: content(b"\x01k", &[b"\xaa\xab\xac", b""]) };
    v.frame("REQUEST", session(FrameType::REQUEST, 1, 2, 0), &request);
    let mut short = request.content.clone();
    let mut metadata = Metadata::new();
    metadata.insert("user", "ann").unwrap();
    metadata.insert_bin("id-bin", b"\x0a\x0b").unwrap();
    short.metadata = encode_metadata(&metadata);
    let head = RequestHead { attempt: 2, timeout_us: 0, ..head };
    let header = session(FrameType::REQUEST, 2, 3, 0);
    v.frame("REQUEST with metadata", header, &Request { head, content: short.clone() });
    let mut metadata = Metadata::new();
    metadata.insert_bin("k-bin", [0x0c; 247]).unwrap();
    short.metadata = encode_metadata(&metadata);
    let header = session(FrameType::REQUEST, 3, 4, 0);
    v.frame("REQUEST with long metadata", header, &Request { head, content: short });

    let ok =
        Response { head: ResponseHead { kind: ResponseKind::Ok }, content: content(b"\x2a", &[b"\xba"]) };
    v.frame("RESPONSE", session(FrameType::RESPONSE, 1, 1, 2), &ok);
    compressed(v);
    let err = Response { head: ResponseHead { kind: ResponseKind::Err }, content: content(b"\x07", &[]) };
    v.frame("RESPONSE with an error", session(FrameType::RESPONSE, 2, 2, 3), &err);
    let body = encode_status(&status());
    assert_eq!(decode_status(body.clone()), Ok(status()));
    let payload = Payload::from_body(body);
    let head = ResponseHead { kind: ResponseKind::Status };
    let refused = Response { head, content: Content { metadata: Bytes::new(), payload } };
    v.frame("RESPONSE with a status", session(FrameType::RESPONSE, 3, 3, 4), &refused);
    answers_with_metadata(v, &ok, refused);
    v.frame("CANCEL", session(FrameType::CANCEL, 3, 5, 1), &Cancel { reason: 1 });
    let first = Goaway { last_call: u64::MAX >> 1, reason: "upgrade".into() };
    v.frame("GOAWAY", session(FrameType::GOAWAY, 0, 4, 5), &first);
    let second = Goaway { last_call: 3, reason: String::new() };
    v.frame("GOAWAY again", session(FrameType::GOAWAY, 0, 5, 5), &second);
}

/// 20 times `k`, and an attachment of 20 times `v`; 40 times `v`.
fn compressed(v: &mut Vectors) {
    let lz4 = Bytes::from_static(b"\x1fk\x01\x00\x00\x19v\x01\x00\x60vvvvvv");
    let payload = Payload::packed(lz4, Packed::new(Compression::Lz4, 20, vec![20]));
    #[cfg(feature = "lz4")]
    assert_eq!(
        unpack(&mut Workspace::new(), payload.clone()).unwrap().to_contiguous().unwrap(),
        [[b'k'; 20], [b'v'; 20]].concat()
    );
    let head = RequestHead { service: 0, method: 0, attempt: 1, timeout_us: 0 };
    let content = Content { metadata: Bytes::new(), payload: payload.clone() };
    let request = Request { head, content };
    v.frame("REQUEST, compressed", session(FrameType::REQUEST, 9, 14, 8), &request);
    let item = Item { head: ItemHead { more: 0 }, content: Content::item(payload) };
    v.frame("ITEM, compressed", session(FrameType::ITEM, 6, 14, 13), &item);

    let zstd = Bytes::from_static(b"\x28\xb5\x2f\xfd\x20\x28\x45\x00\x00\x10vv\x01\x00\x1f\x80\x05");
    let payload = Payload::packed(zstd, Packed::new(Compression::Zstd, 40, Vec::new()));
    #[cfg(feature = "zstd")]
    assert_eq!(
        unpack(&mut Workspace::new(), payload.clone()).unwrap().to_contiguous().unwrap(),
        [b'v'; 40][..]
    );
    let content = Content { metadata: Bytes::new(), payload };
    let response = Response { head: ResponseHead { kind: ResponseKind::Ok }, content };
    v.frame("RESPONSE, compressed", session(FrameType::RESPONSE, 9, 9, 14), &response);
}

fn answers_with_metadata(v: &mut Vectors, ok: &Response, mut refused: Response) {
    let mut metadata = AnswerMetadata::default();
    metadata.trailing.insert("rows", "5").unwrap();
    refused.content.metadata = encode_answer_metadata(&metadata);
    v.frame("RESPONSE with a status and metadata", session(FrameType::RESPONSE, 5, 7, 6), &refused);
    let mut caused = AnswerMetadata::default();
    assert!(caused.causes.put_cause("disk", 25 - 1) && !caused.causes.put_cause("", 25 - 1));
    refused.content.metadata = encode_answer_metadata(&caused);
    v.frame("RESPONSE with a status and a cause", session(FrameType::RESPONSE, 6, 8, 7), &refused);
    metadata.initial.insert("user", "ann").unwrap();
    let content = Content { metadata: encode_answer_metadata(&metadata), ..content(b"\x2a", &[]) };
    v.frame(
        "RESPONSE with metadata",
        session(FrameType::RESPONSE, 4, 6, 5),
        &Response { head: ok.head, content },
    );
}

fn fragments(v: &mut Vectors) {
    // A REQUEST of 28 bytes: 21 before the body, and 7.
    let head = RequestHead { service: 0, method: 0, attempt: 1, timeout_us: 0 };
    let whole = Request { head, content: content(b"payload", &[]) }.bytes();
    let first = [&28_u32.to_le_bytes()[..], &whole[..22]].concat();
    let begun = Header { flags: flags::FRAGMENTED, ..session(FrameType::REQUEST, 4, 6, 1) };
    v.payload("REQUEST in fragments", begun, &first);
    v.payload("FRAGMENT", session(FrameType::FRAGMENT, 4, 7, 1), &whole[22..26]);
    v.payload("FRAGMENT, the last", session(FrameType::FRAGMENT, 4, 8, 1), &whole[26..]);
    let abandoned = Header { flags: flags::ABANDONED, ..session(FrameType::FRAGMENT, 5, 9, 1) };
    v.payload("FRAGMENT, abandoned", abandoned, b"");
    described(v);
}

/// A REQUEST with a body of 1 KiB that is not sent, in the form of RDMA's descriptor.
fn described(v: &mut Vectors) {
    struct Window;
    impl Expose for Window {
        fn expose(&mut self, _: u32, bulk: &Bulk) -> Exposing {
            let mut descriptor = BytesMut::new();
            descriptor.put_u64_le(0x5555_5500_0000);
            descriptor.put_u32_le(0x801);
            descriptor.put_u32_le(bulk.len() as u32);
            Exposing::Described(descriptor.freeze())
        }
    }
    let head = RequestHead { service: 0, method: 0, attempt: 1, timeout_us: 0 };
    let content = Content { metadata: Bytes::new(), payload: Payload::from_body(vec![0; 1024].into()) };
    let mut prefix = BytesMut::new();
    head.encode(&content, &mut prefix).unwrap();
    let mut message = Message::new(FrameType::REQUEST, 7, prefix.freeze());
    message.bulk = Bulk::Plain(content.payload.body.into_bytes());
    let frame = Fragmenter::new(message).describe(10, &mut Window).unwrap();
    let payload: Vec<u8> = frame.pieces.slices().flat_map(|piece| piece.to_vec()).collect();
    v.payload("REQUEST, described", Header { seq: 10, rx_seq: 1, ..frame.header }, &payload);
}

fn streams(v: &mut Vectors) {
    let one = Item { head: ItemHead::default(), content: content(b"\x05", &[b"\xca\xcb"]) };
    v.frame("ITEM", session(FrameType::ITEM, 6, 10, 1), &one);
    let mut batch = Batch::new(Encoder::new());
    batch.put(&content(b"\x01\x02", &[]).payload);
    batch.put(&one.content.payload);
    let (head, payload) = batch.finish();
    let two = Item { head, content: Content { metadata: Bytes::new(), payload } };
    v.frame("ITEM with two items", session(FrameType::ITEM, 6, 11, 1), &two);
    let completed =
        End { head: EndHead { reason: EndReason::Completed, items: 3 }, content: content(b"", &[]) };
    v.frame("END", session(FrameType::END, 6, 12, 1), &completed);
    let payload = Payload::from_body(encode_status(&status()));
    let failed = End {
        head: EndHead { reason: EndReason::Status, items: 1 },
        content: Content { metadata: Bytes::new(), payload },
    };
    v.frame("END with a status", session(FrameType::END, 7, 13, 1), &failed);
    let mut metadata = AnswerMetadata::default();
    metadata.trailing.insert("rows", "5").unwrap();
    let content = Content { metadata: encode_answer_metadata(&metadata), payload: Payload::default() };
    let informed = End { head: EndHead { reason: EndReason::Completed, items: 0 }, content };
    v.frame("END with metadata", session(FrameType::END, 8, 14, 1), &informed);
    let window = Window { items: 16, bytes: 65_536 };
    v.frame("WINDOW", session(FrameType::WINDOW, 6, 6, 12), &window);
    v.frame("STOP", session(FrameType::STOP, 6, 7, 12), &Stop { reason: 0 });
    v.frame("DONE", session(FrameType::DONE, 0, 7, 12), &Done { seq: 10, outcome: 1 });
}

fn accesses(v: &mut Vectors) {
    let mut access = |name, number, seq, rx_seq, access: &Access| {
        v.frame(name, session(FrameType::ACCESS, number, seq, rx_seq), access);
    };
    let read = Access {
        target: Target::Loan { call: 3, number: 42 },
        offset: 4096,
        operation: Operation::Read(512),
    };
    access("ACCESS, reading a loan", 3 << 62 | 1, 5, 4, &read);
    let target = Target::Region { number: 7, key: 0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f };
    let write = Operation::Write(Bytes::from_static(b"abc"));
    access("ACCESS, writing a region", 1 << 62 | 2, 6, 5, &Access { target, offset: 16, operation: write });
    let swap = Operation::CompareAndSwap { expected: 1, new: 2 };
    access("ACCESS, compare and swap", 1 << 62 | 3, 7, 5, &Access { target, offset: 24, operation: swap });
    let add = Operation::FetchAdd(5);
    access("ACCESS, fetch and add", 1 << 62 | 4, 8, 5, &Access { target, offset: 24, operation: add });
    access(
        "ACCESS, asking for a grant",
        1 << 62 | 5,
        9,
        6,
        &Access { target, offset: 0, operation: Operation::Grant },
    );
    let withdraw = Access { target, offset: 0, operation: Operation::Withdraw };
    access("ACCESS, withdrawing it", 3 << 62 | 2, 8, 9, &withdraw);
    let granted = Granted { epoch: 3, rights: Granted::READ, descriptor: Bytes::from_static(&[0xd0, 0xd1]) };
    let offer = Access { target: read.target, offset: 0, operation: Operation::Offer(granted) };
    access("ACCESS, offering a grant", 1 << 62 | 6, 10, 6, &offer);
    let returned = Access { target: read.target, offset: 0, operation: Operation::Return };
    access("ACCESS, returning it", 3 << 62 | 3, 9, 10, &returned);
    let accessed = Accessed { outcome: Outcome::Done, bytes: Bytes::from_static(b"abc") };
    v.frame("ACCESSED", session(FrameType::ACCESSED, 3 << 62 | 1, 5, 5), &accessed);
    let gone = Accessed { outcome: Outcome::Gone, bytes: Bytes::new() };
    v.frame("ACCESSED, gone", session(FrameType::ACCESSED, 1 << 62 | 4, 6, 8), &gone);
    let unknown = Accessed { outcome: Outcome::Unknown, bytes: Bytes::new() };
    v.frame("ACCESSED, unknown", session(FrameType::ACCESSED, 1 << 62 | 7, 9, 11), &unknown);
    let granted = |rights| {
        let mut bytes = BytesMut::new();
        Granted { epoch: 3, rights, descriptor: Bytes::from_static(&[0xd0, 0xd1]) }.encode(&mut bytes);
        Accessed { outcome: Outcome::Done, bytes: bytes.freeze() }
    };
    v.frame("ACCESSED, a grant", session(FrameType::ACCESSED, 1 << 62 | 5, 7, 9), &granted(Granted::READ));
    let all = granted(Granted::READ | Granted::WRITE | Granted::ATOMICS);
    v.frame("ACCESSED, a grant of all rights", session(FrameType::ACCESSED, 1 << 62 | 6, 8, 10), &all);
}

fn link_frames(v: &mut Vectors) {
    let ping = Ping { token: 0x0807_0605_0403_0201 };
    v.frame("PING", link(FrameType::PING, 12), &ping);
    v.frame("PONG", link(FrameType::PONG, 7), &ping);
    v.payload("ACK", link(FrameType::ACK, 12), b"");
    let grant = Header { grant: 120, ..link(FrameType::CREDIT, 12) };
    v.frame("CREDIT", grant, &Credit { op: CreditOp::Grant, count: 0 });
    let starved = Header { flags: flags::STARVED, ..grant };
    v.frame("CREDIT, forfeiting", starved, &Credit { op: CreditOp::Forfeit, count: 30 });
}

fn switching(v: &mut Vectors) {
    let offer = Offer { epoch: 1, name: "rdma".into(), data: Bytes::from_static(b"\xd0\xd1\xd2") };
    v.frame("OFFER", link(FrameType::OFFER, 12), &offer);
    let answer = Answer { epoch: 1, data: Bytes::from_static(b"\xd8\xd9") };
    v.frame("ANSWER", link(FrameType::ANSWER, 7), &answer);
    let probe = Header { grant: 120, ..link(FrameType::PROBE, 12) };
    v.frame("PROBE", probe, &Probe { epoch: 1, len: 16 });
    v.frame("UP", link(FrameType::UP, 12), &Up { epoch: 1, first_seq: 8 });
    let pulls = vec![Pull { seq: 14 }];
    let down = Down { epoch: 1, rx_seq: 15, reason: 15, pulls, detail: "retry exceeded".into() };
    v.frame("DOWN", link(FrameType::DOWN, 15), &down);
}

/// The session of WIRE.md's last section: one call, then an upgrade that the server declines.
fn a_session(v: &mut Vectors) {
    let rdma = |reason| vec![Upgrade { name: "rdma".into(), reason, data: Bytes::new() }];
    let client = Hello { upgrades: rdma(0), ..hello() };
    let hello_header = link(FrameType::HELLO, 0);
    v.frame("1 client HELLO", hello_header, &client);
    v.frame("2 server HELLO", hello_header, &Hello { upgrades: rdma(0), instance: 9, ..hello() });
    let bind = Bind {
        service: 0,
        name: "Kv".into(),
        codec: "raw".into(),
        methods: vec![BindMethod { hash: 0x1234, kind: 0, fingerprint: 0x5678 }],
    };
    v.frame("3 client BIND", session(FrameType::BIND, 0, 1, 0), &bind);
    let head = RequestHead { service: 0, method: 0, attempt: 1, timeout_us: 5000 };
    let request = Request { head, content: content(b"k", &[]) };
    v.frame("4 client REQUEST", session(FrameType::REQUEST, 1, 2, 0), &request);
    let offer = Offer { epoch: 1, name: "rdma".into(), data: Bytes::from_static(b"\xd0\xd1") };
    v.frame("5 client OFFER", link(FrameType::OFFER, 0), &offer);
    let response = Response { head: ResponseHead { kind: ResponseKind::Ok }, content: content(b"val", &[]) };
    v.frame("6 server RESPONSE", session(FrameType::RESPONSE, 1, 1, 2), &response);
    let down = |rx_seq, reason| Down { epoch: 1, rx_seq, reason, pulls: Vec::new(), detail: String::new() };
    v.frame("7 server DOWN", link(FrameType::DOWN, 2), &down(2, 13));
    v.frame("8 client DOWN", link(FrameType::DOWN, 1), &down(1, 13));
    let close = Close { code: CloseCode::Done, reason: String::new() };
    v.frame("9 client CLOSE", link(FrameType::CLOSE, 1), &close);
}

#[test]
#[cfg_attr(miri, ignore = "it reads a file")]
fn every_frame_is_what_the_specification_says_byte_for_byte() {
    let vectors = vectors().0;
    let has = |kind: FrameType| vectors.values().any(|bytes| bytes[0] == kind.0);
    let known = (0..=u8::MAX).map(FrameType).filter(|kind| kind.name() != "unknown");
    for kind in known {
        assert!(has(kind), "{kind:?} has no vector");
    }

    assert_same(&vectors, blocks(include_str!("golden.md")), "golden.md");
    // A package on its own comes without the specification.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/WIRE.md");
    if let Ok(specification) = std::fs::read_to_string(path) {
        assert_same(&vectors, blocks(&specification), "WIRE.md");
    }
}

fn assert_same(ours: &BTreeMap<&str, Vec<u8>>, mut theirs: BTreeMap<&str, Vec<u8>>, file: &str) {
    for (name, bytes) in ours {
        let shown = bytes.iter().fold(String::new(), |s, b| s + &format!("{b:02x} "));
        assert_eq!(theirs.remove(*name).as_ref(), Some(bytes), "`{name}` in {file} should be {shown}");
    }
    assert!(theirs.is_empty(), "nothing in the code makes these of {file}: {:?}", theirs.keys());
}

#[test]
fn the_golden_session_is_the_one_that_its_headers_say() {
    let vectors = vectors().0;
    let mut taken = BTreeMap::from([("client", 0), ("server", 0)]);
    for (name, bytes) in vectors.iter().filter(|(name, _)| name.starts_with(|c: char| c.is_ascii_digit())) {
        let sender = name.split(' ').nth(1).unwrap();
        let other = if sender == "client" { "server" } else { "client" };
        let header = Header::decode(bytes[..HEADER_LEN].try_into().unwrap()).unwrap();
        assert!(header.rx_seq <= taken[sender], "{name} acknowledges what was not sent");
        if !header.kind.is_link() {
            assert_eq!(header.seq, taken[other] + 1, "{name}");
            taken.insert(other, header.seq);
        }
    }
}
