//! Tests of a hostile peer: what it can do to its link, and to others.

mod session;

use std::collections::BTreeSet;

use farcall_core::proto::inbox::Described;
use farcall_core::proto::wire::{Close, CloseCode, Credit, CreditOp, HEADER_LEN, Ping, Probe};
use farcall_core::transport::Direction;

use super::*;
use crate::device::{Completion, Cq, Device, Host, QpTuning, RemoteQp, Slab, SlabLayout, Work, choose};
use crate::link::{Bootstrap, PLAINTEXT};

/// A peer that speaks to a link as it likes.
pub(super) struct Hostile {
    device: Arc<dyn Device>,
    queues: Arc<dyn Queues>,
    qp: Arc<dyn QueuePair>,
    slab: Arc<Slab>,
    path: LocalPath,
}

impl Hostile {
    /// One with an OFFER to make, which says that it can read so many at once, and be read.
    pub(super) fn new(fabric: &Arc<Fabric>, reads: u8) -> (Self, Bytes) {
        let config = RdmaConfig::default();
        let host = fabric.host([10, 0, 0, 66].into());
        let devices = host.devices().unwrap();
        let chosen = choose(&devices, &host.interfaces(), &config, None).unwrap();
        let device = host.open(&devices[0], &config).unwrap();
        let queues = device.create_queues(QueueSize { receives: 300, sends: 300 }).unwrap();
        let slab = device.add_slab(SlabLayout { slot_size: 8192, slots: 320 }).unwrap();
        let qp = queues.create_qp(QpSize { sends: 250, signal_every: 1, inline: 220 }).unwrap();
        let path = LocalPath::new(1, &chosen.gid, device.port(1).unwrap(), &config);
        let mut slots: Vec<_> = (0..300).map(|_| slab.take().unwrap()).collect();
        queues.post_receives(&mut slots).unwrap();
        qp.to_init(&path).unwrap();
        let local = RemoteQp { qp_num: qp.number(), psn: 7, gid: path.gid, lid: 0 };
        let mtu = path.status.active_mtu;
        let offer = Bootstrap {
            qp: local,
            mtu,
            slot: 8192,
            grant: 250,
            reads,
            reads_served: reads,
            protection: PLAINTEXT,
            wanted: None,
        };
        (Self { device, queues, qp, slab, path }, offer.encode())
    }

    /// Makes its end of the queue pair ready, and sends a PROBE if it is to be believed.
    pub(super) fn join(&self, answer: Bytes, prove: bool) {
        let answer = Bootstrap::decode(answer).unwrap();
        let tuning = QpTuning::new(self.path.status.active_mtu);
        self.qp.to_rtr(&self.path, &answer.qp, &tuning).unwrap();
        self.qp.to_rts(7, &tuning).unwrap();
        if prove {
            let mut probe = BytesMut::new();
            Probe { epoch: 1, len: 100 }.encode(&mut probe);
            self.send(FrameType::PROBE, &probe, 250);
        }
    }

    /// Connects to a server, and sends it a PROBE if it is to be believed.
    pub(super) async fn connect(fabric: &Arc<Fabric>, far: &Node, prove: bool) -> (Self, Server) {
        let (hostile, offer) = Self::new(fabric, 0);
        let (server, answer) = far.upgrade.answer(1, offer, &far.attempt).await.unwrap();
        hostile.join(answer, prove);
        let server = tokio::spawn(server.complete(1, None));
        (hostile, server)
    }

    pub(super) fn send(&self, kind: FrameType, payload: &[u8], grant: u32) {
        let mut header = Header::new(kind, u64::from(!kind.is_link()));
        header.len = payload.len() as u32;
        header.grant = grant;
        self.send_raw(&[&header.encode(), payload].concat());
    }

    fn send_raw(&self, frame: &[u8]) {
        let mut slot = self.slab.take().unwrap();
        slot[..frame.len()].copy_from_slice(frame);
        let parts = [slot.freeze(0..frame.len()), Bytes::new()];
        let mut requests = VecDeque::from([Work::Send { parts, signaled: true, solicited: false }]);
        assert_eq!(self.qp.post(&mut requests).unwrap(), 1);
        self.queues.poll(Cq::Send, 300, &mut Vec::new()).unwrap();
    }

    /// The types of the frames that have come, and their headers.
    pub(super) fn received(&self) -> Vec<(FrameType, Header, Bytes)> {
        let mut out = Vec::new();
        self.queues.poll(Cq::Receive, 300, &mut out).unwrap();
        let frame = |completion| match completion {
            Completion::Received { slot, len, .. } => {
                let header = Header::decode(slot.first_chunk().unwrap()).unwrap();
                (header.kind, header, slot.freeze(HEADER_LEN..len))
            }
            other => panic!("{other:?}"),
        };
        out.into_iter().map(frame).collect()
    }

