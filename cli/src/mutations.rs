//! Mutations of texts: whatever a file or a peer says, the command does not panic.

use std::iter;

/// Numbers that arithmetic may not be ready for.
const NUMBERS: [&str; 10] = [
    "0",
    "-1",
    "255",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "99999999999999999999999999",
    "1e308",
    "NaN",
];

/// Returns mutations of a text without end: parts are left out, repeated, or overwritten by anything, and numbers become huge.
pub(crate) fn of(text: &str, seed: u64) -> impl Iterator<Item = String> {
    let mut random = fastrand::Rng::with_seed(seed);
    iter::repeat_with(move || {
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..random.usize(1..4) {
            mutate(&mut bytes, &mut random);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn mutate(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    if bytes.is_empty() {
        return;
    }
    let begin = random.usize(..bytes.len());
    let end = (begin + random.usize(1..64)).min(bytes.len());
    let of_line = |at: usize| {
        let first = bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let last =
            bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |length| at + length + 1);
        first..last
    };
    match random.u8(..7) {
        0 => bytes.truncate(begin),
        1 => drop(bytes.drain(begin..end)),
        2 => drop(bytes.drain(of_line(begin))),
        3 => bytes[begin..end].fill_with(|| random.u8(..)),
        4 => {
            let line = bytes[of_line(begin)].to_vec();
            bytes.splice(end..end, line);
        }
        // Most of what is read is numbers.
        _ => {
            let Some(first) = bytes[begin..].iter().position(u8::is_ascii_digit) else { return };
            let first = begin + first;
            let length = bytes[first..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            bytes.splice(first..first + length, NUMBERS[random.usize(..NUMBERS.len())].bytes());
        }
    }
}
