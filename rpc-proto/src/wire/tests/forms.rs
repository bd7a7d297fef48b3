//! Everything that has a form on the wire, so that one test can be put to all of it.

use std::fmt::Debug;

use bytes::{BufMut, Bytes, BytesMut};
use fastrand::Rng;

use super::super::*;
use crate::compression::Compression;
use crate::metadata::{AnswerMetadata, Metadata};
use crate::payload::{Packed, Payload};
use crate::status::{Blame, Code, Executed, Status};

pub(super) trait Form: Sized + PartialEq + Debug {
    const NAME: &'static str;
    fn encode(&self, out: &mut BytesMut);
    fn decode(payload: Bytes) -> Result<Self, WireError>;
    fn random(rng: &mut Rng) -> Self;

    fn bytes(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.encode(&mut out);
        out.freeze()
    }
}

/// Puts one generic test to every form.
macro_rules! all {
    ($test:ident) => {
        $test::<Hello>();
        $test::<Bind>();
        $test::<forms::Request>();
        $test::<forms::Response>();
        $test::<forms::Item>();
        $test::<Status>();
        $test::<Metadata>();
        $test::<AnswerMetadata>();
        $test::<Cancel>();
        $test::<forms::End>();
        $test::<Window>();
        $test::<Stop>();
        $test::<Goaway>();
        $test::<Done>();
        $test::<Access>();
        $test::<Accessed>();
        $test::<Credit>();
        $test::<Ping>();
        $test::<Offer>();
        $test::<Answer>();
        $test::<Up>();
        $test::<Down>();
        $test::<Probe>();
        $test::<Close>();
    };
}
pub(super) use all;

/// A REQUEST, whole.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    pub(super) head: RequestHead,
    pub(super) content: Content,
}

/// A RESPONSE, whole.
#[derive(Debug, PartialEq)]
pub(super) struct Response {
    pub(super) head: ResponseHead,
    pub(super) content: Content,
}

/// An ITEM, whole.
#[derive(Debug, PartialEq)]
pub(super) struct Item {
    pub(super) head: ItemHead,
    pub(super) content: Content,
}

/// An END, whole.
#[derive(Debug, PartialEq)]
pub(super) struct End {
    pub(super) head: EndHead,
    pub(super) content: Content,
}

fn put_payload(payload: &Payload, out: &mut BytesMut) {
    out.put_slice(&payload.body);
    payload.attachments().iter().for_each(|a| out.put_slice(a));
}

fn bytes(rng: &mut Rng, max: usize) -> Bytes {
    (0..rng.usize(..=max)).map(|_| rng.u8(..)).collect()
}

fn text(rng: &mut Rng, max: usize) -> String {
    (0..rng.usize(..=max)).map(|_| rng.char(..)).collect()
}

/// One that looks compressed: what is in it nobody looks at here.
pub(super) fn packed(rng: &mut Rng) -> Payload {
    let by = [Compression::Lz4, Compression::Zstd][rng.usize(..2)];
    let attachments = (0..rng.usize(..4)).map(|_| rng.u32(..)).collect();
    Payload::packed(bytes(rng, 50), Packed::new(by, rng.u32(..), attachments))
}

fn content(rng: &mut Rng) -> Content {
    let attachments = (0..rng.usize(..4)).map(|_| bytes(rng, 50)).collect();
    let max = if rng.u8(..) == 0 { 1000 } else { 20 };
    Content { metadata: bytes(rng, max), payload: Payload::new(bytes(rng, 50), attachments) }
}

/// Implements `Form` by the type's own `encode` and `decode`.
macro_rules! form {
    ($type:ident, $rng:ident => $random:expr) => {
        impl Form for $type {
            const NAME: &'static str = stringify!($type);

            fn encode(&self, out: &mut BytesMut) {
                $type::encode(self, out)
            }

            fn decode(payload: Bytes) -> Result<Self, WireError> {
                $type::decode(payload)
            }

            fn random($rng: &mut Rng) -> Self {
                $random
            }
        }
    };
}