    pub(super) async fn receive(&self, kind: FrameType) -> (Header, Bytes) {
        let frames = Mutex::new(Vec::new());
        until("no such frame comes", || {
            frames.lock().unwrap().extend(self.received());
            frames.lock().unwrap().iter().any(|(k, ..)| *k == kind)
        })
        .await;
        let frames = frames.into_inner().unwrap();
        let (_, header, payload) = frames.into_iter().find(|(k, ..)| *k == kind).unwrap();
        (header, payload)
    }
}

pub(super) type Server = tokio::task::JoinHandle<Result<Arc<dyn Link>, transport::Unavailable>>;

#[tokio::test]
async fn peer_that_breaks_the_rules_loses_its_link_and_others_keep_theirs() {
    let mut bad_header = Header::new(FrameType::ITEM, 1).encode();
    bad_header[2] = 1;
    let item = |len| Header { len, ..Header::new(FrameType::ITEM, 1) }.encode();
    let ping = Header::new(FrameType::PING, 0).encode();
    let encode = |op, count| {
        let mut payload = BytesMut::new();
        Credit { op, count }.encode(&mut payload);
        payload.freeze()
    };
    type Attack = Box<dyn Fn(&Hostile)>;
    let attacks: Vec<(&str, Attack)> = vec![
        ("without a credit", Box::new(|h| (0..70).for_each(|_| h.send(FrameType::ITEM, b"x", 250)))),
        ("has no header", Box::new(|h| h.send_raw(&[1, 2, 3]))),
        ("header.reserved", Box::new(move |h| h.send_raw(&bad_header))),
        ("says 9 bytes", Box::new(move |h| h.send_raw(&[&item(9)[..], b"less"].concat()))),
        ("a frame of 4 bytes", Box::new(move |h| h.send_raw(&[&item(0)[..], b"more"].concat()))),
        ("shares a message", Box::new(move |h| h.send_raw(&[item(0), ping].concat()))),
        ("shares a message", Box::new(move |h| h.send_raw(&[ping, item(0)].concat()))),
        (
            "gives back credits",
            Box::new(move |h| h.send(FrameType::CREDIT, &encode(CreditOp::Forfeit, 5), 250)),
        ),
        ("credit", Box::new(|h| h.send(FrameType::CREDIT, b"nonsense", 250))),
        ("PING that was not sent", Box::new(|h| h.send(FrameType::PONG, &[0; 8], 250))),
        ("ping", Box::new(|h| h.send(FrameType::PING, &[0; 3], 250))),
        // More than there are receives. Not one of them needs a credit.
        ("sends a PING before", Box::new(|h| (0..200).for_each(|_| h.send(FrameType::PING, &[0; 8], 250)))),
        (
            "sends a CREDIT before",
            Box::new(move |h| {
                (0..200).for_each(|_| h.send(FrameType::CREDIT, &encode(CreditOp::Grant, 0), 250));
            }),
        ),
        (
            "sends a CREDIT before",
            Box::new(move |h| {
                for op in [CreditOp::Grant, CreditOp::Reclaim] {
                    h.send(FrameType::CREDIT, &encode(op, 0), 250);
                }
            }),
        ),
        ("after its CLOSE", Box::new(|h| (0..200).for_each(|_| h.send(FrameType::CLOSE, &[0], 250)))),
    ];
    let (fabric, [near, far]) = nodes(1);
    let [a, mut b] = near.link(&far).await;
    for (expected, attack) in attacks {
        let (hostile, server) = Hostile::connect(&fabric, &far, true).await;
        let mut end = End::start(server.await.unwrap().unwrap());
        // The receiver takes nothing in meanwhile, so that no credits come back.
        attack(&hostile);
        let end = end.end().await;
        assert!(end.failed && end.malformed, "{expected}: {end}");
        assert!(end.detail.contains(expected), "{expected}: {end}");
        drop(hostile);
        a.send(100, 1000);
        b.receive(100).await;
    }
}

#[tokio::test]
async fn a_host_whose_attempts_do_not_end_keeps_no_other_host_waiting() {
    let (fabric, [near, far]) = nodes(1);
    let (begun, mut answers) = tokio::sync::mpsc::unbounded_channel();
    let mut attempts = tokio::task::JoinSet::new();
    // A device sets up sixteen links at once, as server.
    for _ in 0..20 {
        let (hostile, offer) = Hostile::new(&fabric, 0);
        let (upgrade, mut attempt, begun) = (far.upgrade.clone(), far.attempt.clone(), begun.clone());
        attempt.stream.peer = Some(([10, 0, 0, 66], 4000).into());
        attempts.spawn(async move {
            let answer = upgrade.answer(1, offer, &attempt).await.unwrap();
            begun.send((hostile, answer)).unwrap();
        });
    }
    let mut unfinished = Vec::new();
    while unfinished.len() < 8 {
        unfinished.push(answers.recv().await.unwrap());
    }
    let [a, mut b] = near.link(&far).await;
    a.send(100, 1000);
    b.receive(100).await;
}

