//! A network between nodes that can be cut: each node is reached through a relay, which knows by its process who calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use raft_kv::types::NodeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The direction from one node to another.
pub(crate) type Way = (NodeId, NodeId);

/// The connections to the nodes of a cluster. Those of clients are never cut.
#[derive(Clone, Default)]
pub(crate) struct Network {
    /// The ways on which nothing goes at present. Bytes that were sent arrive when the way is free
    /// again, if the connection lasts.
    blocked: watch::Sender<BTreeSet<Way>>,
    /// The processes of the nodes.
    processes: Arc<Mutex<BTreeMap<NodeId, u32>>>,
}

impl Network {
    /// Relays connections that come to `listener` to node `to`, which listens on `address`.
    pub(crate) fn carry(&self, to: NodeId, listener: std::net::TcpListener, address: SocketAddr) {
        listener.set_nonblocking(true).unwrap();
        let (network, listener) = (self.clone(), TcpListener::from_std(listener).unwrap());
        tokio::spawn(async move {
            loop {
                let (near, caller) = listener.accept().await.unwrap();
                let from = network.node_at(caller, near.local_addr().unwrap());
                tokio::spawn(relay(near, from, to, address, network.blocked.subscribe()));
            }
        });
    }

    pub(crate) fn set_process(&self, node: NodeId, process: u32) {
        self.processes.lock().unwrap().insert(node, process);
    }

    /// Lets nothing pass on these ways, and on no others.
    pub(crate) fn cut(&self, ways: BTreeSet<Way>) {
        self.blocked.send_replace(ways);
    }

    /// Returns the node that has the connection from `caller` to `relay`. `None`: no node has it.
    fn node_at(&self, caller: SocketAddr, relay: SocketAddr) -> Option<NodeId> {
        let socket = format!("socket:[{}]", socket_number(caller, relay)?);
        let processes = self.processes.lock().unwrap();
        processes.iter().find(|(_, process)| has_file(**process, &socket)).map(|(node, _)| *node)
    }
}

/// Returns the system's number of the IPv4 socket with these addresses.
fn socket_number(local: SocketAddr, remote: SocketAddr) -> Option<String> {
    let (local, remote) = (format!(":{:04X}", local.port()), format!(":{:04X}", remote.port()));
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
    let fields = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut found = fields.filter(|fields| fields[1].ends_with(&local) && fields[2].ends_with(&remote));
    found.next().map(|fields| fields[9].to_owned())
}

/// Returns whether a process has a file of this name open. One that has ended has none.
fn has_file(process: u32, name: &str) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|link| link == Path::new(name)))
}

/// Carries a connection until one of its ends closes it.
async fn relay(
    near: TcpStream,
    from: Option<NodeId>,
    to: NodeId,
    address: SocketAddr,
    blocked: watch::Receiver<BTreeSet<Way>>,
) {
    let Ok(far) = TcpStream::connect(address).await else { return };
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    tokio::select! {
        () = forward(near_read, far_write, from.map(|from| (from, to)), blocked.clone()) => {}
        () = forward(far_read, near_write, from.map(|from| (to, from)), blocked) => {}
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: Option<Way>,
    mut blocked: watch::Receiver<BTreeSet<Way>>,
) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if let Some(way) = way
            && blocked.wait_for(|blocked| !blocked.contains(&way)).await.is_err()
        {
            return;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
