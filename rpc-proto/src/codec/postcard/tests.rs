use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::fmt::Debug;
use std::time::Duration;

use serde::Deserialize;

use super::*;
use crate::codec::{from_payload, to_payload};
use crate::payload::Payload;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Command {
    Nothing,
    Move(i32, i64),
    Name(String),
    Paint { red: u8, alpha: Option<f32> },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Tree {
    value: u16,
    left: Option<Box<Self>>,
    right: Option<Box<Self>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
struct Unit;

/// Our bytes are postcard's bytes, and mean the same value again.
#[track_caller]
fn agrees<T: Serialize + DeserializeOwned + PartialEq + Debug + 'static>(value: T) {
    let payload = to_payload::<Postcard, _>(&value).unwrap();
    assert_eq!(&payload.body[..], ::postcard::to_allocvec(&value).unwrap());
    assert_eq!(from_payload::<Postcard, T>(payload).unwrap(), value);
}

#[test]
fn the_format_is_that_of_the_postcard_crate() {
    agrees(());
    agrees((true, false, 'ß', "text".to_owned(), String::new()));
    for i in [0, 1, 63, 64, 127, 128, 255, 16_383, 16_384, i64::MAX as u64, u64::MAX] {
        agrees((i, i as i64, -(i as i64 / 2), i as u32, i as i32, i as u16, i as i16, i as u8, i as i8));
        agrees((i as usize, u128::from(i) << 64, i128::from(i as i64) << 60, i as f32, i as f64));
    }
    agrees((u128::MAX, i128::MIN, i128::MAX, i64::MIN, i32::MIN, i16::MIN, i8::MIN));
    agrees((f32::NEG_INFINITY, f64::MIN_POSITIVE, [0_u8; 32], [(); 3]));
    agrees(vec![
        Command::Nothing,
        Command::Move(-1, 1 << 40),
        Command::Name("n".into()),
        Command::Paint { red: 1, alpha: None },
        Command::Paint { red: 2, alpha: Some(0.5) },
    ]);
    let leaf = Tree { value: 1, left: None, right: None };
    agrees(Tree { value: 300, left: Some(Box::new(leaf.clone())), right: Some(Box::new(leaf)) });
    agrees(BTreeMap::from([("a".to_owned(), vec![1_u32, 2]), ("b".to_owned(), vec![])]));
    agrees(HashMap::from([(7_u64, Ok::<(), String>(())), (8, Err("no".into()))]));
    agrees((Duration::from_millis(1500), Some(Some(Unit)), HashSet::from([Unit])));
    agrees((std::net::IpAddr::from([1, 2, 3, 4]), std::num::NonZeroU32::MIN, 'a'..='z'));
    agrees(crate::status::Status::new(crate::status::Code::NotFound, "gone"));
}

/// Bytes of sequences are written and read several at a time, and all that may follow them is not.
#[test]
fn sequences_of_bytes_are_those_of_the_postcard_crate() {
    for length in [0, 1, 2, 62, 63, 64, 65, 127, 128, 129, 1000, crate::rounds(100_000)] {
        let bytes: Vec<u8> = (0..length).map(|i| i as u8).collect();
        agrees(bytes.clone());
        agrees((bytes.clone(), 7_u8, bytes.clone()));
        agrees((Some(vec![bytes.clone(), vec![], bytes.clone()]), 1_u8));
        agrees((bytes.iter().map(|b| *b as i8).collect::<Vec<_>>(), "behind".to_owned()));
        agrees((bytes.iter().map(|b| b % 3 == 0).collect::<Vec<_>>(), [3_u8; 32]));
        agrees((
            bytes.iter().map(|b| Some(*b)).collect::<Vec<_>>(),
            bytes.into_iter().collect::<HashSet<_>>(),
        ));
    }
}

#[test]
fn a_sequence_that_is_not_read_to_its_end_leaves_the_rest() {
    /// The first of a sequence of bytes.
    #[derive(Debug)]
    struct First(u8);

    impl<'de> Deserialize<'de> for First {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;

            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = First;

                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("bytes")
                }

                fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<First, A::Error> {
                    Ok(First(seq.next_element()?.unwrap()))
                }
            }
            deserializer.deserialize_seq(Visitor)
        }
    }

    let mut input = Decoder::new(Payload::from_body(Bytes::from_static(&[3, 7, 8, 9, 10])));
    let first: First = Postcard::decode(&mut input).unwrap();
    assert_eq!((first.0, input.rest()), (7, &[8, 9, 10][..]));
}

