//! A client of one node, by each network. It makes each call once.

use std::collections::BTreeMap;

use anyhow::Result;
use farcall::{Bytes, Channel, Config, Policy};
use raft_kv::network::farcall_address;
use raft_kv::service::{ClusterClient, KvClient, KvError, NodeStatus};
use raft_kv::types::{NodeId, RequestId};

use crate::Network;
use crate::http::{Form, Http};

#[derive(Clone)]
pub(crate) enum Caller {
    Farcall { kv: KvClient, cluster: ClusterClient },
    Http(Box<Http>),
}

/// Returns the configuration of farcall: as it is, by TCP.
pub(crate) fn farcall_config() -> Config {
    let mut config = Config::default();
    config.transport = Some(Policy::Tcp);
    config
}

impl Caller {
    pub(crate) fn new(network: Network, address: &str) -> Result<Self> {
        Ok(match network {
            Network::Farcall => {
                let channel = Channel::builder().config(farcall_config());
                let channel = channel.connect_lazy(&farcall_address(address))?;
                Self::Farcall { kv: KvClient::new(&channel), cluster: ClusterClient::new(&channel) }
            }
            Network::HttpJson => Self::Http(Http::new(address, Form::Json).into()),
            Network::HttpPostcard => Self::Http(Http::new(address, Form::Postcard).into()),
        })
    }

    pub(crate) async fn open(&self, session: u128) -> Result<()> {
        Ok(match self {
            Self::Farcall { kv, .. } => kv.open(session).await,
            Self::Http(http) => http.call::<Result<(), KvError>>("open", &session).await?,
        }?)
    }

    pub(crate) async fn put(&self, request: RequestId, key: &str, value: Bytes) -> Result<()> {
        Ok(match self {
            Self::Farcall { kv, .. } => kv.put(request, key, value).await,
            Self::Http(http) => http.call::<Result<(), KvError>>("put", &(request, key, value)).await?,
        }?)
    }

    pub(crate) async fn init(&self, members: BTreeMap<NodeId, String>) -> Result<()> {
        Ok(match self {
            Self::Farcall { cluster, .. } => cluster.init(members).await,
            Self::Http(http) => http.call::<Result<(), KvError>>("init", &members).await?,
        }?)
    }

    pub(crate) async fn status(&self) -> Result<NodeStatus> {
        Ok(match self {
            Self::Farcall { cluster, .. } => cluster.status().await,
            Self::Http(http) => http.call::<farcall::Result<NodeStatus>>("status", &()).await?,
        }?)
    }
}
