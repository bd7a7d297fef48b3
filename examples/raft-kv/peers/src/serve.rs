//! A node.

use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::{MethodRouter, post};
use axum::serve::ListenerExt;
use openraft::BasicNode;
use openraft::error::{NetworkError, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use raft_kv::network::{RaftPeer, Receiver};
use raft_kv::node::{Node, Timing};
use raft_kv::service::{Cluster, ClusterService, Kv, KvService};
use raft_kv::store::Store;
use raft_kv::types::{NodeId, Raft, Snapshot, TypeConfig, Vote};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Network;
use crate::caller::farcall_config;
use crate::http::{Form, Http};

#[derive(clap::Args)]
pub(crate) struct Serve {
    #[arg(long, value_enum)]
    network: Network,
    #[arg(long)]
    id: NodeId,
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

/// Returns the times for all networks. A busy machine holds up no leader for as long as an election waits, and no snapshot is written.
fn timing() -> Timing {
    Timing {
        heartbeat: Duration::from_millis(500),
        election: Duration::from_secs(5),
        snapshot_entries: 100_000_000,
    }
}

impl Serve {
    pub(crate) async fn run(self) -> Result<()> {
        match self.network {
            Network::Farcall => {
                let (id, listen, data) = (self.id, self.listen, self.data);
                Node::start(id, &listen, &data, farcall_config(), timing()).await?.serve(pending()).await
            }
            Network::HttpJson => self.by_http(Form::Json).await,
            Network::HttpPostcard => self.by_http(Form::Postcard).await,
        }
    }

    /// Serves as [`Node`] does, by HTTP.
    async fn by_http(self, form: Form) -> Result<()> {
        let store = Store::open(&self.data, self.id)?;
        let reader = store.machine.reader();
        let config = Arc::new(timing().config()?);
        let raft = Raft::new(self.id, config, Peers(form), store.log, store.machine).await?;
        let services = Services {
            form,
            kv: KvService::new(&raft, reader),
            cluster: ClusterService::new(raft.clone()),
            peer: Receiver::new(raft, store.snapshots),
        };
        let router = Router::new()
            .route("/open", method(|services, session| async move { services.kv.open(session).await }))
            .route(
                "/put",
                method(|services, (request, key, value)| async move {
                    services.kv.put(request, key, value).await
                }),
            )
            .route("/init", method(|services, members| async move { services.cluster.init(members).await }))
            .route("/status", method(|services, ()| async move { services.cluster.status().await }))
            .route("/append", method(|services, request| async move { services.peer.append(request).await }))
            .route("/vote", method(|services, request| async move { services.peer.vote(request).await }))
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::new(services));
        let listener = tokio::net::TcpListener::bind(&self.listen).await?;
        let listener = listener.tap_io(|stream| {
            // Without it the call works, only slower.
            let _ = stream.set_nodelay(true);
        });
        Ok(axum::serve(listener, router).await?)
    }
}

struct Services {
    form: Form,
    kv: KvService,
    cluster: ClusterService,
    peer: Receiver,
}

/// Returns the route of a method, which reads arguments and writes a result.
fn method<Q, A, F>(
    method: impl Fn(Arc<Services>, Q) -> F + Clone + Send + Sync + 'static,
) -> MethodRouter<Arc<Services>>
where
    Q: DeserializeOwned + Send,
    A: Serialize,
    F: Future<Output = A> + Send,
{
    let failed = |code: StatusCode| move |why: anyhow::Error| (code, why.to_string());
    post(async move |State(services): State<Arc<Services>>, body: Bytes| {
        let form = services.form;
        let arguments = form.read(&body).map_err(failed(StatusCode::BAD_REQUEST))?;
        let result = method(services, arguments).await;
        form.write(&result).map_err(failed(StatusCode::INTERNAL_SERVER_ERROR))
    })
}

/// Makes clients of other nodes.
struct Peers(Form);

impl RaftNetworkFactory<TypeConfig> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, _target: NodeId, node: &BasicNode) -> Peer {
        Peer(Http::new(&node.addr, self.0))
    }
}

/// Another node.
struct Peer(Http);

type CallError = RPCError<NodeId, BasicNode, RaftError<NodeId>>;

impl Peer {
    async fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        request: &impl Serialize,
    ) -> Result<T, CallError> {
        let failed = |why: anyhow::Error| Unreachable::new(&std::io::Error::other(format!("{why:#}")));
        let result = self.0.call::<farcall::Result<T>>(method, request).await.map_err(failed)?;
        result.map_err(|status| RPCError::Network(NetworkError::new(&status)))
    }
}

impl RaftNetwork<TypeConfig> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, CallError> {
        self.call("append", &request).await
    }

    async fn vote(
        &mut self,
        request: VoteRequest<NodeId>,
        _option: RPCOption,
    ) -> Result<VoteResponse<NodeId>, CallError> {
        self.call("vote", &request).await
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: Snapshot,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<NodeId>, StreamingError<TypeConfig, openraft::error::Fatal<NodeId>>> {
        let why = std::io::Error::other("no snapshot goes by HTTP: a comparison writes none");
        Err(Unreachable::new(&why).into())
    }
}
