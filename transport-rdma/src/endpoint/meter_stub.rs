//! Stands in for `meter.rs` without the feature `metrics`.

use std::sync::Arc;

use super::Shard;

#[derive(Debug, Default)]
pub(super) struct Meter {}

impl Meter {
    #[inline]
    pub(super) fn tell_soon(&self, _: &Arc<Shard>) {}
}
