//! A client and an owner of regions, on a simulated network.

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use farcall_core::client::{Connector, RawChannel};
use farcall_core::config::{Limits, Policy};
use farcall_core::region::RemoteMemory;
use farcall_core::server::ServerCore;
use farcall_core::service::Service;
use farcall_core::status::Result;
use farcall_core::transport::{BoxFuture, Cipher, Link, memory};
use farcall_rdma::testing::sim::{Crossing, Fabric, SimHost};
use farcall_rdma::{RdmaConfig, RdmaUpgrade};
use tokio::runtime::Handle;
use tracing::field::Field;
use tracing::span;

use crate::near::{self, Near};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Where the server of a connection runs.
pub(crate) struct Elsewhere {
    pub(crate) host: Arc<ServerCore>,
    pub(crate) runtime: Handle,
}

impl Connector for Elsewhere {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let (near, far) = memory::pair();
        let host = Arc::clone(&self.host);
        self.runtime.spawn(async move { host.serve(far) });
        Box::pin(async { Ok(near as Arc<dyn Link>) })
    }

    fn target(&self) -> String {
        "there".into()
    }
}

/// A client, and a server that exports.
pub(crate) struct Setup {
    pub(crate) fabric: Arc<Fabric>,
    /// How many READs have crossed the network.
    pub(crate) reads: Arc<AtomicUsize>,
    /// How many atomic operations have.
    pub(crate) atomics: Arc<AtomicUsize>,
    pub(crate) channel: RawChannel,
    /// The client's.
    pub(crate) upgrade: RdmaUpgrade,
    pub(crate) host: Arc<ServerCore>,
}

/// The hosts of server and client.
pub(crate) struct Hosts {
    fabric: Arc<Fabric>,
    pub(crate) server: SimHost,
    pub(crate) client: SimHost,
}

impl Hosts {
    pub(crate) fn new() -> Self {
        let fabric = Fabric::new(1);
        let [server, client] = [1, 2].map(|n| fabric.host([10, 0, 0, n].into()));
        Self { fabric, server, client }
    }
}

impl Setup {
    pub(crate) fn new(cipher: Option<Cipher>) -> Self {
        Self::with(|host| Near { host, cipher })
    }

    pub(crate) fn with<C: Connector>(connector: impl FnOnce(Arc<ServerCore>) -> C) -> Self {
        Self::on(&Hosts::new(), Vec::new(), connector)
    }

    /// A server with services, on these hosts.
    pub(crate) fn on<C: Connector>(
        hosts: &Hosts,
        services: Vec<Arc<dyn Service>>,
        connector: impl FnOnce(Arc<ServerCore>) -> C,
    ) -> Self {
        Self::limited(hosts, services, |_| (), connector)
    }

    /// A server with limits.
    pub(crate) fn limited<C: Connector>(
        hosts: &Hosts,
        services: Vec<Arc<dyn Service>>,
        limit: impl FnOnce(&mut Limits),
        connector: impl FnOnce(Arc<ServerCore>) -> C,
    ) -> Self {
        let config = RdmaConfig::default;
        let mut settings = near::settings_of(hosts.server.clone(), Policy::Auto, config());
        limit(&mut settings.limits);
        let host = ServerCore::new(services, settings).unwrap();
        let upgrade = RdmaUpgrade::with_host(Arc::new(hosts.client.clone()), config());
        let settings = near::settings_with(upgrade.clone(), Policy::Auto);
        let channel = RawChannel::new(connector(Arc::clone(&host)), settings);
        let fabric = Arc::clone(&hosts.fabric);
        let (reads, atomics) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let seen = (Arc::clone(&reads), Arc::clone(&atomics));
        fabric.tap(move |crossing, _, _| {
            seen.0.fetch_add(usize::from(crossing == Crossing::Read), Ordering::Relaxed);
            seen.1.fetch_add(usize::from(crossing == Crossing::Atomic), Ordering::Relaxed);
        });
        Self { fabric, reads, atomics, channel, upgrade, host }
    }

    /// Reads a region until a READ does it. So short a read takes none if the owner does it.
    pub(crate) async fn until_direct(&self, memory: &RemoteMemory) {
        let direct = async {
            loop {
                let before = self.reads.load(Ordering::Relaxed);
                memory.read(..8).await.unwrap();
                if self.reads.load(Ordering::Relaxed) > before {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, direct).await.expect("no read is direct");
    }

    /// Loads a number until the owner's device does it.
    pub(crate) async fn until_counted(&self, memory: &RemoteMemory) {
        let direct = async {
            loop {
                let before = self.atomics.load(Ordering::Relaxed);
                memory.fetch_add(0, 0).await.unwrap();
                if self.atomics.load(Ordering::Relaxed) > before {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, direct).await.expect("no operation is direct");
    }

    pub(crate) async fn until(&self, condition: impl Fn(&Self) -> bool) {
        let met = async {
            while !condition(self) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, met).await.expect("it takes too long");
    }

    /// How many windows are bound.
    pub(crate) fn bound(&self) -> usize {
        self.fabric.windows().1
    }
}

pub(crate) fn words(len: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..len as u64 / 8).map(AtomicU64::new).collect())
}

pub(crate) fn bytes(words: &[AtomicU64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
}

/// A thread with a runtime.
pub(crate) fn runtime() -> (Handle, JoinHandle<()>, tokio::sync::oneshot::Sender<()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let (handle, (stop, stopped)) = (runtime.handle().clone(), tokio::sync::oneshot::channel());
    let thread = std::thread::spawn(move || drop(runtime.block_on(stopped)));
    (handle, thread, stop)
}

/// Blocks the thread of a runtime, until the result is dropped.
pub(crate) fn block(runtime: &Handle) -> mpsc::Sender<()> {
    let (release, blocked) = mpsc::channel::<()>();
    let (begun, has_begun) = mpsc::channel();
    runtime.spawn(async move {
        begun.send(()).unwrap();
        let _ = blocked.recv();
    });
    has_begun.recv().unwrap();
    release
}

/// The log of this thread, while the guard lives.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<String>>);

impl Log {
    pub(crate) fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        (log.clone(), tracing::subscriber::set_default(log))
    }

    pub(crate) fn said(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut said = self.0.lock().unwrap();
        event.record(&mut |field: &Field, value: &dyn Debug| writeln!(said, "{field}: {value:?}").unwrap());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
