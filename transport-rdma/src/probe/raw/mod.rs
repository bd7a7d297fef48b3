//! The device alone: READ, WRITE and SEND between two processes, without sessions and calls.
//!
//! One process [asks](Asking), the other [answers](Answering). The first sends its [`Request`] to the second, by whatever connection
//! they have, and gets its [`Contact`] back. Then the asking process keeps some requests with its device, and polls for their
//! completions. Each end has a queue pair and memory of its own, which nothing else in the process uses.
//!
//! All of it blocks, and [`Asking::run`] and [`Answering::answer`] take a processor: run them on threads of their own. They yield it
//! between two polls.
//!
//! ```no_run
//! use std::time::{Duration, Instant};
//!
//! use farcall_rdma::RdmaConfig;
//! use farcall_rdma::probe::raw::{Answering, Asking, Contact, Failed, Operation, Plan, Request};
//!
//! # fn sent_and_received(_: &Request) -> Contact { todo!() }
//! # fn received() -> Request { todo!() }
//! # fn send(_: Contact) {}
//! fn ask() -> Result<(), Failed> {
//!     let plan = Plan { operation: Operation::Read, size: 64, in_flight: 1 };
//!     let mut asking = Asking::open(&RdmaConfig::default(), None, plan)?;
//!     let contact = sent_and_received(&asking.request());
//!     asking.connect(&contact)?;
//!     let end = Instant::now() + Duration::from_secs(1);
//!     asking.run(|begun, ended| {
//!         println!("{:?}", ended - begun);
//!         ended < end
//!     })
//! }
//!
//! fn answer() -> Result<(), Failed> {
//!     let mut answering = Answering::open(&RdmaConfig::default(), None, None, &received())?;
//!     send(answering.contact());
//!     let end = Instant::now() + Duration::from_secs(2);
//!     answering.answer(|| Instant::now() < end)
//! }
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

cfg_if::cfg_if! {
    if #[cfg(all(target_os = "linux", target_pointer_width = "64"))] {
        mod answering;
        mod asking;
        mod half;

        pub use self::answering::Answering;
        pub use self::asking::Asking;
    } else {
        pub use crate::elsewhere::probe::{Answering, Asking};
    }
}

/// A request to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// SEND of a message, which the other process polls for and sends back. It ends when the message is back.
    Send,
    /// READ of the other process's memory.
    Read,
    /// WRITE to the other process's memory. It ends with its completion, which says that the bytes are there.
    Write,
}

/// The work of two devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The request that is repeated.
    pub operation: Operation,
    /// Bytes of each, at least 1.
    pub size: u32,
    /// Requests at a time, from 1 to [`MOST_IN_FLIGHT`](Self::MOST_IN_FLIGHT). A device has fewer READs under way, mostly 16. The others
    /// wait in its queue.
    pub in_flight: u16,
}

impl Plan {
    /// The most requests at a time.
    pub const MOST_IN_FLIGHT: u16 = 1024;

    /// The most memory that a process registers for a plan, in bytes.
    pub const MOST_MEMORY: u64 = 64 << 20;

    /// Returns the bytes that the answering process registers.
    pub fn memory(&self) -> u64 {
        match self.operation {
            Operation::Send => u64::from(self.slots()) * u64::from(self.size),
            Operation::Read | Operation::Write => self.size.into(),
        }
    }

    /// Returns how many messages have a place in the memory of an end: those to receive, and those that are on their way back.
    fn slots(&self) -> u32 {
        2 * u32::from(self.in_flight)
    }

    /// Checks that a plan keeps to the limits.
    ///
    /// # Errors
    ///
    /// The limit, and how far the plan is from it.
    pub fn check(&self) -> Result<(), Failed> {
        let Self { size, in_flight, .. } = *self;
        if size == 0 || !(1..=Self::MOST_IN_FLIGHT).contains(&in_flight) {
            return Err(Failed(format!(
                "{in_flight} requests of {size} bytes at a time: from 1 to {} of at least 1 byte are possible",
                Self::MOST_IN_FLIGHT
            )));
        }
        if self.memory() > Self::MOST_MEMORY {
            return Err(Failed(format!(
                "{in_flight} requests of {size} bytes at a time take {} MiB of memory, more than {} MiB: choose fewer or shorter ones",
                self.memory().div_ceil(1 << 20),
                Self::MOST_MEMORY >> 20
            )));
        }
        Ok(())
    }
}

/// A queue pair and the memory that goes with it, as one process tells the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    qp_num: u32,
    /// The number of the first packet that it sends.
    psn: u32,
    /// Its port's address.
    gid: [u8; 16],
    /// The kind of the address, by its number in HELLO.
    kind: u8,
    /// How many bits of the address name its network.
    prefix: u8,
    lid: u16,
    /// InfiniBand's code of the port's MTU.
    mtu: u8,
    /// READs that it may have outstanding.
    reads: u8,
    /// READs of the peer that it serves at a time.
    reads_served: u8,
    /// The memory that the peer may use, and the key to it. Zeros: none.
    addr: u64,
    rkey: u32,
}

/// The plan of the asking process, and how its queue pair is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    plan: Plan,
    contact: Contact,
}

/// The reason why devices could not do a plan, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed(String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

impl From<crate::Unavailable> for Failed {
    fn from(unavailable: crate::Unavailable) -> Self {
        Self(format!("{unavailable}; {}", unavailable.remedy()))
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests;
