//! An upgrade to further in-memory links, with faults at any step.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use farcall_core::config::{Limits, Policy};
use farcall_core::settings::Settings;
use farcall_core::transport::{Attempt, BoxFuture, Candidate, Link, Reason, Unavailable, Upgrade, memory};

use super::tap::Tap;
use super::{Setup, plain, reading, setup};

#[derive(Debug, Default)]
pub(crate) struct Fabric {
    waiting: Mutex<HashMap<u32, Arc<dyn Link>>>,
    /// The client's ends.
    pub(crate) links: Mutex<Vec<Arc<Tap>>>,
    next: AtomicU32,
    pub(crate) refuse_offer: AtomicBool,
    pub(crate) refuse_answer: AtomicBool,
    pub(crate) lose_probe: AtomicBool,
    /// The data in HELLO.
    announced: Bytes,
    /// Memory that its links' ends can read, if set.
    pub(crate) memory: Option<Arc<reading::Shared>>,
}

impl Fabric {
    /// Returns a fabric whose links' ends can read each other's memory.
    pub(crate) fn readable(memory: &Arc<reading::Shared>) -> Self {
        Self { memory: Some(memory.clone()), ..Self::default() }
    }

    /// Returns a fabric that announces this data in HELLO.
    pub(crate) fn announcing(data: Vec<u8>) -> Self {
        Self { announced: data.into(), ..Self::default() }
    }

    /// Registers an end of a link for the OFFER with the returned data.
    pub(crate) fn place(&self, link: Arc<dyn Link>) -> Bytes {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiting.lock().unwrap().insert(key, link);
        key.to_le_bytes().to_vec().into()
    }
}

#[derive(Debug)]
pub(crate) struct ToFabric(pub(crate) Arc<Fabric>);

struct Proven(Arc<Fabric>, Arc<dyn Link>);

impl Candidate for Proven {
    fn complete(self: Box<Self>, _: u32, _: Option<Bytes>) -> BoxFuture<Result<Arc<dyn Link>, Unavailable>> {
        Box::pin(async move {
            if self.0.lose_probe.load(Ordering::Relaxed) {
                return Err(Unavailable::new(Reason::ProbeLost, "as the test wants it"));
            }
            Ok(self.1)
        })
    }
}

type PreparedUpgrade = BoxFuture<Result<(Box<dyn Candidate>, Bytes), Unavailable>>;

impl Upgrade for ToFabric {
    fn name(&self) -> &'static str {
        "fabric"
    }

    fn announce(&self) -> BoxFuture<Result<Bytes, Unavailable>> {
        let announced = self.0.announced.clone();
        Box::pin(async { Ok(announced) })
    }

    fn offer(&self, _: Bytes, _: &Attempt) -> PreparedUpgrade {
        let fabric = self.0.clone();
        Box::pin(async move {
            if fabric.refuse_offer.load(Ordering::Relaxed) {
                return Err(Unavailable::new(Reason::Memlock, "as the test wants it"));
            }
            let (near, far) = memory::pair();
            let near = Tap::new(near);
            let key = fabric.next.fetch_add(1, Ordering::Relaxed);
            fabric.links.lock().unwrap().push(near.clone());
            let ends: [Arc<dyn Link>; 2] = [near, far];
            let [near, far] = match &fabric.memory {
                Some(shared) => reading::over(ends, shared),
                None => ends,
            };
            fabric.waiting.lock().unwrap().insert(key, far);
            let proven: Box<dyn Candidate> = Box::new(Proven(fabric.clone(), near));
            Ok((proven, key.to_le_bytes().to_vec().into()))
        })
    }

    fn answer(&self, _: u32, offer: Bytes, _: &Attempt) -> PreparedUpgrade {
        let fabric = self.0.clone();
        Box::pin(async move {
            if fabric.refuse_answer.load(Ordering::Relaxed) {
                return Err(Unavailable::new(Reason::NoCredit, "as the test wants it"));
            }
            let key = offer.first_chunk().map(|key| u32::from_le_bytes(*key));
            let far = key.and_then(|key| fabric.waiting.lock().unwrap().remove(&key));
            let far = far.ok_or_else(|| Unavailable::new(Reason::Other, "no link has this key"))?;
            let proven: Box<dyn Candidate> = Box::new(Proven(fabric.clone(), far));
            Ok((proven, Bytes::new()))
        })
    }
}

pub(crate) fn settings(fabric: &Arc<Fabric>, policy: Policy) -> Settings {
    let upgrade = Ok(Arc::new(ToFabric(fabric.clone())) as _);
    Settings { policy, upgrade, ..plain(Limits::default()) }
}

/// Returns a client with this policy and a server with policy `auto`.
pub(crate) fn with_fabric(fabric: &Arc<Fabric>, policy: Policy) -> Setup {
    setup(settings(fabric, policy), settings(fabric, Policy::Auto))
}
