//! Two hosts, of which one serves and the other calls.

#![allow(dead_code, clippy::allow_attributes, reason = "each test uses a part of it")]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

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