/// Nothing of such a message is taken in, however well it is formed.
#[tokio::test]
async fn immediate_data_costs_the_link() {
    let (fabric, [near, far]) = nodes(1);
    let (hostile, server) = Hostile::connect(&fabric, &far, true).await;
    let mut end = End::start(server.await.unwrap().unwrap());
    fabric.set_immediate_data(true);
    hostile.send(FrameType::ITEM, b"x", 250);
    let why = end.end().await;
    assert!(why.failed && why.malformed && why.detail.contains("immediate data"), "{why}");
    fabric.set_immediate_data(false);
    let [a, mut b] = near.link(&far).await;
    a.send(100, 1000);
    b.receive(100).await;
}

/// An attacker's packet is taken only if it has the number that is expected next.
#[tokio::test]
async fn packet_numbers_of_queue_pairs_do_not_follow_from_each_other() {
    let (_fabric, [near, far]) = nodes(1);
    let announced = far.upgrade.announce().await.unwrap();
    let mut numbers = Vec::new();
    for _ in 0..9 {
        let (_candidate, offer) = near.upgrade.offer(announced.clone(), &near.attempt).await.unwrap();
        numbers.push(Bootstrap::decode(offer).unwrap().qp.psn);
    }
    let steps: BTreeSet<_> = numbers.windows(2).map(|two| two[1].wrapping_sub(two[0])).collect();
    assert!(steps.len() > 4, "{numbers:?}");
}

#[tokio::test]
async fn first_frame_must_be_a_probe_that_is_whole() {
    let (fabric, [_near, far]) = nodes(1);
    let mut damaged = BytesMut::new();
    Probe { epoch: 1, len: 100 }.encode(&mut damaged);
    damaged[50] ^= 1;
    let mut late = BytesMut::new();
    Probe { epoch: 2, len: 100 }.encode(&mut late);
    for (kind, payload, expected) in [
        (FrameType::ITEM, &b"x"[..], "first frame is not a PROBE"),
        (FrameType::PROBE, &damaged, "probe.filling"),
        (FrameType::PROBE, &late, "epoch 2 came in place of 1"),
    ] {
        let (hostile, server) = Hostile::connect(&fabric, &far, false).await;
        hostile.send(kind, payload, 250);
        let why = server.await.unwrap().map(drop).unwrap_err();
        assert!(why.reason == Reason::ProbeLost && why.detail.contains(expected), "{expected}: {why}");
    }
}

#[tokio::test]
async fn ping_is_answered_and_reclaimed_credits_are_given_back() {
    let (fabric, [_near, far]) = nodes(1);
    let (hostile, server) = Hostile::connect(&fabric, &far, true).await;
    let end = End::start(server.await.unwrap().unwrap());
    let mut payload = BytesMut::new();
    Ping { token: 0x1234 }.encode(&mut payload);
    hostile.send(FrameType::PING, &payload, 250);
    let (_, pong) = hostile.receive(FrameType::PONG).await;
    assert_eq!(Ping::decode(pong).unwrap().token, 0x1234);

    let mut payload = BytesMut::new();
    Credit { op: CreditOp::Reclaim, count: 200 }.encode(&mut payload);
    hostile.send(FrameType::CREDIT, &payload, 250);
    let (_, forfeit) = hostile.receive(FrameType::CREDIT).await;
    assert_eq!(Credit::decode(forfeit).unwrap(), Credit { op: CreditOp::Forfeit, count: 200 });
    // One of 250 credits has gone for the PROBE.
    let got = std::cell::Cell::new(0);
    let received = || {
        got.set(got.get() + hostile.received().len());
        got.get()
    };
    end.send(100, LONE);
    until("frames are missing", || received() >= 49).await;
    hostile.send(FrameType::ITEM, b"x", 260);
    until("frames are missing", || received() >= 59).await;
    until("the driver does not sleep", || fabric.queues_armed() == 2).await;
    assert_eq!(received(), 59, "more than there are credits");
    drop(hostile.device);
}

#[tokio::test]
async fn pings_and_credits_whose_answers_are_awaited_may_follow_each_other() {
    let (fabric, [_near, far]) = nodes(1);
    let (hostile, server) = Hostile::connect(&fabric, &far, true).await;
    let end = End::start(server.await.unwrap().unwrap());
    let mut reclaim = BytesMut::new();
    Credit { op: CreditOp::Reclaim, count: 0 }.encode(&mut reclaim);
    for _ in 0..100 {
        hostile.send(FrameType::PING, &[0; 8], 250);
        hostile.receive(FrameType::PONG).await;
        hostile.send(FrameType::CREDIT, &reclaim, 250);
        hostile.receive(FrameType::CREDIT).await;
    }
    end.send(1, 10);
    hostile.receive(FrameType::ITEM).await;
}

