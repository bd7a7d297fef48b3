//! RDMA: the set-up data of a peer, and the messages that it sends to a queue pair.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use farcall_core::class::TrafficClass;
use farcall_core::proto::inbox::Described;
use farcall_core::proto::wire::{FrameType, Header, Probe, Reader, WireError, flags};
use farcall_core::transport::{
    Attempt, Cipher, Description, Direction, Link, LinkEnd, LinkHandler, Upgrade as _,
};
use farcall_rdma::testing::device::{
    Cq, Device, Gid, Host as _, LocalPath, QpSize, QpTuning, QueuePair, QueueSize, Queues, RemoteQp, Slab,
    SlabLayout, Work, choose,
};
use farcall_rdma::testing::sim::Fabric;
use farcall_rdma::{RdmaConfig, RdmaUpgrade};
use tokio::runtime::Runtime;

use crate::script::{Script, Step};
use crate::server::{runtime, settle};

/// The size of a receive, in bytes.
const SLOT: usize = 8192;

/// The grant of a peer at first.
const GRANT: u32 = 250;

/// Hands the input to a server as the data of an OFFER if its first byte is even. If it is odd, a peer sends the rest
/// through a simulated queue pair to a link that has been proven.
pub fn rdma(data: &[u8]) {
    thread_local!(static RIG: Rig = Rig::new());
    let Some((&mode, data)) = data.split_first() else { return };
    RIG.with(|rig| {
        let _inside = rig.runtime.enter();
        if mode % 2 == 0 {
            drop(rig.runtime.block_on(rig.answer(Bytes::copy_from_slice(data))));
        } else {
            rig.session(data);
        }
        settle(&rig.runtime);
    });
}

/// A server on a simulated machine, and another machine whose device the fuzzer has.
struct Rig {
    runtime: Runtime,
    server: RdmaUpgrade,
    attempt: Attempt,
    device: Arc<dyn Device>,
    slab: Arc<Slab>,
    path: LocalPath,
}

impl Rig {
    fn new() -> Self {
        let fabric = Fabric::new(1);
        let server = Arc::new(fabric.host(IpAddr::from([10, 0, 0, 1])));
        let mut config = RdmaConfig::default();
        config.strict_credits = true;
        let host = fabric.host(IpAddr::from([10, 0, 0, 2]));
        let devices = host.devices().expect("the machine has devices");
        let chosen = choose(&devices, &host.interfaces(), &config, None).expect("there is one to choose");
        let device = host.open(&devices[0], &config).expect("the device opens");
        let slab = device.add_slab(SlabLayout { slot_size: SLOT, slots: 320 }).expect("there is memory");
        let path = LocalPath::new(1, &chosen.gid, device.port(1).expect("it has a port"), &config);
        let stream = Description {
            transport: "tcp",
            local: None,
            peer: None,
            device: String::new(),
            busy_polls: false,
        };
        // A session that may be sealed, and need not be.
        let mut attempt = Attempt::plain(stream, TrafficClass::Normal);
        attempt.secret = farcall_tcp::tls::exported(Cipher::Aes256Gcm, &[7; 32]);
        Self {
            runtime: runtime(),
            server: RdmaUpgrade::with_host(server, config),
            attempt,
            device,
            slab,
            path,
        }
    }

    async fn answer(&self, offer: Bytes) -> Option<farcall_core::transport::PreparedUpgrade> {
        self.server.answer(1, offer, &self.attempt).await.ok()
    }

    /// A link to the fuzzer's queue pair, by which the script goes.
    fn session(&self, script: &[u8]) {
        let peer = Peer::new(self);
        let offer = peer.offer();
        let link = self.runtime.block_on(async {
            let (candidate, answer) = self.answer(offer).await.expect("a valid OFFER is answered");
            peer.join(answer);
            candidate.complete(1, None).await.expect("the PROBE arrives")
        });
        Arc::clone(&link).start(Arc::new(Pulls(Arc::downgrade(&link))));
        for step in Script::new(script) {
            peer.send(step);
            settle(&self.runtime);
            peer.read();
        }
        link.close();
        drop((peer, link));
    }
}

/// The fuzzer's end of a link.
struct Peer<'a> {
    rig: &'a Rig,
    queues: Arc<dyn Queues>,
    qp: Arc<dyn QueuePair>,
}

