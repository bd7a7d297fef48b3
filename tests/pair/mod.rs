//! Two hosts, of which one serves and the other calls.

#![allow(dead_code, clippy::allow_attributes, reason = "each test uses a part of it")]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use farcall::{Bytes, Channel, Config, Server, ServerBuilder};
use tokio::sync::Notify;

/// A guard against hangs only.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

#[farcall::service(package = "test")]
pub(crate) trait Echo {
    async fn echo(&self, content: Bytes) -> farcall::Result<Bytes>;
    /// The other host needs this one no more.
    async fn finish(&self) -> farcall::Result<()>;
}

struct Mirror(Arc<Notify>);

impl Echo for Mirror {
    async fn echo(&self, content: Bytes) -> farcall::Result<Bytes> {
        Ok(content)
    }

    async fn finish(&self) -> farcall::Result<()> {
        self.0.notify_one();
        Ok(())
    }
}

/// Whether this is host 1.
pub(crate) fn is_server() -> bool {
    std::env::var("FARCALL_HOST").unwrap() == "1"
}

/// Host 1 serves until host 2 has done `client`.
pub(crate) async fn together_with(port: u16, config: Config, client: impl AsyncFnOnce(&Channel)) {
    together_serving(port, config, Server::builder(), client).await;
}

/// Host 1 serves this, and [`Echo`], until host 2 has done `client`.
pub(crate) async fn together_serving(
    port: u16,
    config: Config,
    server: ServerBuilder,
    client: impl AsyncFnOnce(&Channel),
) {
    if is_server() {
        let finished = Arc::new(Notify::new());
        let server = server.add(EchoServer::new(Mirror(finished.clone()))).config(config);
        let server = server.bind(&format!("10.99.0.1:{port}")).await.unwrap();
        let served = tokio::time::timeout(PATIENCE, server.serve_until(finished.notified())).await;
        return served.expect("the other host must finish");
    }
    let connected = async {
        loop {
            match Channel::builder()
                .config(config.clone())
                .connect(&format!("farcall://10.99.0.1:{port}"))
                .await
            {
                Ok(channel) => return channel,
                // Host 1 is not as far yet.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let channel = tokio::time::timeout(PATIENCE, connected).await.expect("host 1 must listen");
    client(&channel).await;
    EchoClient::new(channel).finish().await.unwrap();
}

/// Returns the output of a command.
pub(crate) fn run(command: &str) -> String {
    let output = Command::new("bash").args(["-c", command]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Drops, on this host, what RoCE sends and receives; TCP goes on.
pub(crate) struct NoRoce;

impl NoRoce {
    pub(crate) fn begin() -> Self {
        // Soft-RoCE receives on UDP port 4791 below the firewall, but sends through the queueing discipline.
        for command in [
            "tc qdisc add dev eth0 root handle 1: prio",
            "tc qdisc add dev eth0 parent 1:3 handle 30: netem loss 100%",
            "tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:3",
        ] {
            run(command);
        }
        Self
    }
}

impl Drop for NoRoce {
    fn drop(&mut self) {
        let _ = Command::new("tc").args(["qdisc", "del", "dev", "eth0", "root"]).status();
    }
}
