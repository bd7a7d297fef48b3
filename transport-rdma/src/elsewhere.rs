//! The stand-in for RDMA on platforms without verbs: there is no device, and everything says so.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use farcall_core::region::Exportable;
use farcall_core::transport::{self, Attempt, BoxFuture, Candidate, Upgrade};

use crate::{DeviceStats, RdmaConfig, Unavailable};

/// Memory that is registered with an RDMA device. There is none on this platform.
#[derive(Debug)]
pub struct Registered(Infallible);

impl Registered {
    /// `None`.
    pub fn take(_: usize) -> Option<Self> {
        None
    }

    /// Returns the part that was written, to be sent.
    pub fn freeze(self, _: usize) -> Bytes {
        match self.0 {}
    }

    /// Returns the memory as words, which a device may write to.
    pub fn share(self) -> Arc<SharedExtent> {
        match self.0 {}
    }

    /// Returns the memory, if nobody else has the words.
    ///
    /// # Errors
    ///
    /// The words, if somebody has.
    pub fn unshare(words: Arc<SharedExtent>) -> Result<Self, Arc<SharedExtent>> {
        match words.0 {}
    }
}

/// Registered memory as words. There is none on this platform.
#[derive(Debug)]
pub struct SharedExtent(Infallible);

impl AsRef<[AtomicU64]> for SharedExtent {
    fn as_ref(&self) -> &[AtomicU64] {
        match self.0 {}
    }
}

impl Exportable for SharedExtent {}

impl Deref for Registered {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.0 {}
    }
}

impl DerefMut for Registered {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self.0 {}
    }
}

/// Words in huge pages, or in a file. There are none on this platform.
#[derive(Debug)]
pub struct MappedWords(Infallible);

impl MappedWords {
    /// Returns the error that this platform has none.
    pub fn zeroed(_: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the error that this platform has none.
    pub fn of_file(_: &File) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Does nothing.
    pub fn sync(&self) -> io::Result<()> {
        match self.0 {}
    }
}

impl AsRef<[AtomicU64]> for MappedWords {
    fn as_ref(&self) -> &[AtomicU64] {
        match self.0 {}
    }
}

impl Exportable for MappedWords {}

/// The look at a machine that has no RDMA.
pub mod probe {
    use std::convert::Infallible;
    use std::fmt;
    use std::net::IpAddr;
    use std::path::PathBuf;
    use std::time::Instant;

    use crate::probe::raw::{Contact, Failed, Plan, Request};
    use crate::probe::{Finding, Probe, Report};
    use crate::{RdmaConfig, Unavailable};

    /// Returns the error that this platform has no RDMA.
    pub fn probe(_config: &RdmaConfig, _local: Option<IpAddr>) -> Result<Probe, Unavailable> {
        Err(Unavailable::UnsupportedPlatform)
    }

    /// Returns the finding that this platform has no RDMA.
    pub fn examine(_machine: &Machine, _config: &RdmaConfig) -> Report {
        let findings = vec![Finding::from(&Unavailable::UnsupportedPlatform)];
        Report { devices: Vec::new(), chosen: None, tried: Vec::new(), findings }
    }

    /// Does nothing: the report says that this platform has no RDMA.
    pub fn trial(_report: &mut Report, _config: &RdmaConfig) {}

    /// The end that asks. There is none on this platform.
    #[derive(Debug)]
    pub struct Asking(Infallible);

    impl Asking {
        /// Returns the error that this platform has no RDMA.
        pub fn open(_config: &RdmaConfig, _local: Option<IpAddr>, _plan: Plan) -> Result<Self, Failed> {
            Err(Unavailable::UnsupportedPlatform.into())
        }

        /// Returns what the other process needs.
        pub fn request(&self) -> Request {
            match self.0 {}
        }

        /// Returns the device in words.
        pub fn name(&self) -> String {
            match self.0 {}
        }

        /// Connects.
        pub fn connect(&mut self, _answering: &Contact) -> Result<(), Failed> {
            match self.0 {}
        }

