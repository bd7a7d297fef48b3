//! Memory of applications that is registered with a device. One for each open device.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farcall_core::transport::Words;
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

/// Registered words as a window keeps them: until nobody can use them through it any more.
#[derive(Debug)]
pub(crate) struct Granted {
    words: Arc<dyn SharesWords>,
    #[expect(dead_code, reason = "it is dropped with the words")]
    in_effect: watch::Sender<()>,
}

impl Granted {
    pub(crate) fn new(words: Arc<dyn SharesWords>, in_effect: watch::Sender<()>) -> Self {
        Self { words, in_effect }
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

impl SharesWords for Granted {
    fn words(&self) -> &RegisteredWords {
        self.words.words()
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

impl fmt::Debug for Registrations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registrations")
    }
}
