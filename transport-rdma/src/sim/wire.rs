//! Somebody on the network between the machines.

use std::fmt;

/// A thing that crosses the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crossing {
    /// A message that is sent.
    Message,
    /// The answer to a READ.
    Read,
    /// The answer to an atomic operation: the number before it.
    Atomic,
}

/// Sees everything that crosses, with the queue pair that it goes to, and may change it.
type Observer = Box<dyn FnMut(Crossing, u32, &mut Vec<u8>) + Send>;

/// The network, with or without somebody on it.
#[derive(Default)]
pub(super) struct Wire(Option<Observer>);

impl Wire {
    pub(super) fn tap(&mut self, observer: Observer) {
        self.0 = Some(observer);
    }

    /// Returns the bytes that arrive at a queue pair, if somebody has seen them.
    pub(super) fn cross(&mut self, crossing: Crossing, to: u32, parts: &[&[u8]]) -> Option<Vec<u8>> {
        let observer = self.0.as_mut()?;
        let mut bytes = parts.concat();
        observer(crossing, to, &mut bytes);
        Some(bytes)
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wire").field(&self.0.is_some()).finish()
    }
}
