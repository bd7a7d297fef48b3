//! How fast calls are, and what they take. `docs/BENCHMARKS.md` says what is measured and how.

pub(crate) mod cost;
mod count;
mod peers;