#[test]
fn byte_strings_travel_beside_the_message() {
    let long = Bytes::from(vec![9; BY_REFERENCE + 1]);
    let payload = to_payload::<Postcard, _>(&long).unwrap();
    assert_eq!((&payload.body[..], payload.attachments().len()), (&[1_u8][..], 1));
    assert_eq!(payload.attachments()[0].as_ptr(), long.as_ptr());
    assert_eq!(from_payload::<Postcard, Bytes>(payload).unwrap().as_ptr(), long.as_ptr());

    let many = vec![Bytes::from_static(b"x"), long.clone(), Bytes::new(), long];
    let payload = to_payload::<Postcard, _>(&many).unwrap();
    assert_eq!(&payload.body[..], [4, 2, b'x', 1, 0, 3]);
    assert_eq!(from_payload::<Postcard, Vec<Bytes>>(payload).unwrap(), many);

    for option in [None, Some(Bytes::new()), Some(Bytes::from(vec![1; 5000]))] {
        let payload = to_payload::<Postcard, _>(&option).unwrap();
        assert_eq!(from_payload::<Postcard, Option<Bytes>>(payload).unwrap(), option);
    }
}

#[test]
fn a_byte_string_in_the_message_is_a_view_of_it() {
    let bytes = Bytes::from(vec![9; BY_REFERENCE]);
    let payload = to_payload::<Postcard, _>(&bytes).unwrap();
    let body = payload.body.into_bytes();
    let received: Bytes = from_payload::<Postcard, _>(Payload::from_body(body.clone())).unwrap();
    assert_eq!((received.as_ptr(), received.len()), (body[2..].as_ptr(), BY_REFERENCE));
}

fn refused<T: Serialize + DeserializeOwned + Debug + 'static>(body: &[u8]) -> String {
    let payload = Payload::from_body(Bytes::copy_from_slice(body));
    from_payload::<Postcard, T>(payload).unwrap_err().to_string()
}

#[test]
fn bytes_that_are_no_value_are_refused() {
    assert_eq!(refused::<u32>(&[]), "the message ends inside a value");
    assert_eq!(refused::<u32>(&[1, 2]), "the message has 1 bytes after its end");
    assert_eq!(refused::<u16>(&[0xff, 0xff, 4]), "a number is larger than its type");
    assert_eq!(refused::<u64>(&[0xff; 11]), "a number is larger than its type");
    assert_eq!(refused::<u128>(&[0xff; 20]), "a number is larger than its type");
    assert_eq!(refused::<bool>(&[2]), "a bool is neither 0 nor 1");
    assert_eq!(refused::<Option<u8>>(&[2]), "the byte before an optional value is neither 0 nor 1");
    assert_eq!(refused::<Vec<u8>>(&[2, 7]), "the message ends inside a value");
    assert_eq!(refused::<(Vec<u8>,)>(&[2, 7]), "the message ends inside a value");
    assert_eq!(refused::<(Vec<u8>,)>(&[0xff, 0xff, 0xff, 0xff, 0x0f, 7]), "the message ends inside a value");
    assert_eq!(refused::<(Vec<u8>,)>(&[1, 7, 8]), "the message has 1 bytes after its end");
    assert_eq!(refused::<Vec<bool>>(&[2, 1, 2]), "a bool is neither 0 nor 1");
    assert_eq!(refused::<String>(&[2, 0xff, 0xff]), "a string is not UTF-8");
    assert_eq!(refused::<char>(&[2, b'a', b'b']), "a char is not one character of UTF-8");
    assert_eq!(refused::<char>(&[0]), "a char is not one character of UTF-8");
    assert_eq!(refused::<Bytes>(&[6, 1, 2]), "the message ends inside a value");
    assert_eq!(refused::<Bytes>(&[1]), "attachment 0 is named but not there");
    assert_eq!(refused::<Vec<Bytes>>(&[0xff, 0xff, 0xff, 0xff, 0x0f, 0]), "the message ends inside a value");
    assert!(refused::<Command>(&[9]).contains("variant index"));
}

