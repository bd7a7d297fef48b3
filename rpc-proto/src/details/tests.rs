use std::collections::{BTreeMap, HashMap};
use std::time;

use bytes::Bytes;

use super::*;
use crate::status::Blame;

/// These messages as prost derives them.
mod derived {
    use super::HashMap;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Status {
        #[prost(int32, tag = "1")]
        pub(super) code: i32,
        #[prost(string, tag = "2")]
        pub(super) message: String,
        #[prost(message, repeated, tag = "3")]
        pub(super) details: Vec<Any>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Any {
        #[prost(string, tag = "1")]
        pub(super) type_url: String,
        #[prost(bytes = "vec", tag = "2")]
        pub(super) value: Vec<u8>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct QuotaFailure {
        #[prost(message, repeated, tag = "1")]
        pub(super) violations: Vec<QuotaViolation>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct QuotaViolation {
        #[prost(string, tag = "1")]
        pub(super) subject: String,
        #[prost(string, tag = "2")]
        pub(super) description: String,
        #[prost(string, tag = "3")]
        pub(super) api_service: String,
        #[prost(string, tag = "4")]
        pub(super) quota_metric: String,
        #[prost(string, tag = "5")]
        pub(super) quota_id: String,
        #[prost(map = "string, string", tag = "6")]
        pub(super) quota_dimensions: HashMap<String, String>,
        #[prost(int64, tag = "7")]
        pub(super) quota_value: i64,
        #[prost(int64, optional, tag = "8")]
        pub(super) future_quota_value: Option<i64>,
        #[prost(string, tag = "99")]
        pub(super) of_a_newer_version: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct RetryInfo {
        #[prost(message, optional, tag = "1")]
        pub(super) retry_delay: Option<Duration>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Duration {
        #[prost(int64, tag = "1")]
        pub(super) seconds: i64,
        #[prost(int32, tag = "2")]
        pub(super) nanos: i32,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn one(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value.to_owned())])
}

/// Each message with a value in each field, and its bytes as protobuf's own implementation for Python has written them.
#[test]
fn the_bytes_are_those_of_googles_implementation() {
    fn check<D: Detail + PartialEq>(detail: &D, bytes: &str) {
        assert_eq!(hex(&detail.encode_to_vec()), bytes, "{}", D::TYPE_URL);
        assert!(Any::pack(detail).unpack::<D>().unwrap().unwrap() == *detail, "{}", D::TYPE_URL);
    }
    let localized_message = LocalizedMessage { locale: "de".into(), message: "ist negativ".into() };
    let violation = FieldViolation {
        field: "age".into(),
        description: "is negative".into(),
        reason: "RANGE".into(),
        localized_message: Some(localized_message),
    };
    let status = Status::new(Code::InvalidArgument, "wrong age")
        .with_detail(&BadRequest { field_violations: vec![violation] })
        .with_detail(&RetryInfo::after(time::Duration::from_millis(1500)))
        .with_detail(&ErrorInfo {
            reason: "STOCKOUT".into(),
            domain: "shop.example".into(),
            metadata: one("sku", "7"),
        });
    assert_eq!(
        hex(status.details()),
        "0803120977726f6e67206167651a5b0a29747970652e676f6f676c65617069732e636f6d2f676f6f676c652e7270632e\
         42616452657175657374122e0a2c0a03616765120b6973206e656761746976651a0552414e474522110a026465120b69\
         7374206e6567617469761a360a28747970652e676f6f676c65617069732e636f6d2f676f6f676c652e7270632e526574\
         7279496e666f120a0a0808011080cab5ee011a4e0a28747970652e676f6f676c65617069732e636f6d2f676f6f676c65\
         2e7270632e4572726f72496e666f12220a0853544f434b4f5554120c73686f702e6578616d706c651a080a03736b7512\
         0137"
    );
    let violation = QuotaViolation {
        subject: "project:7".into(),
        description: "too many".into(),
        api_service: "shop".into(),
        quota_metric: "calls".into(),
        quota_id: "per-minute".into(),
        quota_dimensions: one("region", "eu"),
        quota_value: 100,
        future_quota_value: Some(0),
    };
    check(
        &QuotaFailure { violations: vec![violation] },
        "0a400a0970726f6a6563743a371208746f6f206d616e791a0473686f70220563616c6c732a0a7065722d6d696e757465\
         320c0a06726567696f6e1202657538644000",
    );
    let violation =
        PreconditionViolation { r#type: "TOS".into(), subject: "s".into(), description: "d".into() };
    check(&PreconditionFailure { violations: vec![violation] }, "0a0b0a03544f531201731a0164");
    check(
        &DebugInfo { stack_entries: vec!["a".into(), "b".into()], detail: "c".into() },
        "0a01610a0162120163",
    );
    check(&RequestInfo { request_id: "r".into(), serving_data: "d".into() }, "0a0172120164");
    check(
        &ResourceInfo {
            resource_type: "t".into(),
            resource_name: "n".into(),
            owner: "o".into(),
            description: "d".into(),
        },
        "0a017412016e1a016f220164",
    );
    let link = HelpLink { description: "d".into(), url: "u".into() };
    check(&Help { links: vec![link] }, "0a060a0164120175");
    check(&LocalizedMessage { locale: "de".into(), message: "m".into() }, "0a02646512016d");
}

#[test]
fn messages_are_read_as_prost_would_read_them() {
    let mut random = fastrand::Rng::with_seed(0x5eed);
    for _ in 0..crate::rounds(1000) {
        let mut text = || "x".repeat(random.usize(..3));
        let violation = derived::QuotaViolation {
            subject: text(),
            description: text(),
            api_service: text(),
            quota_metric: text(),
            quota_id: text(),
            quota_dimensions: HashMap::from([(text(), text())]),
            of_a_newer_version: text(),
            quota_value: random.i64(..) >> random.u32(..64),
            future_quota_value: random.bool().then(|| random.i64(-1..2)),
        };
        let theirs = derived::QuotaFailure { violations: vec![violation; random.usize(..3)] };
        let ours = QuotaFailure::decode(&*theirs.encode_to_vec()).unwrap();
        let back = derived::QuotaFailure::decode(&*ours.encode_to_vec()).unwrap();
        let known = |mut all: derived::QuotaFailure| {
            all.violations.iter_mut().for_each(|one| one.of_a_newer_version.clear());
            all
        };
        assert_eq!(back, known(theirs));

        let span =
            random.bool().then(|| derived::Duration { seconds: random.i64(-1..2), nanos: random.i32(-1..2) });
        let theirs = derived::RetryInfo { retry_delay: span };
        let ours = RetryInfo::decode(&*theirs.encode_to_vec()).unwrap();
        assert_eq!(ours.encode_to_vec(), theirs.encode_to_vec());
    }
    let theirs = derived::Status {
        code: -3,
        message: "m".into(),
        details: vec![derived::Any { type_url: "t".into(), value: vec![1] }],
    };
    let ours = RpcStatus::decode(&*theirs.encode_to_vec()).unwrap();
    assert_eq!(ours.encode_to_vec(), theirs.encode_to_vec());
}

#[test]
fn details_are_found_by_type_and_keep_their_order() {
    let link = |url: &str| Help { links: vec![HelpLink { url: url.into(), ..HelpLink::default() }] };
    let status = Status::new(Code::NotFound, "no such page")
        .with_detail(&link("a"))
        .with_detail(&DebugInfo::default())
        .with_detail(&link("b"));
    assert_eq!(status.detail::<Help>(), Some(link("a")));
    assert_eq!(status.all_details::<Help>(), [link("a"), link("b")]);
    assert_eq!(status.detail::<DebugInfo>(), Some(DebugInfo::default()));
    assert_eq!(status.detail::<RetryInfo>(), None);

    let mut rpc = status.to_rpc();
    assert_eq!((rpc.code, rpc.message.as_str(), rpc.details.len()), (5, "no such page", 3));
    // A detail of another sender, and one that can't be read.
    rpc.details[0].type_url = "type.example.com/of/google.rpc.Help".into();
    rpc.details[2].value = Bytes::from_static(&[0xff]);
    let status = Status::from_rpc(&rpc);
    assert_eq!(status.all_details::<Help>(), [link("a")]);
    rpc.details[0].type_url = "google.rpc.Help".into();
    assert_eq!(Status::from_rpc(&rpc).detail::<Help>(), Some(link("a")));
    rpc.details[0].type_url = "not.google.rpc.Help".into();
    assert_eq!(Status::from_rpc(&rpc).detail::<Help>(), None);
}

#[test]
fn details_that_are_no_status_have_none_and_are_replaced() {
    let status = Status::new(Code::Internal, "odd").with_details(Bytes::from_static(b"not protobuf"));
    assert_eq!(status.to_rpc().details, []);
    let status = status.with_detail(&DebugInfo::default());
    assert_eq!(status.detail::<DebugInfo>(), Some(DebugInfo::default()));
}

#[test]
fn a_status_of_grpc_becomes_one_that_a_handler_returned() {
    let rpc = RpcStatus { code: 16, message: "who?".into(), details: Vec::new() };
    let status = Status::from_rpc(&rpc);
    assert_eq!(status, Status::new(Code::Unauthenticated, "who?"));
    assert_eq!((status.blame(), status.to_rpc()), (Blame::Application, rpc));
    for code in [0, -1, 17, 256 + 5, i32::MIN] {
        let rpc = RpcStatus { code, ..RpcStatus::default() };
        assert_eq!(Status::from_rpc(&rpc).code(), Code::Unknown, "{code}");
    }
}

#[test]
fn spans_of_time_are_converted() {
    let longest = time::Duration::MAX;
    assert_eq!(Duration::from(longest).seconds, i64::MAX);
    let span = time::Duration::new(3, 5);
    assert_eq!(RetryInfo::after(span).delay(), span);
    for (seconds, nanos) in [(-1, 0), (0, -1), (i64::MIN, i32::MIN)] {
        let info = RetryInfo { retry_delay: Some(Duration { seconds, nanos }) };
        assert_eq!(info.delay(), time::Duration::ZERO);
    }
    let info = RetryInfo { retry_delay: Some(Duration { seconds: i64::MAX, nanos: i32::MAX }) };
    assert!(info.delay() > span);
}

#[test]
fn random_bytes_never_panic() {
    fn read<D: Detail>(bytes: &[u8]) {
        let _ = D::decode(bytes);
    }
    let mut random = fastrand::Rng::with_seed(0x5eed);
    let whole = QuotaFailure { violations: vec![QuotaViolation::default(); 2] };
    let whole = Status::new(Code::Internal, "m").with_detail(&whole).details().to_vec();
    for _ in 0..crate::rounds(50_000) {
        let mut bytes: Vec<u8> = (0..random.usize(..40)).map(|_| random.u8(..)).collect();
        if random.bool() {
            bytes.clone_from(&whole);
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        read::<ErrorInfo>(&bytes);
        read::<RetryInfo>(&bytes);
        read::<QuotaFailure>(&bytes);
        read::<BadRequest>(&bytes);
        let status = Status::new(Code::Internal, "m").with_details(bytes.into());
        let _ = status.detail::<QuotaFailure>();
    }
}
