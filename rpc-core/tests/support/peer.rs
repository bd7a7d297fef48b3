//! Servers that a test plays.

use std::sync::{Arc, Mutex};

use farcall_core::client::{Connector, RawChannel};
use farcall_core::config::Limits;
use farcall_core::settings::Settings;
use farcall_core::status::Result;
use farcall_core::transport::{BoxFuture, Link, memory};
use tokio::sync::mpsc;

use super::tap::Tap;

/// A server that the test plays, on any number of connections.
pub(crate) struct Played {
    pair: fn() -> Pair,
    far: mpsc::UnboundedSender<Arc<dyn Link>>,
    taps: Arc<Mutex<Vec<Arc<Tap>>>>,
}

/// The two ends of a link.
pub(crate) type Pair = (Arc<dyn Link>, Arc<dyn Link>);

impl Connector for Played {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let (near, far) = (self.pair)();
        self.far.send(far).unwrap();
        let tap = Tap::new(near);
        self.taps.lock().unwrap().push(tap.clone());
        Box::pin(async { Ok(tap as Arc<dyn Link>) })
    }

    fn target(&self) -> String {
        "a server of this test".into()
    }
}

/// A caller, the servers' ends of its links, and taps of its own ends.
pub(crate) type Play = (RawChannel, mpsc::UnboundedReceiver<Arc<dyn Link>>, Arc<Mutex<Vec<Arc<Tap>>>>);

pub(crate) fn played() -> Play {
    played_by(memory::pair)
}

/// Like [`played`], with these links.
pub(crate) fn played_by(pair: fn() -> Pair) -> Play {
    played_with(pair, Limits::default())
}

/// Like [`played_by`], for a caller with these limits.
pub(crate) fn played_with(pair: fn() -> Pair, limits: Limits) -> Play {
    played_to(pair, super::plain(limits))
}

/// Like [`played_by`], for a caller with these settings.
pub(crate) fn played_to(pair: fn() -> Pair, settings: Settings) -> Play {
    let (far, links) = mpsc::unbounded_channel();
    let taps = Arc::<Mutex<Vec<_>>>::default();
    let caller = RawChannel::new(Played { pair, far, taps: taps.clone() }, settings);
    (caller, links, taps)
}
