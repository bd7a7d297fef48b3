//! The resources that the links of an endpoint share: memory, the device's control threads, and what they tell the driver.

mod control;
mod counts;
mod mailbox;
mod memory;
mod own_atomics;
mod registrations;
mod rendezvous_pool;
mod shares;

use std::sync::Arc;

pub(crate) use self::control::{Control, DropOnControlThread, Part, no_thread};
pub(crate) use self::counts::{Counts, DeviceCounts};
pub(crate) use self::mailbox::Mailbox;
pub(crate) use self::memory::{BASE, CreditLease, Memory, Pool, SLOT};
pub(crate) use self::own_atomics::OwnAtomics;
pub(crate) use self::registrations::{Registrations, UsedWords};
pub(crate) use self::rendezvous_pool::{
    RendezvousPool, SHORT, grow_anywhere, in_use_anywhere, take_anywhere,
};
pub(crate) use self::shares::{NewQp, NoRoom, Shares};

/// The resources that the links of an endpoint share.
#[derive(Debug, Clone)]
pub(crate) struct Resources {
    pub(crate) memory: Arc<Memory>,
    pub(crate) rendezvous_pool: Arc<RendezvousPool>,
    pub(crate) registrations: Arc<Registrations>,
    pub(crate) own_atomics: Arc<OwnAtomics>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) counts: Arc<Counts>,
}
