//! Connections by which a peer may use memory, although nothing is heard of it.

use std::time::Duration;

use farcall_core::config::Limits;
use farcall_core::region::{Region, Rights};

use crate::near::Near;
use crate::setup::{Hosts, Setup, words};

/// Much longer than a connection may be idle.
const LONG: Duration = Duration::from_secs(1000);

#[tokio::test]
async fn a_connection_whose_peer_may_use_a_region_is_not_idle() {
    let limit = |limits: &mut Limits| limits.idle_ms = 20_000;
    let t = Setup::limited(&Hosts::new(), Vec::new(), limit, |host| Near { host, cipher: None });
    let watched = t.host.clone();
    tokio::spawn(async move { watched.watch().await });
    let region = Region::export(words(4096), Rights::READ);
    let remote = region.remote().on(t.channel.clone());
    t.until_direct(&remote).await;
    tokio::time::pause();
    tokio::time::sleep(LONG).await;
    assert_eq!(t.host.connections().len(), 1);
    tokio::time::resume();
    t.until_direct(&remote).await;
    region.revoke().await;
    tokio::time::pause();
    tokio::time::sleep(LONG).await;
    assert!(t.host.connections().is_empty());
}
