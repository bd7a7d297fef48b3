//! Reasons why a session does not use a better transport.

use std::fmt;

/// The reason why RDMA is not used. The numbers are from WIRE.md section 4.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Reason {
    /// The configuration says TCP.
    Disabled = 1,
    /// libibverbs is not installed.
    LibraryAbsent = 2,
    /// libibverbs lacks a function that farcall needs.
    LibraryTooOld = 3,
    /// There is no RDMA device, or none of the configured name.
    NoDevice = 4,
    /// The device file can't be opened.
    NoPermission = 5,
    /// The device's port is not active.
    PortDown = 6,
    /// The port has no usable address.
    NoGid = 7,
    /// The limit on locked memory is too low.
    Memlock = 8,
    /// The peer does not offer RDMA and does not say why.
    PeerWithout = 9,
    /// The queue pairs were connected, but a test message did not arrive.
    ProbeLost = 10,
    /// The session is encrypted, and RDMA can't be encrypted here.
    Encrypted = 11,
    /// Not 64-bit Linux, or built without RDMA.
    UnsupportedPlatform = 12,
    /// All receive buffers are promised to other peers.
    NoCredit = 13,
    /// The device or its driver refused.
    Device = 14,
    /// The queue pair failed after it had worked.
    QueuePair = 15,
    /// This side is shutting down.
    ShuttingDown = 16,
    /// Setting it up took too long, on this side or the peer's.
    TimedOut = 17,
    /// A setting can't be used on this machine.
    Setting = 18,
    /// A reason that this version has no name for.
    Other = 255,
}

impl Reason {
    /// Returns the reason with this number. 0 means no reason.
    pub fn from_wire(number: u8) -> Option<Self> {
        Some(match number {
            0 => return None,
            1 => Self::Disabled,
            2 => Self::LibraryAbsent,
            3 => Self::LibraryTooOld,
            4 => Self::NoDevice,
            5 => Self::NoPermission,
            6 => Self::PortDown,
            7 => Self::NoGid,
            8 => Self::Memlock,
            9 => Self::PeerWithout,
            10 => Self::ProbeLost,
            11 => Self::Encrypted,
            12 => Self::UnsupportedPlatform,
            13 => Self::NoCredit,
            14 => Self::Device,
            15 => Self::QueuePair,
            16 => Self::ShuttingDown,
            17 => Self::TimedOut,
            18 => Self::Setting,
            _ => Self::Other,
        })
    }

    /// Whether this reason, announced in a HELLO, may pass later.
    pub(crate) fn may_pass(self) -> bool {
        matches!(self, Self::PortDown | Self::NoGid | Self::TimedOut)
    }

    /// Returns the reason's name: `no-device`, for example.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::LibraryAbsent => "library-absent",
            Self::LibraryTooOld => "library-too-old",
            Self::NoDevice => "no-device",
            Self::NoPermission => "no-permission",
            Self::PortDown => "port-down",
            Self::NoGid => "no-address",
            Self::Memlock => "memlock",
            Self::PeerWithout => "peer-without",
            Self::ProbeLost => "probe-lost",
            Self::Encrypted => "encrypted",
            Self::UnsupportedPlatform => "unsupported-platform",
            Self::NoCredit => "no-credit",
            Self::Device => "device-refused",
            Self::QueuePair => "queue-pair",
            Self::ShuttingDown => "shutting-down",
            Self::TimedOut => "timed-out",
            Self::Setting => "setting",
            Self::Other => "other",
        }
    }

    /// Returns the reason in a few words.
    pub fn summary(self) -> &'static str {
        match self {
            Self::Disabled => "switched off by configuration",
            Self::LibraryAbsent => "libibverbs is not installed",
            Self::LibraryTooOld => "libibverbs is too old",
            Self::NoDevice => "no RDMA device",
            Self::NoPermission => "no permission to use the RDMA device",
            Self::PortDown => "the RDMA port is down",
            Self::NoGid => "the RDMA port has no usable address (GID)",
            Self::Memlock => "the limit on locked memory is too low",
            Self::PeerWithout => "the peer has no RDMA",
            Self::ProbeLost => "the RDMA probe was lost",
            Self::Encrypted => "the session is encrypted, and RDMA can't be",
            Self::UnsupportedPlatform => "unsupported platform",
            Self::NoCredit => "no receive buffers left",
            Self::Device => "the RDMA device refused",
            Self::QueuePair => "the queue pair failed",
            Self::ShuttingDown => "shutting down",
            Self::TimedOut => "setting RDMA up took too long",
            Self::Setting => "a setting can't be used on this machine",
            Self::Other => "for a reason that this version does not know",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.summary())
    }
}

/// A [`Reason`] with what was observed and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The reason.
    pub reason: Reason,
    /// The observed problem, and what to do. May be empty.
    pub detail: String,
    /// Whether the peer is the side that can't.
    pub at_peer: bool,
}

impl Unavailable {
    /// Returns a reason on this side.
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), at_peer: false }
    }

    /// Returns a reason on the peer's side.
    pub fn at_peer(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), at_peer: true }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at_peer {
            f.write_str("at the peer: ")?;
        }
        write!(f, "{}", self.reason)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for Unavailable {}
