//! Operations of the application: each is one access or several, by messages or by a device.

use std::sync::atomic::Ordering;

use super::Accesses;

/// An operation that the application has under way. As long as it exists, its connection is not idle, whatever does the access.
pub(super) struct UnderWay<'a>(&'a Accesses);

impl Accesses {
    pub(super) fn begin_operation(&self) -> UnderWay<'_> {
        self.operations.fetch_add(1, Ordering::AcqRel);
        UnderWay(self)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.0.operations.fetch_sub(1, Ordering::AcqRel) == 1 {
            // A connection that drains may have waited for this.
            self.0.sender.progress().note();
            self.0.sender.call_ended();
        }
    }
}
