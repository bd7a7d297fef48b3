//! A host in this process, as what a caller connects to.

#![allow(dead_code, clippy::allow_attributes, reason = "each test uses a part of it")]

use std::net::IpAddr;
use std::sync::Arc;

use farcall_core::client::Connector;
use farcall_core::config::{Limits, Liveness, Policy};
use farcall_core::server::ServerCore;
use farcall_core::settings::Settings;
use farcall_core::status::Result;
use farcall_core::transport::{
    BoxFuture, Cipher, Counters, Description, FrameSource, Key, Link, LinkHandler, Reason, Secret,
    Unavailable, memory,
};
use farcall_rdma::testing::sim::{Fabric, SimHost};
use farcall_rdma::{RdmaConfig, RdmaUpgrade};

pub(crate) struct Near {
    pub(crate) host: Arc<ServerCore>,
    /// The cipher that the stream link's TLS session has agreed on. `None`: it is not encrypted.
    pub(crate) cipher: Option<Cipher>,
}

impl Connector for Near {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let (near, far) = memory::pair();
        let [near, far] = match self.cipher {
            None => [near as Arc<dyn Link>, far],
            Some(cipher) => [near, far].map(|link| Arc::new(Encrypted { link, cipher }) as Arc<dyn Link>),
        };
        self.host.serve(far);
        Box::pin(async { Ok(near) })
    }

    fn target(&self) -> String {
        "there".into()
    }
}

/// The settings of the simulated host 10.0.0.`n`.
pub(crate) fn settings(fabric: &Arc<Fabric>, n: u8, policy: Policy, config: RdmaConfig) -> Settings {
    settings_of(fabric.host(IpAddr::from([10, 0, 0, n])), policy, config)
}

/// The settings of a simulated host.
pub(crate) fn settings_of(host: SimHost, policy: Policy, config: RdmaConfig) -> Settings {
    settings_with(RdmaUpgrade::with_host(Arc::new(host), config), policy)
}

/// The settings with this upgrade.
pub(crate) fn settings_with(upgrade: RdmaUpgrade, policy: Policy) -> Settings {
    let plain = Settings::plain(
        Limits::default(),
        Liveness::default(),
        Unavailable::new(Reason::Disabled, "there is an upgrade"),
    );
    Settings { policy, upgrade: Ok(Arc::new(upgrade)), ..plain }
}

/// The in-memory link as if it were encrypted. Its keys follow each other soon.
#[derive(Debug)]
struct Encrypted {
    link: Arc<dyn Link>,
    cipher: Cipher,
}

impl Link for Encrypted {
    fn description(&self) -> &Description {
        self.link.description()
    }

    fn max_frame(&self) -> usize {
        self.link.max_frame()
    }

    fn start(self: Arc<Self>, handler: Arc<dyn LinkHandler>) {
        self.link.clone().start(handler);
    }

    fn send(&self, source: &mut dyn FrameSource) {
        self.link.send(source);
    }

    fn close(&self) {
        self.link.close();
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }

    fn is_encrypted(&self) -> bool {
        true
    }

    fn secret(&self) -> Result<Arc<dyn Secret>, Unavailable> {
        Ok(Arc::new(Hasty(farcall_tcp::tls::exported(self.cipher, &[7; 32])?)))
    }
}

/// How many texts one key seals here.
pub(crate) const TEXTS_PER_KEY: usize = 1 << 6;

/// A secret whose keys follow each other soon.
#[derive(Debug)]
struct Hasty(Arc<dyn Secret>);

impl Secret for Hasty {
    fn ciphers(&self) -> Vec<Cipher> {
        self.0.ciphers()
    }

    fn key(&self, cipher: Cipher, info: &[u8]) -> Option<Arc<dyn Key>> {
        self.0.key(cipher, info)
    }

    fn texts_per_key_log2(&self) -> u32 {
        TEXTS_PER_KEY.ilog2()
    }
}