#[test]
fn every_truncation_is_refused() {
    let value = (vec![Command::Paint { red: 1, alpha: Some(1.0) }], "text".to_owned(), 1_u64 << 60, 'ß');
    let whole = to_payload::<Postcard, _>(&value).unwrap().body.into_bytes();
    for end in 0..whole.len() {
        let cut = Payload::from_body(whole.slice(..end));
        assert!(from_payload::<Postcard, (Vec<Command>, String, u64, char)>(cut).is_err(), "{end} bytes");
    }
}

#[test]
fn announced_lengths_reserve_no_memory() {
    /// How many elements its `Deserialize` was told to expect.
    #[derive(Debug, PartialEq, Serialize)]
    struct Hint(Option<usize>);

    impl<'de> Deserialize<'de> for Hint {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Hint;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("elements")
                }
                fn visit_seq<A: serde::de::SeqAccess<'de>>(self, elements: A) -> Result<Hint, A::Error> {
                    Ok(Hint(elements.size_hint()))
                }
            }
            deserializer.deserialize_seq(Visitor)
        }
    }
    let hint = |body: &'static [u8]| Postcard::decode(&mut Decoder::new(Payload::from_body(body.into())));
    assert_eq!(hint(&[3, 1, 2, 3]), Ok(Hint(Some(3))));
    assert_eq!(hint(&[3, 1, 2]), Ok(Hint(None)));
    // 2^60
    assert_eq!(hint(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10, 1]), Ok(Hint(None)));
}

#[test]
#[cfg_attr(miri, ignore = "half a million elements take Miri an hour")]
fn elements_that_take_no_bytes_are_limited() {
    /// Does not even ask for any.
    #[derive(Debug, Serialize)]
    struct Nothing;

    impl<'de> Deserialize<'de> for Nothing {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            Ok(Self)
        }
    }

    let huge = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
    let too_many = "more than 65536 elements of sequences take no bytes";
    assert_eq!(refused::<Vec<()>>(&huge), too_many);
    assert_eq!(refused::<Vec<(Unit, [(); 2])>>(&huge), too_many);
    assert_eq!(refused::<HashSet<Unit>>(&huge), too_many);
    assert_eq!(refused::<BTreeMap<Unit, Unit>>(&huge), too_many);
    assert_eq!(refused::<Vec<Nothing>>(&huge), too_many);
    // In all, not in each.
    assert_eq!(refused::<Vec<Vec<()>>>(&[3, 0x80, 0x80, 2, 0x80, 0x80, 2, 0x80, 0x80, 2]), too_many);
    agrees(vec![(); 65_536]);
    // Empty parts of elements that take bytes do not count.
    agrees(vec![(Unit, 1_u8); 100_000]);
}

