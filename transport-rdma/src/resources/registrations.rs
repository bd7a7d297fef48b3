//! Memory of applications that is registered with a device. One for each open device.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farcall_core::transport::{DeviceId, Registered, Words};

use super::control::{Control, DropOnControlThread};
use crate::device::{
    Device, ExposeError, Exposure, QueuePair, RegisteredWords, RemoteAccess, SharesWords, Unavailable,
};

/// Registers each region once, however many peers use it, as long as one does. A region that this process begins to use itself when
/// peers may only read it is registered once more.
pub(crate) struct Registrations {
    id: DeviceId,
    device: Arc<dyn Device>,
    control: Control,
    /// By the address of the `Arc`'s value, which is nobody else's as long as the registration keeps it, and by whether peers may
    /// change the words.
    known: Mutex<HashMap<(usize, bool), Entry>>,
}

/// Locked while the words are registered.
type Entry = Arc<Mutex<Weak<KeptWords>>>;

/// Words that are registered. Deregistering them blocks.
type KeptWords = DropOnControlThread<RegisteredWords>;

impl SharesWords for KeptWords {
    fn words(&self) -> &RegisteredWords {
        self
    }
}

/// Words of this process that links move bytes to and from.
#[derive(Debug)]
struct MovableWords {
    words: Arc<dyn SharesWords>,
    /// The registrations of the device that has them.
    of: Weak<Registrations>,
}

impl Registered for MovableWords {
    fn is_over(&self) -> bool {
        self.of.strong_count() == 0
    }
}

/// Registered words as a window or a transfer keeps them: until nobody can use them through it any more.
#[derive(Debug)]
pub(crate) struct UsedWords {
    words: Arc<dyn SharesWords>,
    /// Their addresses.
    range: Range<usize>,
    #[expect(dead_code, reason = "it is dropped with the words")]
    in_effect: Box<dyn Any + Send + Sync>,
}

impl UsedWords {
    pub(crate) fn new(words: Arc<dyn SharesWords>, in_effect: Box<dyn Any + Send + Sync>) -> Self {
        Self { range: words.range(), words, in_effect }
    }

    /// Returns a part of the words. `None`: they are fewer.
    pub(crate) fn of_part(
        words: Arc<dyn SharesWords>,
        part: &Range<usize>,
        in_effect: Box<dyn Any + Send + Sync>,
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

impl SharesWords for UsedWords {
    fn words(&self) -> &RegisteredWords {
        self.words.words()
    }

    fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Registrations {
    pub(crate) fn new(device: Arc<dyn Device>, control: Control) -> Arc<Self> {
        Arc::new(Self { id: DeviceId::unique(), device, control, known: Mutex::default() })
    }

    /// Returns the id of the open device.
    pub(crate) fn id(&self) -> DeviceId {
        self.id
    }

    /// Registers words for peers, if they are not. Blocks for as long as it takes the kernel to pin them.
    pub(crate) fn register(
        &self,
        words: &Words,
        writable: bool,
    ) -> Result<Arc<dyn SharesWords>, Unavailable> {
        let key = Arc::as_ptr(words).cast::<()>() as usize;
        // To pin them once more would count them twice against the limit on locked memory.
        if !writable && let Some(registered) = find(&self.entry((key, true))) {
            return Ok(registered);
        }
        let entry = self.entry((key, writable));
        let mut entry = entry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(registered) = entry.upgrade() {
            return Ok(registered);
        }
        let registered = Arc::new(self.device.add_words(Arc::clone(words), writable)?);
        let registered = Arc::new(DropOnControlThread::new(registered, self.control.clone()));
        *entry = Arc::downgrade(&registered);
        Ok(registered)
    }

    /// Registers words for the links of this device to move bytes there and back. Blocks like [`register`](Self::register).
    pub(crate) fn register_to_move(
        self: &Arc<Self>,
        words: &Words,
    ) -> Result<Arc<dyn Registered>, Unavailable> {
        let words = self.register(words, true)?;
        Ok(Arc::new(MovableWords { words, of: Arc::downgrade(self) }))
    }

    /// Returns the words, if this device has registered them to move bytes.
    pub(crate) fn words(self: &Arc<Self>, registered: &dyn Registered) -> Option<Arc<dyn SharesWords>> {
        let any: &dyn Any = registered;
        let movable = any.downcast_ref::<MovableWords>()?;
        ptr::eq(movable.of.as_ptr(), Arc::as_ptr(self)).then(|| Arc::clone(&movable.words))
    }

    /// Returns the entry of this key. It has a lock of its own, so that nobody waits for the registration of other words.
    fn entry(&self, key: (usize, bool)) -> Entry {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody has an entry that only the table has.
        known.retain(|_, entry| Arc::strong_count(entry) > 1 || find(entry).is_some());
        Arc::clone(known.entry(key).or_default())
    }
}

/// Returns the words of an entry. Waits for their registration if that is under way.
fn find(entry: &Entry) -> Option<Arc<KeptWords>> {
    entry.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
}

impl fmt::Debug for Registrations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registrations")
    }
}
