//! A cluster of processes on this machine, whose nodes can be killed, paused and started again. Their network can be cut, their
//! disks filled, and their clocks set.

mod clock;
mod disk;
mod network;
mod port;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use clock::Clock;
use disk::Disk;
use farcall::{Channel, Config, Policy};
use network::{Network, Way};
use port::Port;
use raft_kv::client::{Client, Options};
use raft_kv::network::farcall_address;
use raft_kv::service::{KvClient, NodeStatus};
use raft_kv::types::NodeId;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

/// How long a cluster may take to come to a state that it must come to.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The program as it was built with the test.
pub(crate) const THIS_BUILD: &str = env!("CARGO_BIN_EXE_raft-kv");

/// A cluster. Its processes end with it; its directory stays if the test fails.
pub(crate) struct Cluster {
    directory: Option<TempDir>,
    /// The program of nodes that start from now on.
    program: PathBuf,
    options: Vec<String>,
    /// `None`: nodes call each other without a relay.
    network: Option<Network>,
    /// `None`: the nodes use no RDMA, or no device whose port can go down.
    port: Option<Port>,
    nodes: BTreeMap<NodeId, Node>,
}

struct Node {
    /// The address by which others know it.
    address: String,
    /// The address on which it listens.
    listen: String,
    disk: Option<Disk>,
    /// `None`: it has the time of this machine.
    clock: Option<Clock>,
    process: Option<Child>,
}

impl Node {
    fn new(address: String) -> Self {
        Self { listen: address.clone(), address, disk: None, clock: None, process: None }
    }

    /// Panics if the node has ended by itself.
    fn assert_runs(&mut self) {
        assert_eq!(self.ended(), None, "the node at {} has ended by itself", self.address);
    }

