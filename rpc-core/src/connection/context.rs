//! The connection of a call, for its handler.

use std::sync::Arc;

use super::Connection;
use crate::context::Context;

impl Context {
    /// Returns the connection that the call came by, to be looked at, [closed](Connection::close) or [drained](Connection::drain).
    /// `None` in a context of no call, and when the connection is gone.
    pub fn connection(&self) -> Option<Arc<Connection>> {
        self.of_connection()?.downcast().ok()
    }
}
