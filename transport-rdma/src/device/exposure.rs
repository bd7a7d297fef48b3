//! Memory that a peer may use for a while.

/// The rights of a peer to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAccess {
    /// READ it.
    pub read: bool,
    /// WRITE to it.
    pub write: bool,
    /// Have the device change numbers in it.
    pub atomics: bool,
}

impl RemoteAccess {
    /// The peer may READ.
    pub const READ: Self = Self { read: true, write: false, atomics: false };

    /// The peer may WRITE.
    pub const WRITE: Self = Self { read: false, write: true, atomics: false };

    /// Whether the device must be able to write to the memory for that.
    pub(crate) fn changes(self) -> bool {
        self.write || self.atomics
    }
}

/// Memory for which a window was taken so that the peer can use it, and what the peer has to be told for that. It can be
/// used from when the bind was posted until the invalidation has run, through this one queue pair.
///
/// A name, not an owner: one whose exposure is over does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exposure {
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) rkey: u32,
    pub(crate) window: usize,
    pub(crate) generation: u64,
    pub(crate) access: RemoteAccess,
}

impl Exposure {
    /// The address of the first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// How many bytes.
    #[cfg_attr(
        feature = "testing",
        expect(clippy::len_without_is_empty, reason = "no window is taken for no bytes")
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The key that the peer has to show.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Returns what the peer may do.
    pub(crate) fn access(&self) -> RemoteAccess {
        self.access
    }

    /// Returns the index of the queue pair's window, in the order in which windows were added.
    pub(crate) fn window(&self) -> usize {
        self.window
    }
}
