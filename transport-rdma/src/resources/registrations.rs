//! Memory of applications that is registered with a device. One for each open device.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farcall_core::transport::{Registered as RegisteredMemory, Words};
use tokio::sync::watch;

use super::control::{Control, DropOnControlThread};
use crate::device::{
    Device, ExposeError, Exposure, QueuePair, RegisteredWords, RemoteAccess, SharesWords, Unavailable,
};

/// Registers each region once, however many peers use it, as long as one does.
pub(crate) struct Registrations {
    device: Arc<dyn Device>,
    control: Control,
    /// By the address of the `Arc`'s value, which is nobody else's as long as the registration keeps it, and by whether peers may
    /// change the words.
    known: Mutex<HashMap<(usize, bool), Weak<Registered>>>,
}

/// Words that are registered. Deregistering them blocks.
type Registered = DropOnControlThread<RegisteredWords>;

impl SharesWords for Registered {
    fn words(&self) -> &RegisteredWords {
        self
    }
}

/// Words of this process that links move bytes to and from.
struct Own {
    words: Arc<dyn SharesWords>,
    writable: bool,
    /// The registrations of the device that has them.
    of: Weak<Registrations>,
}

/// Registered words as a window or a transfer keeps them: until nobody can use them through it any more.
#[derive(Debug)]
pub(crate) struct InUse {
    words: Arc<dyn SharesWords>,
    /// Their addresses.
    range: Range<usize>,
    #[expect(dead_code, reason = "it is dropped with the words")]
    in_effect: watch::Sender<()>,
}

impl InUse {
    pub(crate) fn new(words: Arc<dyn SharesWords>, in_effect: watch::Sender<()>) -> Self {
        Self { range: words.range(), words, in_effect }
    }

    /// Returns a part of the words. `None`: they are fewer.
    pub(crate) fn of_part(
        words: Arc<dyn SharesWords>,
        part: &Range<usize>,
        in_effect: watch::Sender<()>,
    ) -> Option<Self> {
        let all = words.range();
        let range = all.start + part.start..all.start + part.end;
        (part.start <= part.end && part.end <= all.len()).then_some(Self { words, range, in_effect })
    }

    /// Takes a window for the words, a new one if none is free. `None`: there are no words.
    pub(crate) fn expose(
        self,
        qp: &dyn QueuePair,
        access: RemoteAccess,
    ) -> Result<Option<Exposure>, Unavailable> {
        let words = Arc::new(self);
        loop {
            match qp.expose_words(Arc::clone(&words) as _, access) {
                Ok(exposure) => return Ok(Some(exposure)),
                Err(ExposeError::NoWindow) => qp.alloc_windows(1)?,
                Err(ExposeError::NotInArena | ExposeError::Refused(_)) => return Ok(None),
            }
        }
    }
}

impl SharesWords for InUse {
    fn words(&self) -> &RegisteredWords {
        self.words.words()
    }

    fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Registrations {
    pub(crate) fn new(device: Arc<dyn Device>, control: Control) -> Arc<Self> {
        Arc::new(Self { device, control, known: Mutex::default() })
    }

    /// Registers words, if they are not. Blocks for as long as it takes the kernel to pin them.
    pub(crate) fn register(
        &self,
        words: &Words,
        writable: bool,
    ) -> Result<Arc<dyn SharesWords>, Unavailable> {
        let key = (Arc::as_ptr(words).cast::<()>() as usize, writable);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(registered) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(registered);
        }
        known.retain(|_, registered| registered.strong_count() > 0);
        let registered = Arc::new(self.device.add_words(Arc::clone(words), writable)?);
        let registered = Arc::new(DropOnControlThread::new(registered, self.control.clone()));
        known.insert(key, Arc::downgrade(&registered));
        Ok(registered)
    }
}

impl Registrations {
    /// Registers words for links of this device to use. Blocks like [`register`](Self::register).
    pub(crate) fn register_own(
        self: &Arc<Self>,
        words: &Words,
        writable: bool,
    ) -> Result<RegisteredMemory, Unavailable> {
        let words = self.register(words, writable)?;
        Ok(Arc::new(Own { words, writable, of: Arc::downgrade(self) }))
    }

    /// Returns the words, if this device has registered them, and may change them if it `must_change`.
    pub(crate) fn own(
        self: &Arc<Self>,
        registered: &RegisteredMemory,
        must_change: bool,
    ) -> Option<Arc<dyn SharesWords>> {
        let own = registered.downcast_ref::<Own>()?;
        let serves = ptr::eq(own.of.as_ptr(), Arc::as_ptr(self)) && (own.writable || !must_change);
        serves.then(|| Arc::clone(&own.words))
    }
}

impl fmt::Debug for Registrations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registrations")
    }
}