        /// Has the device work.
        pub fn run(&mut self, _ended: impl FnMut(Instant, Instant) -> bool) -> Result<(), Failed> {
            match self.0 {}
        }
    }

    /// The end that answers. There is none on this platform.
    #[derive(Debug)]
    pub struct Answering(Infallible);

    impl Answering {
        /// Returns the error that this platform has no RDMA.
        pub fn open(
            _config: &RdmaConfig,
            _local: Option<IpAddr>,
            _peer: Option<IpAddr>,
            _request: &Request,
        ) -> Result<Self, Failed> {
            Err(Unavailable::UnsupportedPlatform.into())
        }

        /// Returns what the other process needs.
        pub fn contact(&self) -> Contact {
            match self.0 {}
        }

        /// Returns the device in words.
        pub fn name(&self) -> String {
            match self.0 {}
        }

        /// Answers.
        pub fn answer(&mut self, _is_wanted: impl FnMut() -> bool) -> Result<(), Failed> {
            match self.0 {}
        }
    }

    /// The files and programs of a machine, which nobody looks at on this platform.
    #[derive(Debug, Default)]
    pub struct Machine(());

    impl Machine {
        /// Returns the machine that this process runs on.
        pub fn this() -> Self {
            Self(())
        }

        /// Returns a machine whose files lie below a directory.
        pub fn below(_root: impl Into<PathBuf>) -> Self {
            Self(())
        }

        /// Returns a machine that answers as another one did.
        ///
        /// # Errors
        ///
        /// None, on this platform.
        pub fn recorded(_recording: &str) -> Result<Self, MalformedRecording> {
            Ok(Self(()))
        }

        /// Returns the machine.
        #[must_use]
        pub fn remembering(self) -> Self {
            self
        }

        /// Returns no text: nothing was asked.
        pub fn recording(&self) -> String {
            String::new()
        }

        /// Whether it is this machine.
        pub fn is_this(&self) -> bool {
            true
        }
    }

    /// A line that is none of a recording. There is none on this platform.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MalformedRecording(Infallible);

    impl fmt::Display for MalformedRecording {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {}
        }
    }

    impl std::error::Error for MalformedRecording {}

    /// The counters of devices, of which there are none on this platform.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Counters(());

    impl Counters {
        /// Reads nothing.
        pub fn read(_machine: &Machine, _config: &RdmaConfig) -> Self {
            Self(())
        }

        /// Returns nothing.
        pub fn not_zero(&self) -> Vec<Finding> {
            Vec::new()
        }

        /// Returns nothing.
        pub fn grown_since(&self, _earlier: &Self) -> Vec<Finding> {
            Vec::new()
        }
    }
}

type Offered = Result<(Box<dyn Candidate>, Bytes), transport::Unavailable>;

/// RDMA, for the sessions of a channel or server. There is none on this platform.
#[derive(Debug, Clone)]
pub struct RdmaUpgrade(());

impl RdmaUpgrade {
    /// RDMA through this machine's devices, of which there are none.
    pub fn new(_config: RdmaConfig) -> Self {
        Self(())
    }
}

impl Upgrade for RdmaUpgrade {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn announce(&self) -> BoxFuture<Result<Bytes, transport::Unavailable>> {
        Box::pin(async { Err(unsupported()) })
    }

    fn offer(&self, _announced: Bytes, _attempt: &Attempt) -> BoxFuture<Offered> {
        Box::pin(async { Err(unsupported()) })
    }

    fn answer(&self, _epoch: u32, _offer: Bytes, _attempt: &Attempt) -> BoxFuture<Offered> {
        Box::pin(async { Err(unsupported()) })
    }
}

fn unsupported() -> transport::Unavailable {
    Unavailable::UnsupportedPlatform.into()
}

/// Returns the work done on each device that this process has used: none, on this platform.
pub fn stats() -> Vec<DeviceStats> {
    Vec::new()
}
