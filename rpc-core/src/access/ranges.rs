//! Checks of ranges.

use std::ops::{Bound, RangeBounds};

use crate::proto::wire::Outcome;
use crate::refusal::refusal;
use crate::status::{Blame, Code, Status};

/// Returns offset and length of a range within memory of this length.
pub(crate) fn range(range: impl RangeBounds<usize>, of: usize) -> Result<(usize, usize), Status> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(of),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= of => Ok((start, end - start)),
        _ => {
            let (start, end) = (range.start_bound(), range.end_bound());
            let message =
                format!("the range from {start:?} to {end:?} is not within the memory, which has {of} bytes");
            Err(refusal(Code::OutOfRange, message).with_blame(Blame::Application))
        }
    }
}

/// Checks a range against the length of memory.
pub(crate) fn check_range(offset: usize, len: usize, of: usize) -> Result<(), Outcome> {
    let fits = offset.checked_add(len).is_some_and(|end| end <= of);
    if fits { Ok(()) } else { Err(Outcome::OutOfRange) }
}

/// Checks the place of a number of eight bytes.
pub(crate) fn check_number(offset: usize, of: usize) -> Result<(), Outcome> {
    let is_aligned = offset.is_multiple_of(size_of::<u64>());
    if is_aligned { check_range(offset, size_of::<u64>(), of) } else { Err(Outcome::OutOfRange) }
}