/// A few bytes of a message may stand for many of memory.
#[test]
fn memory_of_values_is_limited() {
    /// Takes two bytes of a message and 4 KiB of memory.
    #[derive(Debug, Serialize, Deserialize)]
    struct Wide {
        #[serde(with = "wide")]
        page: Option<[u64; 512]>,
        next: Option<Box<Self>>,
    }
    mod wide {
        use super::*;
        pub(super) fn serialize<S: serde::Serializer>(
            _: &Option<[u64; 512]>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            to.serialize_none()
        }
        pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
            from: D,
        ) -> Result<Option<[u64; 512]>, D::Error> {
            Option::<u8>::deserialize(from).map(|_| None)
        }
    }
    let limited = |limit: u32, message: &[u8], read: fn(&mut Decoder) -> Result<(), CodecError>| {
        let mut input = Decoder::new(Payload::from_body(Bytes::copy_from_slice(message)));
        input.limit_memory(limit);
        read(&mut input).err().map(|error| error.to_string())
    };
    fn read<T: DeserializeOwned + 'static>(input: &mut Decoder) -> Result<(), CodecError> {
        <Postcard as Decode<T>>::decode(input).map(drop)
    }
    let many = |count: usize| {
        let mut message = vec![0; count + 2];
        message[..2].copy_from_slice(&[count as u8 | 0x80, (count >> 7) as u8]);
        message
    };
    const ALLOCATION: u32 = 32;
    let too_much =
        Some("its values take more memory than those of one message may; send fewer at a time".to_owned());
    // An empty vector and an empty string take a byte in the message.
    for read in [read::<Vec<Vec<u32>>>, read::<Vec<String>>] {
        assert_eq!(limited(1000 * 24 + ALLOCATION, &many(1000), read), None);
        assert_eq!(limited(1000 * 24 + ALLOCATION - 1, &many(1000), read), too_much);
    }
    assert_eq!(limited(1000, &many(1000), read::<HashSet<u64>>), too_much);
    assert_eq!(limited(1000, &many(1000), read::<Vec<Bytes>>), too_much);
    // A boxed value shows its size only where it is read itself.
    let chain: Vec<u8> = [0, 1].repeat(50).into_iter().chain([0, 0]).collect();
    assert_eq!(limited(51 * size_of::<Wide>() as u32, &chain, read::<Wide>), None);
    assert_eq!(limited(50 * size_of::<Wide>() as u32, &chain, read::<Wide>), too_much);
    // Strings count with what an allocator adds. Bytes of one's own count once.
    assert_eq!(limited(100, &[&[100][..], &[b'x'; 100]].concat(), read::<String>), too_much);
    assert_eq!(limited(100, &[&[100][..], &[b'x'; 100]].concat(), read::<(Vec<u8>,)>), None);
    // A leaf of a B-tree has eleven places, and a hash table at least four, however few are used.
    let one_each: Vec<u8> = [&[100][..], &[1, 0, 0].repeat(100)].concat();
    let of_leaves = 100 * (24 + 11 * (24 + 24) + ALLOCATION) + ALLOCATION;
    for read in [read::<Vec<BTreeMap<String, String>>>, read::<Vec<HashMap<String, String>>>] {
        assert_eq!(limited(of_leaves + 100 * 24, &one_each, read), None);
        assert_eq!(limited(of_leaves - 1, &one_each, read), too_much);
    }
    let one_each: Vec<u8> = [&[100][..], &[1, 0].repeat(100)].concat();
    for (read, memory) in [
        (read::<Vec<BTreeSet<String>>> as fn(&mut Decoder) -> _, 24 + 11 * 24 + ALLOCATION),
        (read::<Vec<HashSet<String>>>, 48 + 11 * 24 + ALLOCATION),
        (read::<Vec<LinkedList<String>>>, 24 + 24 + 16 + 2 * ALLOCATION),
        // A list has room for what is in it.
        (read::<Vec<Vec<Vec<u8>>>>, 24 + 24 + ALLOCATION),
        (read::<Vec<VecDeque<Vec<u8>>>>, 32 + 24 + ALLOCATION),
        (read::<Vec<BinaryHeap<String>>>, 24 + 24 + ALLOCATION),
        (read::<Vec<Box<[String]>>>, 16 + 24 + ALLOCATION),
    ] {
        assert_eq!(limited(100 * memory + ALLOCATION, &one_each, read), None);
        assert_eq!(limited(100 * memory + ALLOCATION - 1, &one_each, read), too_much);
    }
    // Short lists of bytes take an allocation each.
    let short: Vec<u8> = [&[100][..], &[1, 7].repeat(100)].concat();
    assert_eq!(limited(100 * (24 + ALLOCATION) + ALLOCATION - 1, &short, read::<Vec<Vec<u8>>>), too_much);
    // A table of a thousand entries may have room for more than twice as many.
    let keys = (0..1000_u32).flat_map(|key| [key as u8 | 0x80, (key >> 7) as u8, 0]);
    let table: Vec<u8> = [0xe8, 0x07].into_iter().chain(keys).collect();
    assert_eq!(limited(2 * 1000 * (8 + 8), &table, read::<HashMap<u64, u64>>), too_much);
    assert_eq!(limited(3 * 1000 * (8 + 8), &table, read::<HashMap<u64, u64>>), None);
    let set: Vec<u8> = [0xe8, 0x07]
        .into_iter()
        .chain((0..1000_u32).flat_map(|key| [key as u8 | 0x80, (key >> 7) as u8]))
        .collect();
    assert_eq!(limited(11 * 1000, &set, read::<HashSet<u32>>), too_much);
    assert_eq!(limited(4 * 1000 + ALLOCATION, &set, read::<Vec<u32>>), None);
    // Lists in lists, each of which claims to have as many elements as there are bytes: serde makes room for up to a mebibyte for each.
    type Nested = Vec<Vec<Vec<Vec<u64>>>>;
    let mut claims = [0xff, 0xff, 0x03].repeat(3);
    claims.resize(100_000, 0);
    assert_eq!(limited(2 << 20, &claims, read::<Nested>), too_much);
}

