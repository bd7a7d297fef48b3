//! A process that has no more file descriptors. Alone in its program, because the limit is the process's.

#![cfg(target_os = "linux")]
use std::fs::File;
use std::process::Command;
use std::time::Duration;

use farcall_core::transport::Link;
use farcall_tcp::{Acceptor, TcpConfig};

#[tokio::test]
async fn connections_wait_until_there_are_descriptors_again() {
    let acceptor = Acceptor::bind("127.0.0.1:0", TcpConfig::default()).await.unwrap();
    let address = acceptor.local_addr().unwrap();
    let waiting = std::net::TcpStream::connect(address).unwrap();

    let pid = format!("--pid={}", std::process::id());
    let limited = Command::new("prlimit").args([&pid, "--nofile=64"]).status();
    assert!(limited.expect("prlimit is in every Linux").success());
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    // It can't succeed; and it neither gives up nor spins.
    let accepted = tokio::time::timeout(Duration::from_millis(250), acceptor.accept()).await;
    assert!(accepted.is_err());

    drop(files);
    let link = acceptor.accept().await;
    assert_eq!(link.description().peer, Some(waiting.local_addr().unwrap()));
}
