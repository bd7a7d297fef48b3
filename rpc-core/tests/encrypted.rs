//! A session on an encrypted link is not moved to a plain one.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::sync::Arc;

use bytes::Bytes;
use farcall_core::class::TrafficClass;
use farcall_core::client::{Connector, RawChannel};
use farcall_core::config::{Calls, Limits, Liveness, Policy};
use farcall_core::server::ServerCore;
use farcall_core::settings::Settings;
use farcall_core::status::{Code, Executed, Result};
use farcall_core::transport::{
    BoxFuture, Counters, Description, FrameSource, Link, LinkHandler, PreparedUpgrade, Reason, Unavailable,
    Upgrade, memory,
};

/// The in-memory link, pretending to be encrypted.
#[derive(Debug)]
struct Encrypted(Arc<dyn Link>);

impl Link for Encrypted {
    fn description(&self) -> &Description {
        self.0.description()
    }

    fn max_frame(&self) -> usize {
        self.0.max_frame()
    }

    fn start(self: Arc<Self>, handler: Arc<dyn LinkHandler>) {
        self.0.clone().start(handler);
    }

    fn send(&self, source: &mut dyn FrameSource) {
        self.0.send(source);
    }

    fn close(&self) {
        self.0.close();
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }

    fn is_encrypted(&self) -> bool {
        true
    }
}

/// An upgrade that must not be used at all.
#[derive(Debug)]
struct Untouched;

impl Upgrade for Untouched {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn announce(&self) -> BoxFuture<Result<Bytes, Unavailable>> {
        panic!("an encrypted session announces no upgrade")
    }

    fn offer(
        &self,
        _: Bytes,
        _: &Description,
        _: TrafficClass,
    ) -> BoxFuture<Result<PreparedUpgrade, Unavailable>> {
        panic!("an encrypted session offers no upgrade")
    }

    fn answer(
        &self,
        _: Bytes,
        _: &Description,
        _: TrafficClass,
    ) -> BoxFuture<Result<PreparedUpgrade, Unavailable>> {
        panic!("an encrypted session answers no offer")
    }
}

struct Near(Arc<ServerCore>);

impl Connector for Near {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let (near, far) = memory::pair();
        self.0.serve(Arc::new(Encrypted(far)));
        Box::pin(async { Ok(Arc::new(Encrypted(near)) as Arc<dyn Link>) })
    }

    fn target(&self) -> String {
        "here".into()
    }
}

fn caller(policy: Policy) -> RawChannel {
    let settings = |policy| Settings {
        limits: Limits::default(),
        liveness: Liveness::default(),
        calls: Calls::default(),
        policy,
        upgrade: Ok(Arc::new(Untouched)),
    };
    let host = ServerCore::new(Vec::new(), settings(Policy::Auto)).unwrap();
    RawChannel::new(Near(host), settings(policy))
}

#[tokio::test]
async fn under_auto_calls_stay_on_it_and_say_so() {
    let transport = caller(Policy::Auto).connection().await.unwrap().transport();
    assert_eq!(transport.why_not_rdma.unwrap().reason, Reason::Encrypted);
}

#[tokio::test]
async fn under_rdma_connecting_fails_with_the_reason() {
    let error = caller(Policy::Rdma).connection().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No));
    assert!(error.message().contains("encrypted"), "{error}");
}
