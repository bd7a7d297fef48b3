//! The checker itself, with histories that are known to be right or wrong.

use super::history::checker::{Action, Call, Value, is_linearizable};
use Action::{CompareAndSet, Delete, Get, Put};

fn call(begin: u64, end: u64, action: Action) -> Call {
    Call { action, begin, end: Some(end) }
}

/// A call whose result is not known.
fn lost(begin: u64, action: Action) -> Call {
    Call { action, begin, end: None }
}

fn set(expected: Option<Value>, value: Option<Value>, equal: bool) -> Action {
    CompareAndSet { expected, value, equal: Some(equal) }
}

const FOUND: Action = Delete { found: Some(true) };
const ABSENT: Action = Delete { found: Some(false) };

#[test]
fn right_histories_pass() {
    let histories: [(&str, &[Call]); 9] = [
        ("nothing happens", &[]),
        ("one after the other", &[call(1, 2, Get(None)), call(3, 4, Put(1)), call(5, 6, Get(Some(1)))]),
        ("a read during a put sees the old value", &[call(1, 4, Put(1)), call(2, 3, Get(None))]),
        ("a read during a put sees the new value", &[call(1, 4, Put(1)), call(2, 3, Get(Some(1)))]),
        (
            "two puts overlap, and the one that began first wins",
            &[call(1, 4, Put(1)), call(2, 3, Put(2)), call(5, 6, Get(Some(1)))],
        ),
        ("a lost put takes effect late", &[lost(1, Put(1)), call(2, 3, Get(None)), call(4, 5, Get(Some(1)))]),
        ("a lost put never takes effect", &[lost(1, Put(1)), call(2, 3, Get(None)), call(4, 5, ABSENT)]),
        (
            "of two comparisons one finds its value",
            &[
                call(1, 2, Put(1)),
                call(3, 6, set(Some(1), Some(2), true)),
                call(4, 5, set(Some(1), Some(3), false)),
            ],
        ),
        (
            "a removal by comparison",
            &[call(1, 2, set(None, Some(1), true)), call(3, 4, set(Some(1), None, true)), call(5, 6, ABSENT)],
        ),
    ];
    for (what, history) in histories {
        assert!(is_linearizable(history), "{what}");
    }
}

#[test]
fn wrong_histories_are_found() {
    let histories: [(&str, &[Call]); 10] = [
        ("a value that nobody wrote", &[call(1, 2, Get(Some(9)))]),
        ("a put is lost", &[call(1, 2, Put(1)), call(3, 4, Get(None))]),
        ("a stale read", &[call(1, 2, Put(1)), call(3, 4, Put(2)), call(5, 6, Get(Some(1)))]),
        (
            "two reads during a put, new and then old",
            &[call(1, 8, Put(1)), call(2, 3, Get(Some(1))), call(4, 5, Get(None))],
        ),
        (
            "both of two comparisons find one value",
            &[
                call(1, 2, Put(1)),
                call(3, 6, set(Some(1), Some(2), true)),
                call(4, 5, set(Some(1), Some(3), true)),
            ],
        ),
        ("two removals find one value", &[call(1, 2, Put(1)), call(3, 6, FOUND), call(4, 5, FOUND)]),
        (
            "a comparison misses the only value",
            &[call(1, 2, Put(1)), call(3, 4, set(Some(1), Some(2), false))],
        ),
        (
            "a lost put takes effect twice",
            &[lost(1, Put(1)), call(2, 3, Get(Some(1))), call(4, 5, Put(2)), call(6, 7, Get(Some(1)))],
        ),
        ("a lost put takes effect before it began", &[call(1, 2, Get(Some(1))), lost(3, Put(1))]),
        (
            "two reads see two puts in opposite orders",
            &[
                call(1, 9, Put(1)),
                call(1, 9, Put(2)),
                call(2, 3, Get(Some(1))),
                call(4, 5, Get(Some(2))),
                call(6, 7, Get(Some(1))),
            ],
        ),
    ];
    for (what, history) in histories {
        assert!(!is_linearizable(history), "{what}");
    }
}

/// Tries all orders.
fn is_linearizable_by_trial(value: Option<Value>, left: &[Call]) -> bool {
    if left.iter().all(|call| call.end.is_none()) {
        return true;
    }
    // A call can be first if no other one has ended before it began.
    let earliest = left.iter().filter_map(|call| call.end).min().unwrap_or(u64::MAX);
    (0..left.len()).filter(|&first| left[first].begin <= earliest).any(|first| {
        let mut rest = left.to_vec();
        let next = rest.remove(first).action.apply(value);
        next.is_some_and(|next| is_linearizable_by_trial(next, &rest))
    })
}

#[test]
fn random_histories_get_the_verdict_of_trying_all_orders() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut verdicts = [0; 2];
    for _ in 0..20_000 {
        let value = |random: &mut fastrand::Rng| random.bool().then(|| random.u64(1..3));
        let calls: Vec<_> = (0..random.usize(1..7))
            .map(|_| {
                let begin = random.u64(..12);
                let end = (random.u8(..8) > 0).then(|| begin + random.u64(1..8));
                let told = end.is_some().then(|| random.bool());
                let action = match random.u8(..5) {
                    0 | 1 if end.is_some() => Get(value(&mut random)),
                    2 => Delete { found: told },
                    3 => {
                        CompareAndSet { expected: value(&mut random), value: value(&mut random), equal: told }
                    }
                    _ => Put(random.u64(1..3)),
                };
                Call { action, begin, end }
            })
            .collect();
        let expected = is_linearizable_by_trial(None, &calls);
        assert_eq!(is_linearizable(&calls), expected, "{calls:?}");
        verdicts[usize::from(expected)] += 1;
    }
    // Both verdicts were tried.
    assert!(verdicts.iter().all(|count| *count > 2000), "{verdicts:?}");
}