form!(Hello, rng => {
    let max_message = u64::from(rng.u32(MIN_LIMIT..));
    let features = rng.u64(..);
    Hello {
        version_min: rng.u16(..100),
        version_max: rng.u16(100..),
        features,
        max_frame: rng.u32(MIN_LIMIT..),
        max_message,
        max_assembly: rng.u64(max_message..),
        max_calls: rng.u32(..),
        max_metadata: rng.u32(..),
        class: rng.u8(..),
        security: rng.u8(..),
        instance: rng.u64(..),
        upgrades: (0..rng.usize(..3))
            .map(|_| Upgrade { name: text(rng, 10), reason: rng.u8(..), data: bytes(rng, 40) })
            .collect(),
        auth: bytes(rng, 20),
        stream_items: if features & features::STREAMS == 0 { 0 } else { rng.u32(1..) },
        stream_bytes: if features & features::STREAMS == 0 { 0 } else { rng.u32(1..) },
    }
});
form!(Bind, rng => Bind {
    service: rng.u16(..),
    name: text(rng, 20),
    codec: text(rng, 10),
    methods: (0..rng.usize(..5))
        .map(|_| BindMethod { hash: rng.u64(..), kind: rng.u8(..), fingerprint: rng.u64(..) })
        .collect(),
});
form!(Cancel, rng => Cancel { reason: rng.u8(..) });
form!(Stop, rng => Stop { reason: rng.u8(..) });
form!(Window, rng => Window { items: rng.u64(..), bytes: rng.u64(..) });
form!(Goaway, rng => Goaway { last_call: rng.u64(..), reason: text(rng, 50) });
form!(Done, rng => Done { seq: rng.u32(..), outcome: rng.u8(..2) });
form!(Access, rng => Access {
    target: if rng.bool() {
        Target::Loan { call: rng.u64(..), number: rng.u64(..) }
    } else {
        Target::Region { number: rng.u64(..), key: rng.u128(..) }
    },
    offset: rng.u64(..),
    operation: match rng.u8(..4) {
        0 => Operation::Read(rng.u32(..)),
        1 => Operation::Write(bytes(rng, 60)),
        2 => Operation::CompareAndSwap { expected: rng.u64(..), new: rng.u64(..) },
        _ => Operation::FetchAdd(rng.u64(..)),
    },
});
form!(Accessed, rng => match rng.choice([Outcome::Gone, Outcome::Forbidden, Outcome::OutOfRange, Outcome::NoMemory, Outcome::Unknown]) {
    Some(outcome) if rng.bool() => Accessed { outcome, bytes: Bytes::new() },
    _ => Accessed { outcome: Outcome::Done, bytes: bytes(rng, 60) },
});
form!(Ping, rng => Ping { token: rng.u64(..) });
form!(Offer, rng => Offer { epoch: rng.u32(..), name: text(rng, 10), data: bytes(rng, 60) });
form!(Answer, rng => Answer { epoch: rng.u32(..), data: bytes(rng, 60) });
form!(Up, rng => Up { epoch: rng.u32(..), first_seq: rng.u32(..) });
form!(Probe, rng => Probe { epoch: rng.u32(..), len: rng.u32(8..600) });
form!(Down, rng => Down {
    epoch: rng.u32(..),
    rx_seq: rng.u32(..),
    reason: rng.u8(..),
    pulls: (0..rng.usize(..5)).map(|_| Pull { seq: rng.u32(..) }).collect(),
    detail: text(rng, 50),
});
form!(Credit, rng => Credit {
    op: [CreditOp::Grant, CreditOp::Reclaim, CreditOp::Forfeit][rng.usize(..3)],
    count: rng.u32(..),
});
form!(End, rng => {
    let mut content = content(rng);
    let reason = match rng.u8(..5) {
        0 => EndReason::Completed,
        1 => EndReason::Cancelled,
        2 => EndReason::Deadline,
        3 => EndReason::Status,
        _ => EndReason::Error,
    };
    match reason {
        EndReason::Error => {}
        EndReason::Status => content.payload = Payload::from_body(Status::random(rng).bytes()),
        _ => content.payload = Payload::default(),
    }
    End { head: EndHead { reason, items: rng.u64(..) }, content }
});
form!(Close, rng => Close {
    code: [CloseCode::Done, CloseCode::Protocol, CloseCode::Version, CloseCode::Overloaded][rng.usize(..4)],
    reason: text(rng, 50),
});

