//! Making a link: queue pairs are connected, and both ends prove that they hear each other.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use farcall_core::origin::Origin;
use farcall_core::proto::wire::Probe;
use farcall_core::transport::{self, Attempt, BoxFuture, Candidate, Description, Link, Reason};

use super::setup_turns::SetupTurn;
use super::{Endpoint, RdmaLink, protection};
use crate::device::{DeviceError, Gid, Limits, LocalPath, PairOnTrial, QpTuning, random_psn};
use crate::link::{Bootstrap, End, LinkCore, Seal};
use crate::resources::{NoRoom, Part, SLOT};
use crate::unavailable::Unavailable;

/// How long a server's PROBE may take after the client has sent its own: less than `liveness.connect_ms` by default, so that
/// what is said in the end is that it was lost.
const PATIENCE: Duration = Duration::from_millis(2500);

/// How long a client's may take after the server has answered: it has to connect its queue pair before, and says why it gives
/// up.
const CLIENTS_PATIENCE: Duration = Duration::from_secs(5);

/// An OFFER that a server answers.
#[derive(Debug)]
pub(crate) struct Offer {
    epoch: u32,
    data: Bytes,
    client: Bootstrap,
}

impl Offer {
    /// Reads the client's data.
    pub(crate) fn read(epoch: u32, data: Bytes) -> Result<Self, transport::Unavailable> {
        let client = Bootstrap::decode(data.clone())
            .map_err(|error| transport::Unavailable::at_peer(Reason::Other, format!("its offer: {error}")))?;
        Ok(Self { epoch, data, client })
    }

    /// Returns the server's address that the client has chosen.
    pub(crate) fn wanted(&self) -> Option<Gid> {
        self.client.wanted
    }
}

/// The end of the connection that a candidate is, with what it needs later.
#[derive(Debug)]
enum Side {
    /// It has made this offer, and probes first.
    Client { offered: Bytes, accepts: u8, attempt: Attempt },
    /// It has answered this one.
    Server(Bootstrap),
}

/// A link that is not proven yet.
#[derive(Debug)]
pub(crate) struct RdmaCandidate {
    made: Made,
    side: Side,
    /// Client: the addresses that the link is to join.
    pair: Option<PairOnTrial>,
    /// The device sets up few links at once.
    _turn: SetupTurn,
}

/// A link whose queue pair is not connected.
#[derive(Debug)]
struct Made {
    link: Arc<RdmaLink>,
    endpoint: Arc<Endpoint>,
    path: LocalPath,
    psn: u32,
}

impl RdmaCandidate {
    /// Prepares a client's end, ready to receive, and the data for the OFFER. Without a `pair` of addresses to join, the server
    /// chooses its own.
    pub(crate) async fn offer(
        endpoint: Arc<Endpoint>,
        path: LocalPath,
        attempt: Attempt,
        pair: Option<PairOnTrial>,
    ) -> Result<(Self, Bytes), transport::Unavailable> {
        let accepts = protection::acceptable(&attempt)?;
        let turn = endpoint.shard().device.setup_turn(true, peer_host(&attempt)).await;
        let (made, own) = Made::new(endpoint, path, &attempt, accepts).await?;
        let wanted = pair.as_ref().map(PairOnTrial::theirs);
        let offered = Bootstrap { wanted, ..own }.encode();
        let side = Side::Client { offered: offered.clone(), accepts, attempt };
        Ok((Self { made, side, pair, _turn: turn }, offered))
    }

    /// Prepares a server's end, ready to receive and to send, and the data for the ANSWER.
    pub(crate) async fn answer(
        endpoint: Arc<Endpoint>,
        path: LocalPath,
        attempt: Attempt,
        offer: Offer,
    ) -> Result<(Self, Bytes), transport::Unavailable> {
        let peer = offer.client;
        let chosen = protection::choose(&attempt, peer.protection)?;
        let turn = endpoint.shard().device.setup_turn(false, peer_host(&attempt)).await;
        let (made, own) = Made::new(endpoint, path, &attempt, chosen).await?;
        let answer = own.encode();
        let data = [offer.data, answer.clone()];
        let seal = protection::seal(&attempt, chosen, offer.epoch, data, End::Server)?;
        made.connect(peer, seal).await?;
        Ok((Self { made, side: Side::Server(peer), pair: None, _turn: turn }, answer))
    }