impl<'a> Peer<'a> {
    fn new(rig: &'a Rig) -> Self {
        let queues =
            rig.device.create_queues(QueueSize { receives: 300, sends: 300 }).expect("there is room");
        let mut slots: Vec<_> = (0..GRANT).filter_map(|_| rig.slab.take()).collect();
        queues.post_receives(&mut slots).expect("receives are posted");
        let size = QpSize { sends: 250, signal_every: 1, inline: 220 };
        let Ok(qp) = queues.create_qp(size) else { panic!("there is no queue pair left") };
        qp.to_init(&rig.path).expect("the queue pair is new");
        Self { rig, queues, qp }
    }

    /// The data of an OFFER (WIRE.md section 8.2).
    fn offer(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(1);
        out.put_u8(self.rig.path.status.active_mtu.code());
        out.put_u16_le(0);
        out.put_u32_le(self.qp.number());
        out.put_u32_le(7);
        out.put_u32_le(SLOT as u32);
        out.put_u32_le(GRANT);
        out.put_slice(&self.rig.path.gid.0);
        out.put_slice(&[16, 16]);
        out.freeze()
    }

    /// Connects to the queue pair that the ANSWER names, and proves it.
    fn join(&self, answer: Bytes) {
        let remote = remote(answer).expect("farcall's own ANSWER can be read");
        let tuning = QpTuning::new(self.rig.path.status.active_mtu);
        self.qp.to_rtr(&self.rig.path, &remote, &tuning).expect("the peer is there");
        self.qp.to_rts(7, &tuning).expect("the queue pair is ready to receive");
        let mut probe = BytesMut::new();
        Probe { epoch: 1, len: 100 }.encode(&mut probe);
        let header = Header { len: probe.len() as u32, grant: GRANT, ..Header::new(FrameType::PROBE, 0) };
        self.post(&[&header.encode()[..], &probe].concat());
    }

    /// Sends one message: a frame, frames one behind the other, or (event 255) anything.
    fn send(&self, step: Step) {
        let Step { event, mut header, payload, by_stream, wrong_number, .. } = step;
        header.grant = if wrong_number { u32::from(event) } else { GRANT };
        let frame = [&header.encode()[..], &payload].concat();
        let message = match event {
            255 => payload.to_vec(),
            _ if by_stream => frame.repeat(usize::from(event % 4) + 1),
            _ => frame,
        };
        self.post(&message);
    }

    fn post(&self, message: &[u8]) {
        // A failed queue pair keeps its buffers until it is destroyed.
        let Some(mut slot) = self.rig.slab.take() else { return };
        let len = message.len().min(SLOT);
        slot[..len].copy_from_slice(&message[..len]);
        let parts = [slot.freeze(0..len), Bytes::new()];
        let mut work = VecDeque::from([Work::Send { parts, signaled: true, solicited: false }]);
        // The link may be over.
        let _ = self.qp.post(&mut work);
    }

    /// Takes what has come and forgets it.
    fn read(&self) {
        for cq in [Cq::Send, Cq::Receive] {
            let _ = self.queues.poll(cq, 300, &mut Vec::new());
        }
    }
}

/// Where to send to, as an ANSWER says it.
fn remote(answer: Bytes) -> Result<RemoteQp, WireError> {
    let mut r = Reader::new(answer);
    let _version_and_mtu = r.u16("rdma.version")?;
    let lid = r.u16("rdma.lid")?;
    let (qp_num, psn) = (r.u32("rdma.qp")?, r.u32("rdma.psn")?);
    let _slot_and_grant = r.u64("rdma.slot")?;
    let gid = r.bytes(16, "rdma.gid")?;
    Ok(RemoteQp { qp_num, psn, gid: Gid(*gid.first_chunk().expect("16 bytes were read")), lid })
}

/// Reads what a frame describes, as a session does.
struct Pulls(std::sync::Weak<dyn Link>);

impl LinkHandler for Pulls {
    fn receive(&self, header: Header, payload: Bytes) -> Result<(), WireError> {
        assert_eq!(header.len as usize, payload.len(), "a frame is as long as its header says");
        if header.flags & flags::DESCRIBED != 0
            && let Some(link) = self.0.upgrade()
            && let Some(begin) = payload.get(..16)
        {
            // The last four bytes say how much is to be read.
            let missing = begin[12..].try_into().map_or(0, u32::from_le_bytes) as usize;
            let (descriptor, begin) = (payload.slice(..16), payload.slice(16..));
            let total = begin.len() + missing;
            if total <= 1 << 20 {
                link.pull(
                    Direction::Request,
                    Described { seq: header.seq, kind: header.kind, descriptor, begin, total },
                );
            }
        }
        Ok(())
    }

    fn closed(&self, _: LinkEnd) {}
}
