//! A session on an encrypted link is not moved to a plain one, unless both sides allow it.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use farcall_core::client::{Connector, RawChannel};
use farcall_core::config::{Limits, Liveness, Policy};
use farcall_core::server::ServerCore;
use farcall_core::settings::Settings;
use farcall_core::status::{Code, Executed, Result};
use farcall_core::transport::{
    Attempt, BoxFuture, Candidate, Counters, Description, FrameSource, Link, LinkHandler, PreparedUpgrade,
    Reason, Unavailable, Upgrade, memory,
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

/// An upgrade to plain links, by a transport that does not look at what the session allows.
#[derive(Debug, Default)]
struct Heedless {
    waiting: Mutex<Option<Arc<dyn Link>>>,
    asked: Mutex<Vec<Attempt>>,
}

struct Proven(Arc<dyn Link>);

impl Candidate for Proven {
    fn complete(self: Box<Self>, _: u32, _: Option<Bytes>) -> BoxFuture<Result<Arc<dyn Link>, Unavailable>> {
        Box::pin(async { Ok(self.0) })
    }
}

type Prepared = BoxFuture<Result<PreparedUpgrade, Unavailable>>;

fn prepared(link: Arc<dyn Link>) -> Prepared {
    let candidate: Box<dyn Candidate> = Box::new(Proven(link));
    Box::pin(async { Ok((candidate, Bytes::new())) })
}

impl Upgrade for Heedless {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn announce(&self) -> BoxFuture<Result<Bytes, Unavailable>> {
        Box::pin(async { Ok(Bytes::new()) })
    }

    fn offer(&self, _: Bytes, attempt: &Attempt) -> Prepared {
        let (near, far) = memory::pair();
        *self.waiting.lock().unwrap() = Some(far);
        self.asked.lock().unwrap().push(attempt.clone());
        prepared(near)
    }

    fn answer(&self, _: u32, _: Bytes, attempt: &Attempt) -> Prepared {
        self.asked.lock().unwrap().push(attempt.clone());
        prepared(self.waiting.lock().unwrap().take().unwrap())
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

fn caller(policy: Policy, plaintext_upgrade: bool) -> (RawChannel, Arc<Heedless>) {
    let upgrade = Arc::new(Heedless::default());
    let settings = |policy| Settings {
        policy,
        upgrade: Ok(upgrade.clone()),
        plaintext_upgrade,
        ..Settings::plain(Limits::default(), Liveness::default(), Unavailable::new(Reason::Disabled, ""))
    };
    let host = ServerCore::new(Vec::new(), settings(Policy::Auto)).unwrap();
    (RawChannel::new(Near(host), settings(policy)), upgrade)
}

#[tokio::test]
async fn a_plain_link_is_given_up_and_calls_stay_on_the_encrypted_one() {
    let (caller, upgrade) = caller(Policy::Auto, false);
    let transport = caller.connection().await.unwrap().transport();
    assert_eq!(transport.why_not_rdma.unwrap().reason, Reason::Encrypted);
    let asked = upgrade.asked.lock().unwrap();
    assert!(!asked.is_empty());
    for attempt in &*asked {
        assert!(!attempt.allows_plaintext);
        assert_eq!(attempt.secret.as_ref().unwrap_err().reason, Reason::Encrypted);
    }
}

#[tokio::test]
async fn a_plain_link_is_used_where_both_sides_allow_it() {
    let (caller, upgrade) = caller(Policy::Rdma, true);
    assert_eq!(caller.connection().await.unwrap().transport().why_not_rdma, None);
    assert!(upgrade.asked.lock().unwrap().iter().all(|attempt| attempt.allows_plaintext));
}

#[tokio::test]
async fn under_rdma_connecting_fails_with_the_reason() {
    let error = caller(Policy::Rdma, false).0.connection().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No));
    assert!(error.message().contains("encrypted"), "{error}");
}