    async fn await_probe(&self, epoch: u32) -> Result<(), transport::Unavailable> {
        let patience = match self.side {
            Side::Client { .. } => PATIENCE,
            Side::Server(_) => CLIENTS_PATIENCE,
        };
        self.made.await_probe(epoch, patience).await
    }

    async fn finish(
        self,
        epoch: u32,
        answer: Option<Bytes>,
    ) -> Result<Arc<dyn Link>, transport::Unavailable> {
        match &self.side {
            Side::Client { offered, accepts, attempt } => {
                let answer = answer.unwrap_or_default();
                let peer = Bootstrap::decode(answer.clone()).map_err(|error| {
                    transport::Unavailable::at_peer(Reason::Other, format!("its answer: {error}"))
                })?;
                protection::check(*accepts, peer.protection)?;
                let data = [offered.clone(), answer];
                let seal = protection::seal(attempt, peer.protection, epoch, data, End::Client)?;
                self.made.connect(peer, seal).await?;
                self.made.send_probe(epoch, &peer)?;
                self.await_probe(epoch).await?;
                if let Some(pair) = self.pair {
                    pair.works(peer.qp.gid);
                }
            }
            Side::Server(peer) => {
                self.await_probe(epoch).await?;
                self.made.send_probe(epoch, peer)?;
            }
        }
        Ok(self.made.link)
    }
}

impl Made {
    /// Makes a link whose data says this of its protection.
    async fn new(
        endpoint: Arc<Endpoint>,
        path: LocalPath,
        attempt: &Attempt,
        protection: u8,
    ) -> Result<(Self, Bootstrap), transport::Unavailable> {
        let shard = Arc::clone(endpoint.shard());
        let peer_host = peer_host(attempt);
        let created = shard.admit(peer_host, || {
            let worker = Arc::clone(&shard);
            let create = move || worker.create_qp(&path);
            let create =
                shard.device.control.set_up(Part::Create, "creating a queue pair (ibv_create_qp)", create);
            async { Ok::<_, transport::Unavailable>(create.await??) }
        });
        let new = created.await?.map_err(no_room)?;
        let psn = random_psn().map_err(|error| {
            let detail = format!("the operating system gave no random numbers: {error}");
            transport::Unavailable::new(Reason::Other, detail)
        })?;
        let device = format!("{} port {} gid {}", shard.device.device.name(), path.port, path.gid_index);
        let name = format!("queue pair {} on {device} ({})", new.qp.number(), path.gid.ip());
        let (window, number) = (new.lease.window(), new.qp.number());
        let core = LinkCore::new(new, name, path, peer_host, &shard.resources);
        if !shard.add(Arc::clone(&core)) {
            return Err(transport::Unavailable::new(Reason::Device, "the endpoint has just failed"));
        }
        let description = Description {
            transport: "rdma",
            local: attempt.stream.local,
            peer: attempt.stream.peer,
            device,
            busy_polls: false,
        };
        let link = Arc::new(RdmaLink { core, description, endpoint: Arc::clone(&endpoint) });
        let qp = crate::device::RemoteQp { qp_num: number, psn, gid: path.gid, lid: path.status.lid };
        let slot = SLOT as u32;
        let Limits { reads, reads_served, .. } = shard.device.device.limits();
        let mtu = path.status.active_mtu;
        let own = Bootstrap { qp, mtu, slot, grant: window, reads, reads_served, protection, wanted: None };
        Ok((Self { link, endpoint, path, psn }, own))
    }