#[test]
fn nesting_is_limited() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Chain(Option<Box<Self>>);
    fn chain(links: usize) -> Chain {
        (1..links).fold(Chain(None), |tail, _| Chain(Some(Box::new(tail))))
    }
    agrees(chain(64));
    let deep = "values are nested more than 128 deep";
    let payload = to_payload::<Postcard, _>(&chain(65)).unwrap();
    assert_eq!(from_payload::<Postcard, Chain>(payload).unwrap_err().to_string(), deep);
    assert_eq!(refused::<Chain>(&vec![1; 1 << 20]), deep);
}

#[test]
fn types_that_the_format_can_not_carry_are_refused() {
    #[derive(Debug, Serialize, Deserialize)]
    struct Skips {
        #[serde(skip_serializing_if = "Option::is_none")]
        first: Option<u8>,
        second: Option<u8>,
    }
    let error = to_payload::<Postcard, _>(&Skips { first: None, second: Some(1) }).unwrap_err();
    assert!(error.to_string().starts_with("the field `first` was skipped"), "{error}");

    #[derive(Debug, Serialize, Deserialize)]
    struct Flat {
        a: u8,
        #[serde(flatten)]
        rest: BTreeMap<String, u8>,
    }
    let error = to_payload::<Postcard, _>(&Flat { a: 1, rest: BTreeMap::new() }).unwrap_err();
    assert!(error.to_string().contains("does not know its length"), "{error}");

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(u8),
    }
    assert!(refused::<Untagged>(&[1]).contains("untagged"));
}

/// Random bytes, and valid messages with random damage, give a value or an error; a value's bytes give the value again.
#[test]
fn random_messages_never_panic() {
    type Everything = (
        Vec<Command>,
        Option<Tree>,
        HashMap<String, Vec<Option<i16>>>,
        (char, f64, u128, [u8; 4]),
        Vec<(Unit, bool)>,
    );
    let seed = 0x5eed;
    let mut random = fastrand::Rng::with_seed(seed);
    let whole: Everything = (
        vec![Command::Move(1, 2), Command::Name("name".into())],
        Some(Tree {
            value: 1,
            left: Some(Box::new(Tree { value: 2, left: None, right: None })),
            right: None,
        }),
        HashMap::from([("k".to_owned(), vec![None, Some(-5)])]),
        ('x', 1.5, 1 << 100, [1, 2, 3, 4]),
        vec![(Unit, true); 5],
    );
    let valid = to_payload::<Postcard, _>(&whole).unwrap().body.to_vec();
    let mut values = 0;
    let rounds = crate::rounds(200_000);
    for round in 0..rounds {
        let mut bytes = valid.clone();
        if round % 4 == 0 {
            bytes = (0..random.usize(..64)).map(|_| random.u8(..)).collect();
        }
        for _ in 0..random.usize(..4) {
            if !bytes.is_empty() {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
        }
        bytes.truncate(random.usize(..=bytes.len() * 2));
        let attachments = vec![Bytes::from_static(b"beside"); random.usize(..3)];
        let payload = Payload::new(bytes.into(), attachments);
        if let Ok(value) = from_payload::<Postcard, Everything>(payload.clone()) {
            values += 1;
            let again = to_payload::<Postcard, _>(&value).unwrap();
            let again: Everything = from_payload::<Postcard, _>(again).unwrap();
            // NaN is not equal to itself.
            assert!(again == value || value.3.1.is_nan(), "seed {seed}, round {round}");
        }
        let _ = from_payload::<Postcard, Vec<Bytes>>(payload.clone());
        let _ = from_payload::<Postcard, Option<Bytes>>(payload);
    }
    assert!(values > rounds / 200, "only {values} of the messages were values");
}
