//! The resources that the links of an endpoint share: memory, the device's control threads, and what they tell the driver.

mod bulk;
mod control;
mod counts;
mod mailbox;
mod memory;
mod shares;

use std::sync::Arc;

pub(crate) use self::bulk::{Bulk, in_use_anywhere, take_anywhere};
pub(crate) use self::control::{Control, Offload, Part, no_thread};
pub(crate) use self::counts::{Counts, DeviceCounts};
pub(crate) use self::mailbox::Mailbox;
pub(crate) use self::memory::{BASE, Memory, Pool, Promise, SLOT};
pub(crate) use self::shares::{NewQp, NoRoom, Shares};

/// The resources that the links of an endpoint share.
#[derive(Debug, Clone)]
pub(crate) struct Resources {
    pub(crate) memory: Arc<Memory>,
    pub(crate) bulk: Arc<Bulk>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) counts: Arc<Counts>,
}
