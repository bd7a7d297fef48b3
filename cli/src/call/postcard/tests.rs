//! Random signatures and arguments: none of them makes the command panic.

use super::*;
use crate::call::encoded;

const SIGNATURES: [&str; 6] = [
    "put(key: string, value: attachment) -> option<Entry { key: string, written: u64 }> | Status",
    "f(a: [u8; 4], b: {string: [u8]}, c: (u8, bool), d: Tree { left: option<Tree#0>, kind: Kind[A | B(u8) | C(u8, i64)] }) -> () | Bad[X(f32)]",
    "load(table: string, rows: stream<Row { id: u128 }>) -> u64 | Status",
    "watch(p: char) -> stream<[Event { key: string, v: i8 }] | Status> | Status",
    "g(a: [[[unit; 99]; 99]; 99], b: {unit: unit}) -> bytes | Status",
    "r(protobuf) -> raw | Status",
];

const VALUES: [&str; 6] = [
    r#"{"key": "a", "value": {"hex": "00ff"}}"#,
    r#"[[1, 2, 3, 4], {"a": "b"}, [1, true], {"kind": {"C": [1, -1]}, "left": {"kind": "A"}}]"#,
    r#"{"table": "t"}"#,
    r#"["é"]"#,
    "[[], []]",
    "[1e999, null, 18446744073709551616]",
];

/// Changes some characters of a text, and leaves it UTF-8.
fn mutated(random: &mut fastrand::Rng, text: &str) -> String {
    const PIECES: [&str; 20] = [
        "[",
        "]",
        "{",
        "}",
        "(",
        ")",
        "<",
        ">",
        "|",
        "#0",
        "#9",
        ": ",
        ", ",
        "; ",
        "option<",
        "u8",
        "unit",
        "-",
        "é",
        "99999999999",
    ];
    let mut characters: Vec<String> = text.chars().map(String::from).collect();
    for _ in 0..random.usize(..6) {
        let place = random.usize(..=characters.len());
        match random.u8(..3) {
            0 => characters.insert(place, PIECES[random.usize(..PIECES.len())].to_owned()),
            1 if place < characters.len() => drop(characters.remove(place)),
            _ => {
                let (from, to) = (random.usize(..=characters.len()), random.usize(..=characters.len()));
                let copied = characters[from.min(to)..from.max(to)].to_vec();
                characters.splice(place..place, copied);
            }
        }
    }
    characters.concat()
}

#[test]
fn no_signature_value_or_message_panics() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut understood = 0;
    for _ in 0..10_000 {
        let text = SIGNATURES[random.usize(..SIGNATURES.len())];
        let Ok(signature) = Signature::parse(&mutated(&mut random, text)) else { continue };
        understood += 1;
        let forms = forms_of(signature);
        let example = forms.arguments.example().to_string();
        let value = VALUES[random.usize(..VALUES.len())];
        let value = mutated(&mut random, value);
        for value in [&example, &value] {
            let _ = encoded(&forms, Some(value));
        }
        let message: Vec<u8> = (0..random.usize(..40)).map(|_| random.u8(..)).collect();
        let _ = forms.answer.decode(&Payload::new(Bytes::from(message), vec![Bytes::from_static(b"x")]));
    }
    assert!(understood > 1000, "{understood}");
}

#[test]
fn examples_fit_their_signatures() {
    for text in &SIGNATURES[..4] {
        let forms = forms_of(Signature::parse(text).unwrap());
        let example = forms.arguments.example().to_string();
        let fits = encoded(&forms, Some(&example));
        assert!(fits.is_ok(), "{text}: {example}: {fits:?}");
    }
}

#[test]
fn a_message_of_many_values_without_bytes_is_refused() {
    let signature = Signature::parse("f() -> [[unit; 60000]; 60000] | Status").unwrap();
    let refused = signature.answer.decode(&Payload::from_body(Bytes::new()));
    assert_eq!(refused.unwrap_err(), "the message has more values than bytes");
}