#[tokio::test]
async fn close_is_heard_before_the_handler_is_told() {
    let (fabric, [_near, far]) = nodes(1);
    let (hostile, server) = Hostile::connect(&fabric, &far, true).await;
    let mut end = End::start(server.await.unwrap().unwrap());
    let mut close = BytesMut::new();
    Close { code: CloseCode::Done, reason: String::new() }.encode(&mut close);
    hostile.send(FrameType::ITEM, b"last", 250);
    hostile.send(FrameType::CLOSE, &close, 250);
    end.receive(1).await;
    let before = tokio::time::Instant::now();
    // The session closes it first, on hearing of it by the stream link.
    end.link().close();
    assert!(!end.end().await.failed);
    assert!(before.elapsed() < LIMIT);
    until("the queue pair stays", || fabric.queue_pairs().len() == 1).await;
}

#[tokio::test]
async fn a_send_that_fails_because_the_peer_has_closed_the_link_is_no_failure() {
    let (fabric, [_near, far]) = nodes(1);
    let (hostile, server) = Hostile::connect(&fabric, &far, true).await;
    let mut end = End::start(server.await.unwrap().unwrap());
    until("the driver does not sleep", || fabric.queues_armed() == 2).await;
    fabric.set_acknowledgements(false);
    end.send(1, 10);
    hostile.send(FrameType::CLOSE, &[0], 250);
    // The CLOSE arrives, and what was sent is never acknowledged.
    fabric.expire();
    let end = end.end().await;
    assert!(!end.failed, "{end}");
}

#[tokio::test]
async fn descriptors_that_make_no_sense_cost_the_link() {
    let (_fabric, [near, far]) = nodes(1);
    let describe = |len: u32| [&[7; 12][..], &len.to_le_bytes()].concat();
    for (expected, descriptor) in [
        ("a descriptor has 0 bytes", Vec::new()),
        ("a descriptor has 15 bytes", vec![0; 15]),
        ("a descriptor has 17 bytes", vec![0; 17]),
        ("of 0 bytes is not what", describe(0)),
        ("of 99999 bytes is not what", describe(99_999)),
        ("of 4294967295 bytes is not what", describe(u32::MAX)),
    ] {
        let [mut a, _b] = near.link(&far).await;
        a.link().pull(
            Direction::Request,
            Described {
                seq: 1,
                kind: FrameType::REQUEST,
                descriptor: descriptor.into(),
                begin: vec![0; 21].into(),
                total: 100_021,
            },
        );
        let end = a.end().await;
        assert!(end.failed && end.malformed && end.detail.contains(expected), "{expected}: {end}");
    }
}

#[tokio::test]
async fn whatever_a_peer_sends_others_keep_their_links() {
    const KINDS: [FrameType; 8] = [
        FrameType::ITEM,
        FrameType::REQUEST,
        FrameType::CREDIT,
        FrameType::PING,
        FrameType::PONG,
        FrameType::PROBE,
        FrameType::CLOSE,
        FrameType(0xff),
    ];
    let (fabric, [near, far]) = nodes(1);
    let [a, mut b] = near.link(&far).await;
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..if std::env::var_os("FARCALL_LONG").is_some() { 5000 } else { 200 } {
        let (hostile, server) = Hostile::connect(&fabric, &far, true).await;
        let end = End::start(server.await.unwrap().unwrap());
        for _ in 0..rng.usize(1..10) {
            let kind = KINDS[rng.usize(..KINDS.len())];
            let payload: Vec<u8> = (0..rng.usize(..20)).map(|_| rng.u8(..4)).collect();
            let mut header = Header::new(kind, u64::from(!kind.is_link()));
            (header.len, header.grant) = (payload.len() as u32, 250 + rng.u32(..3));
            let mut frame = [&header.encode(), &payload[..]].concat();
            for _ in 0..rng.usize(..3) {
                let at = rng.usize(..frame.len());
                frame[at] ^= 1 << rng.u8(..8);
            }
            frame.truncate(if rng.u8(..10) == 0 { rng.usize(1..=frame.len()) } else { frame.len() });
            hostile.send_raw(&frame);
        }
        a.send(3, 1000);
        b.receive(3).await;
        drop((hostile, end));
    }
    until("queue pairs stay", || fabric.queue_pairs().len() == 2).await;
    assert_eq!(far.shard().links().len(), 1);
}
