//! Calls that clients make and record, and a check of whether their history is linearizable.

pub(crate) mod checker;
pub(crate) mod clients;
pub(crate) mod program;

use std::collections::BTreeMap;

use checker::{Call, is_linearizable};

/// The calls on each key.
pub(crate) type Histories = BTreeMap<String, Vec<Call>>;

/// Panics if the history of a key is not linearizable.
pub(crate) fn check(histories: &Histories) {
    for (key, calls) in histories {
        assert!(is_linearizable(calls), "the history of {key} is not linearizable: {calls:#?}");
    }
}