    /// Returns how the node ended, if it did so by itself.
    fn ended(&mut self) -> Option<ExitStatus> {
        self.process.as_mut().and_then(|process| process.try_wait().unwrap())
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Cluster {
    /// Starts nodes with these options of `raft-kv serve`, and makes a cluster of them.
    pub(crate) async fn start(count: u64, options: &[&str]) -> Self {
        Self::start_build(Path::new(THIS_BUILD), count, options).await
    }

    /// Starts nodes of another build of the program as [`start`](Self::start) does.
    pub(crate) async fn start_build(program: &Path, count: u64, options: &[&str]) -> Self {
        let mut cluster = Self::new(options);
        cluster.set_program(program);
        // All ports are held before one is used, so that they differ.
        for (id, port) in (1..).zip(ports(count)) {
            cluster.nodes.insert(id, Node::new(address(&port)));
        }
        cluster.make().await;
        cluster
    }

    /// Starts nodes as [`start`](Self::start) does. Their network can be cut if it is TCP, the port can go down if it is RDMA in
    /// farcall's VM. Their disks can be filled if the test may mount them, and their clocks set if libfaketime is installed.
    pub(crate) async fn start_to_fail(count: u64, options: &[&str]) -> Self {
        let mut cluster = Self::new(options);
        let by_tcp = std::env::var("FARCALL_TRANSPORT").map_or(true, |transport| transport == "tcp");
        cluster.network = by_tcp.then(Network::default);
        cluster.port = if by_tcp { None } else { Port::of_vm() };
        for ((id, relay), port) in (1..).zip(ports(count)).zip(ports(count)) {
            let mut node = Node::new(address(&port));
            node.disk = Disk::mount(&cluster.directory_of(id));
            node.clock = Clock::new(cluster.directory_of(id).with_extension("clock"));
            if let Some(network) = &cluster.network {
                node.address = address(&relay);
                network.carry(id, relay, port.local_addr().unwrap());
            }
            cluster.nodes.insert(id, node);
        }
        cluster.make().await;
        cluster
    }

    fn new(options: &[&str]) -> Self {
        let directory = Some(tempfile::tempdir().unwrap());
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let program = THIS_BUILD.into();
        Self { directory, program, options, network: None, port: None, nodes: BTreeMap::new() }
    }

    /// Has nodes that start from now on run this build of the program.
    pub(crate) fn set_program(&mut self, program: &Path) {
        self.program = program.to_owned();
    }

    async fn make(&mut self) {
        for id in self.ids() {
            self.run(id);
        }
        let members = self.nodes.iter().map(|(id, node)| (*id, node.address.clone())).collect();
        self.client().init(members).await.unwrap();
    }

    /// Starts a node that belongs to no cluster yet.
    pub(crate) fn start_another(&mut self) -> NodeId {
        let id = self.nodes.len() as NodeId + 1;
        let address = address(&ports(1)[0]);
        self.nodes.insert(id, Node::new(address));
        self.run(id);
        id
    }

    pub(crate) fn ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    pub(crate) fn address(&self, id: NodeId) -> &str {
        &self.nodes[&id].address
    }

    /// Returns a client with connections and a session of its own.
    pub(crate) fn client(&self) -> Client {
        self.patient_client(Duration::from_secs(10))
    }

    /// Returns a client that tries each request for so long.
    pub(crate) fn patient_client(&self, patience: Duration) -> Client {
        let mut config = Config::default();
        config.transport = Some(Policy::Tcp);
        let options = Options { config, attempt: Duration::from_millis(500), patience };
        Client::new(self.nodes.values().map(|node| node.address.clone()), options).unwrap()
    }

    /// Returns a client of one node, which does not follow the leader.
    pub(crate) fn node(&self, id: NodeId) -> KvClient {
        KvClient::new(Channel::connect_lazy(&farcall_address(self.address(id))).unwrap())
    }

    fn directory_of(&self, id: NodeId) -> PathBuf {
        self.directory.as_ref().unwrap().path().join(format!("node-{id}"))
    }

    /// Starts a node that does not run.
    pub(crate) fn run(&mut self, id: NodeId) {
        let data = self.directory_of(id);
        let log = File::options().create(true).append(true).open(data.with_extension("log")).unwrap();
        let node = self.nodes.get_mut(&id).unwrap();
        assert!(node.process.is_none(), "node {id} runs");
        let mut command = Command::new(&self.program);
        command.args(["--transport", "tcp", "serve", "--id", &id.to_string(), "--listen", &node.listen]);
        command.arg("--data").arg(data).args(&self.options).env_remove("RUST_LOG");
        if let Some(clock) = &node.clock {
            clock.apply_to(&mut command);
        }
        let process = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        if let Some(network) = &self.network {
            network.set_process(id, process.id());
        }
        node.process = Some(process);
    }

    /// Lets nothing pass on these ways between nodes, and on no others.
    pub(crate) fn cut(&self, ways: BTreeSet<Way>) {
        self.network.as_ref().unwrap().cut(ways);
    }

    /// Returns whether the network can be cut.
    pub(crate) fn has_network(&self) -> bool {
        self.network.is_some()
    }

    /// Returns the port that all nodes use, if it can go down.
    pub(crate) fn port(&self) -> Option<&Port> {
        self.port.as_ref()
    }

    /// Returns whether the clocks of all nodes can be set.
    pub(crate) fn has_clocks(&self) -> bool {
        self.nodes.values().all(|node| node.clock.is_some())
    }

    /// Sets the clock of a node to so many seconds after this machine's.
    pub(crate) fn set_clock(&self, id: NodeId, seconds: i64) {
        self.nodes[&id].clock.as_ref().unwrap().set(seconds);
    }

    /// Returns whether all nodes have disks that can be filled.
    pub(crate) fn has_disks(&self) -> bool {
        self.nodes.values().all(|node| node.disk.is_some())
    }

    /// Fills the disk of a node, which may end then.
    pub(crate) fn fill_disk(&self, id: NodeId) {
        self.nodes[&id].disk.as_ref().unwrap().fill();
    }

    /// Returns how a node ended by itself, if it did.
    pub(crate) fn ended(&mut self, id: NodeId) -> Option<ExitStatus> {
        self.nodes.get_mut(&id).unwrap().ended()
    }

    /// Makes room on the disk of a node, and starts the node again.
    pub(crate) fn empty_disk(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.kill();
        node.disk.as_ref().unwrap().empty();
        self.run(id);
    }

    /// Kills a node as a crash does, if the test has not ended it. It must run until then.
    pub(crate) fn kill(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.assert_runs();
        node.kill();
    }

    /// Tells a node to stop, and returns how it ended.
    pub(crate) async fn stop(&mut self, id: NodeId) -> ExitStatus {
        self.signal(id, Signal::TERM);
        let mut process = self.nodes.get_mut(&id).unwrap().process.take().unwrap();
        tokio::task::spawn_blocking(move || process.wait().unwrap()).await.unwrap()
    }

    pub(crate) fn pause(&mut self, id: NodeId) {
        self.signal(id, Signal::STOP);
    }

    pub(crate) fn resume(&mut self, id: NodeId) {
        self.signal(id, Signal::CONT);
    }

    pub(crate) fn signal(&mut self, id: NodeId, signal: Signal) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.assert_runs();
        let process = node.process.as_ref().unwrap();
        kill_process(Pid::from_raw(process.id().cast_signed()).unwrap(), signal).unwrap();
    }

    /// Returns the leader, once there is one that nodes know.
    pub(crate) async fn leader(&self) -> NodeId {
        let client = &self.client();
        let leader = || async move { client.status().await.ok()?.leader.map(|leader| leader.id) };
        until("there is a leader", leader).await
    }

    /// Returns when a node other than `gone` says of itself that it leads.
    pub(crate) async fn next_leader(&self, gone: NodeId) {
        let client = self.client();
        let others: Vec<_> = self.ids().into_iter().filter(|id| *id != gone).collect();
        let next = async {
            loop {
                for id in &others {
                    let status = client.status_of(self.address(*id)).await;
                    if status.is_ok_and(|status| status.role == "Leader") {
                        return;
                    }
                }
                // Tests print when it was.
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(PATIENCE, next).await.expect("another node leads");
    }

    /// Returns when a node answers and knows the leader.
    pub(crate) async fn answers(&self, id: NodeId) {
        let (client, address) = (&self.client(), self.address(id));
        until("the node knows a leader", || async move { client.status_of(address).await.ok()?.leader })
            .await;
    }

    /// Returns when a node has applied all that another one has applied by now.
    pub(crate) async fn caught_up(&self, id: NodeId) {
        let client = &self.client();
        let applied = |id| {
            let address = self.address(id);
            async move { client.status_of(address).await.ok()?.applied }
        };
        let other = self.ids().into_iter().find(|other| *other != id).unwrap();
        let goal = until("the other node says what it has applied", || applied(other)).await;
        until("the node has applied as much", || async {
            applied(id).await.filter(|applied| *applied >= goal)
        })
        .await;
    }

    /// Returns what all nodes know, once they have applied the same entries.
    pub(crate) async fn converged(&self) -> Vec<NodeStatus> {
        let (client, nodes) = (&self.client(), &self.nodes);
        until("all nodes have applied the same entries", || async move {
            let mut all = Vec::new();
            for node in nodes.values() {
                all.push(client.status_of(&node.address).await.ok()?);
            }
            let first = &all[0];
            let same = |status: &NodeStatus| {
                status.applied == first.applied && status.last_log == first.applied && status.leader.is_some()
            };
            all.iter().all(same).then_some(all)
        })
        .await
    }
}

/// Returns ports that are free until they are dropped.
fn ports(count: u64) -> Vec<TcpListener> {
    (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect()
}

fn address(port: &TcpListener) -> String {
    port.local_addr().unwrap().to_string()
}

/// Returns what `found` finds, which must come in time.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut found: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found().await {
            return found;
        }
        assert!(Instant::now() < deadline, "after {PATIENCE:?} it is still not so: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let ended: Vec<_> = self.nodes.values_mut().filter_map(Node::ended).collect();
        self.nodes.values_mut().for_each(Node::kill);
        let panicking = std::thread::panicking();
        if (panicking || !ended.is_empty())
            && let Some(directory) = self.directory.take()
        {
            eprintln!("the nodes' data and logs are in {}", directory.keep().display());
        }
        // Their disks must go before the directory does.
        self.nodes.clear();
        // A second panic would end the program without the first one's message.
        assert!(panicking || ended.is_empty(), "nodes have ended by themselves: {ended:?}");
    }
}
