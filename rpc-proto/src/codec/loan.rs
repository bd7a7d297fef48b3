//! Loans inside arguments: numbers in the message, and memory that goes with the call.

use serde::ser::{Error, Serialize, Serializer};

use self::handover::{hand_over, take_over};
use crate::payload::Loan;

/// The name under which a loan passes through serde. Our serializer knows it.
const NAME: &str = "$farcall::loan";

#[expect(
    clippy::disallowed_types,
    reason = "an argument that serde has no parameter for; no state outlives its call"
)]
mod handover {
    use std::cell::Cell;

    use crate::payload::Loan;

    thread_local! {
        // As for attachments: the value is here only during the one call of serde that takes it.
        static HANDOVER: Cell<Option<Loan>> = const { Cell::new(None) };
    }

    pub(super) fn hand_over(loan: Loan) {
        HANDOVER.set(Some(loan));
    }

    pub(super) fn take_over() -> Option<Loan> {
        HANDOVER.take()
    }
}

/// Serializes a value that stands for a loan, and has the call lend it.
///
/// # Errors
///
/// If this is no argument of a call, or the codec is not [`Postcard`](super::Postcard).
pub fn serialize<T: Serialize, S: Serializer>(
    value: &T,
    loan: Loan,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    hand_over(loan);
    let result = serializer.serialize_newtype_struct(NAME, value);
    // A serializer that is not ours left it there.
    if take_over().is_some() {
        return Err(S::Error::custom("memory is lent in arguments of calls only, with the codec Postcard"));
    }
    result
}

/// Takes the loan of the value that is serialized under this name, if it stands for one.
pub(super) fn taken(name: &str) -> Option<Loan> {
    (name == NAME).then(take_over).flatten()
}