impl Request {
    fn encode(&self, out: &mut BytesMut) {
        self.head.encode(&self.content, out).unwrap();
        put_payload(&self.content.payload, out);
    }

    fn decode(message: Bytes) -> Result<Self, WireError> {
        RequestHead::decode(message).map(|(head, content)| Self { head, content })
    }
}

impl Response {
    fn encode(&self, out: &mut BytesMut) {
        self.head.encode(&self.content, out).unwrap();
        put_payload(&self.content.payload, out);
    }

    fn decode(message: Bytes) -> Result<Self, WireError> {
        ResponseHead::decode(message).map(|(head, content)| Self { head, content })
    }
}

impl Item {
    fn encode(&self, out: &mut BytesMut) {
        self.head.encode(&self.content, out).unwrap();
        put_payload(&self.content.payload, out);
    }

    fn decode(message: Bytes) -> Result<Self, WireError> {
        ItemHead::decode(message).map(|(head, content)| Self { head, content })
    }
}

impl End {
    fn encode(&self, out: &mut BytesMut) {
        self.head.encode(&self.content, out).unwrap();
        put_payload(&self.content.payload, out);
    }

    fn decode(message: Bytes) -> Result<Self, WireError> {
        EndHead::decode(message).map(|(head, content)| Self { head, content })
    }
}

form!(Request, rng => Request {
    head: RequestHead {
        service: rng.u16(..),
        method: rng.u16(..),
        attempt: rng.u8(..),
        timeout_us: rng.u64(..),
    },
    content: content(rng),
});
form!(Response, rng => Response {
    head: ResponseHead { kind: [ResponseKind::Ok, ResponseKind::Err, ResponseKind::Status][rng.usize(..3)] },
    content: content(rng),
});
form!(Item, rng => Item {
    head: ItemHead { more: if rng.bool() { 0 } else { rng.u16(..) } },
    content: Content::item(content(rng).payload),
});

impl Form for Metadata {
    const NAME: &'static str = "Metadata";

    fn encode(&self, out: &mut BytesMut) {
        out.put_slice(&encode_metadata(self));
    }

    fn decode(block: Bytes) -> Result<Self, WireError> {
        decode_metadata(block)
    }

    fn random(rng: &mut Rng) -> Self {
        let mut metadata = Self::new();
        for _ in 0..rng.usize(..4) {
            let key: String =
                (0..=rng.usize(..8)).map(|_| char::from(rng.choice(*b"az09_.-").unwrap())).collect();
            if rng.bool() {
                metadata.append_bin(&(key + "-bin"), bytes(rng, 20)).unwrap();
            } else {
                let value: String = (0..rng.usize(..20)).map(|_| rng.char(' '..='~')).collect();
                metadata.append(&key, value).unwrap();
            }
        }
        metadata
    }
}

impl Form for AnswerMetadata {
    const NAME: &'static str = "AnswerMetadata";

    fn encode(&self, out: &mut BytesMut) {
        out.put_slice(&encode_answer_metadata(self));
    }

    fn decode(block: Bytes) -> Result<Self, WireError> {
        decode_answer_metadata(block)
    }

    fn random(rng: &mut Rng) -> Self {
        // Without causes: where their key is damaged, the entry is left out.
        let (initial, trailing) = (Metadata::random(rng), Metadata::random(rng));
        Self { initial, trailing, ..Self::default() }
    }
}

impl Form for Status {
    const NAME: &'static str = "Status";

    fn encode(&self, out: &mut BytesMut) {
        out.put_slice(&encode_status(self));
    }

    fn decode(body: Bytes) -> Result<Self, WireError> {
        decode_status(body)
    }

    fn random(rng: &mut Rng) -> Self {
        Self::new(Code::from_wire(rng.u8(1..=16)), text(rng, 30))
            .with_blame(Blame::from_wire(rng.u8(..5)))
            .with_executed(Executed::from_wire(rng.u8(..3)))
            .with_details(bytes(rng, 20))
    }
}
