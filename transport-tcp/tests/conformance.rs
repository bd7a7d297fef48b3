//! The suite that every transport passes, on TCP.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::sync::Arc;
use std::time::Duration;

use farcall_core::testing::conformance;
use farcall_core::transport::Link;
use farcall_tcp::{Acceptor, TcpConfig, connect};

async fn pair() -> conformance::Pair {
    let acceptor = Acceptor::bind("127.0.0.1:0", TcpConfig::default()).await.unwrap();
    let target = acceptor.local_addr().unwrap().to_string();
    let config = TcpConfig::default();
    let (near, far) = tokio::join!(connect(&target, &config, Duration::from_secs(10)), acceptor.accept());
    (near.unwrap() as Arc<dyn Link>, far as Arc<dyn Link>)
}

#[tokio::test]
async fn tcp_conforms() {
    conformance::check(pair).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_conforms_on_two_threads() {
    conformance::check(pair).await;
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_is_named() {
    let acceptor = Acceptor::bind("127.0.0.1:0", TcpConfig::default()).await.unwrap();
    let target = acceptor.local_addr().unwrap().to_string();
    drop(acceptor);
    let error = connect(&target, &TcpConfig::default(), Duration::from_secs(10)).await.unwrap_err();
    assert!(error.message().contains(&target) && error.message().contains("refused"), "{error}");
    assert_eq!(error.executed(), farcall_core::status::Executed::No);
}

#[tokio::test]
async fn an_address_that_cannot_be_listened_on_is_named() {
    let taken = Acceptor::bind("127.0.0.1:0", TcpConfig::default()).await.unwrap();
    for target in ["nonsense".to_owned(), taken.local_addr().unwrap().to_string()] {
        let error = Acceptor::bind(&target, TcpConfig::default()).await.unwrap_err();
        assert!(error.to_string().contains(&format!("can't listen on {target}: ")), "{error}");
    }
}
