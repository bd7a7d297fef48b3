//! Connecting a channel over a network.

use std::net::SocketAddr;
use std::sync::Arc;

use farcall_core::client::{Connector, RawChannel};
use farcall_core::compress::Compression;
use farcall_core::config::Policy;
use farcall_core::status::{Blame, Code, Executed, Status};
use farcall_core::transport::{BoxFuture, Link};
use farcall_tcp::TcpConfig;

use super::Channel;
use crate::{Address, Config, ConfigError};

impl Channel {
    /// Connects to an [`Address`] with the default configuration, as [`ChannelBuilder::connect`] does.
    ///
    /// # Errors
    ///
    /// See [`ChannelBuilder::connect`].
    pub async fn connect(address: &str) -> Result<Self, Status> {
        Self::builder().connect(address).await
    }

    /// Returns a channel that connects when the first call needs it, with the default configuration. Must be called within a
    /// tokio runtime, which its connections run on; else every call fails with a status that says so.
    ///
    /// # Errors
    ///
    /// If the address, or `FARCALL_TRANSPORT`, is wrong.
    pub fn connect_lazy(address: &str) -> Result<Self, ConfigError> {
        Self::builder().connect_lazy(address)
    }

    /// Sets options first.
    pub fn builder() -> ChannelBuilder {
        ChannelBuilder::default()
    }
}

/// Options of a [`Channel`].
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until it connects"]
pub struct ChannelBuilder {
    config: Config,
}

impl ChannelBuilder {
    /// Sets everything.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Chooses the transport; `FARCALL_TRANSPORT` and the address's scheme go before it.
    pub fn transport(mut self, policy: Policy) -> Self {
        self.config.transport = policy;
        self
    }

    /// Whether calls that set nothing else [wait](crate::Call::wait_for_ready) for the server while it can't be reached, in
    /// place of failing. [`connect`](Self::connect) itself does not wait; [`connect_lazy`](Self::connect_lazy) need not.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.config.calls.wait_for_ready = wait;
        self
    }

    /// What calls, and the streams that they take along, are compressed by that [say](crate::Call::compress) nothing else. If this
    /// build lacks it, it does not connect.
    pub fn compress(mut self, by: Compression) -> Self {
        self.config.calls.compress = by;
        self
    }

    /// Connects. Returns when it is known what calls travel by: [`Channel::transport`] then says it. Must be called
    /// within a tokio runtime, which the channel's connections run on. Dropping the future gives the attempt up.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT if address or configuration are wrong. UNAVAILABLE if no server could be reached, or if RDMA
    /// is required and can't be had; the message says what was tried and seen.
    pub async fn connect(self, address: &str) -> Result<Channel, Status> {
        let channel = self.connect_lazy(address).map_err(|error| invalid(&error))?;
        channel.connection().await?;
        Ok(channel)
    }

    /// Returns a channel that connects when the first call needs it. Must be called within a tokio runtime, which its
    /// connections run on; else every call fails with a status that says so.
    ///
    /// # Errors
    ///
    /// If the address or the configuration is wrong.
    pub fn connect_lazy(self, address: &str) -> Result<Channel, ConfigError> {
        let address: Address = address.parse()?;
        let config = self.config.resolve(Some(&address))?;
        let settings = config.settings();
        let connector = Dial { address, config };
        Ok(Channel { raw: RawChannel::new(connector, settings) })
    }
}

fn invalid(error: &ConfigError) -> Status {
    // Not as a source, whose text would be told twice.
    let status = Status::new(Code::InvalidArgument, error.to_string());
    status.with_executed(Executed::No).with_blame(Blame::Caller)
}

/// Dials the hosts of an address.
struct Dial {
    address: Address,
    config: Config,
}

impl Connector for Dial {
    fn connect(&self, peer: usize) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        let hosts = self.address.hosts();
        let host = hosts[peer % hosts.len()].clone();
        let (tcp, patience): (TcpConfig, _) = (self.config.tcp.clone(), self.config.liveness.connect());
        Box::pin(async move { Ok(farcall_tcp::connect(&host, &tcp, patience).await? as _) })
    }

    fn connect_beside(&self, peer: SocketAddr) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        let (tcp, patience) = (self.config.tcp.clone(), self.config.liveness.connect());
        Box::pin(async move { Ok(farcall_tcp::connect(&peer.to_string(), &tcp, patience).await? as _) })
    }

    fn peers(&self) -> usize {
        self.address.hosts().len()
    }

    fn target(&self) -> String {
        self.address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wrong_address_is_told_once() {
        let error = Channel::connect("x").await.unwrap_err();
        let text = format!("{error:#}");
        assert_eq!(text.matches("address `x`").count(), 1, "{text}");
        assert!(text.starts_with("INVALID_ARGUMENT: "), "{text}");
        assert!(text.ends_with(" (not executed)"), "{text}");
    }
}
