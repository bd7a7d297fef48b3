//! The account of the memory that the arguments of a call take.

use super::current::current_connection;
use crate::memory::{Gauge, HostTurn, Use};
use crate::payload::MemoryGrant;

/// Opens an account for the values of the current call's arguments, beside the other memory of its connection.
pub(crate) fn open_grant() -> Option<Box<dyn MemoryGrant>> {
    let account = current_connection()?.account.upgrade()?;
    Some(Box::new(Gauge::new(&account, Use::Arguments)))
}

/// Returns the turn of the host that made the current call.
pub(crate) fn current_turn() -> Option<HostTurn> {
    Some(current_connection()?.account.upgrade()?.turn())
}