    /// Connects the queue pair, on a control thread.
    async fn connect(&self, peer: Bootstrap, seal: Option<Seal>) -> Result<(), transport::Unavailable> {
        if let Some(seal) = &seal {
            tracing::debug!(link = self.link.core.name(), cipher = %seal.cipher(), "the link is sealed");
        }
        self.link.core.protect(seal);
        let shard = self.endpoint.shard();
        let mut tuning = QpTuning::new(self.path.status.active_mtu.min(peer.mtu));
        if shard.config().strict_credits {
            tuning.rnr_retry = 0;
        }
        let limits = shard.device.device.limits();
        tuning.reads = limits.reads.min(peer.reads_served);
        tuning.reads_served = limits.reads_served.min(peer.reads);
        let (core, path, psn) = (Arc::clone(&self.link.core), self.path, self.psn);
        // Until this returns, the queue pair is left alone: another call on it would hang, too.
        let connecting = core.connecting();
        let connect = move || -> Result<(), DeviceError> {
            let _connecting = connecting;
            let Some(qp) = core.qp() else { return Ok(()) };
            qp.to_rtr(&path, &peer.qp, &tuning)?;
            qp.to_rts(psn, &tuning)?;
            core.connected(&peer, &limits);
            Ok(())
        };
        let connected = shard
            .device
            .control
            .set_up(Part::Connect, "connecting a queue pair (ibv_modify_qp)", connect)
            .await?;
        connected.map_err(|error| Unavailable::Device(error).into())
    }

    /// Sends this side's PROBE: twice the path's MTU, or as long as a receive if that is less.
    fn send_probe(&self, epoch: u32, peer: &Bootstrap) -> Result<(), transport::Unavailable> {
        let mtu = self.path.status.active_mtu.min(peer.mtu).bytes();
        let len = (2 * mtu).min(self.link.core.max_frame()) as u32;
        let mut payload = BytesMut::new();
        Probe { epoch, len }.encode(&mut payload);
        if self.link.core.send_probe(&payload) {
            return Ok(());
        }
        Err(transport::Unavailable::new(Reason::NoCredit, "all send buffers are in use"))
    }

    async fn await_probe(&self, epoch: u32, patience: Duration) -> Result<(), transport::Unavailable> {
        let lost = |detail: String| transport::Unavailable::new(Reason::ProbeLost, detail);
        let probe = self.link.core.probe();
        let name = self.link.core.name();
        match tokio::time::timeout(patience, probe).await {
            Ok(Ok(Ok(probe))) if probe.epoch == epoch => Ok(()),
            Ok(Ok(Ok(probe))) => Err(lost(format!("{name}: epoch {} came in place of {epoch}", probe.epoch))),
            Ok(Ok(Err(end))) => Err(lost(end.detail)),
            Ok(Err(_)) => Err(lost(format!("{name} was given up"))),
            Err(_) => Err(lost(format!(
                "{name}: nothing came within {patience:?}; check that RDMA packets (RoCE v2: UDP port 4791) pass between \
                 the hosts in both directions, at the MTU of {} bytes",
                self.path.status.active_mtu.bytes()
            ))),
        }
    }
}

impl Candidate for RdmaCandidate {
    fn complete(
        self: Box<Self>,
        epoch: u32,
        answer: Option<Bytes>,
    ) -> BoxFuture<Result<Arc<dyn Link>, transport::Unavailable>> {
        Box::pin(self.finish(epoch, answer))
    }
}

/// Returns the host that a link is made with.
fn peer_host(attempt: &Attempt) -> Origin {
    Origin::of(attempt.stream.peer.map(|peer| peer.ip()))
}

fn no_room(what: NoRoom) -> transport::Unavailable {
    let detail = match what {
        NoRoom::Receives(Some(refused)) => return refused.into(),
        NoRoom::Receives(None) => {
            "all receive buffers are promised to other peers; raise rdma.memory to have more"
        }
        NoRoom::Completions => "rdma.connections peers are connected already; raise it to allow more",
    };
    transport::Unavailable::new(Reason::NoCredit, detail)
}
