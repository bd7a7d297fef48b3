//! Tests of the simulated device beyond those of real ones in `tests/vm_verbs.rs`, and of the failures that it can make.

mod reads;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use super::*;
use crate::device::*;

const SIZE: QpSize = QpSize { sends: 16, signal_every: 4, inline: 64 };

struct End {
    host: SimHost,
    device: Arc<dyn Device>,
    queues: Arc<dyn Queues>,
    qp: Arc<dyn QueuePair>,
    slab: Arc<Slab>,
    path: LocalPath,
}

impl End {
    fn new(host: SimHost) -> Self {
        let config = RdmaConfig::default();
        let devices = host.devices().unwrap();
        let chosen = choose(&devices, &host.interfaces(), &config, None).unwrap();
        let device = host.open(&devices[0], &config).unwrap();
        let queues = device.create_queues(QueueSize { receives: 32, sends: 64 }).unwrap();
        let qp = queues.create_qp(SIZE).unwrap();
        let slab = device.add_slab(SlabLayout { slot_size: 256, slots: 64 }).unwrap();
        let path = LocalPath::new(chosen.port, &chosen.gid, device.port(1).unwrap(), &config);
        qp.to_init(&path).unwrap();
        Self { host, device, queues, qp, slab, path }
    }

    fn address(&self) -> RemoteQp {
        RemoteQp { qp_num: self.qp.number(), psn: self.qp.number() * 7, gid: self.path.gid, lid: 0 }
    }

    fn receives(&self, count: usize) {
        let mut slots: Vec<_> = (0..count).map(|_| self.slab.take().unwrap()).collect();
        assert_eq!(self.queues.post_receives(&mut slots).unwrap(), count);
    }

    fn message(&self, byte: u8) -> Bytes {
        let mut slot = self.slab.take().unwrap();
        slot.fill(byte);
        slot.freeze(0..200)
    }

    fn try_send(&self, byte: u8) -> Result<usize, PostError> {
        let parts = [self.message(byte), Bytes::new()];
        self.qp.post(&mut VecDeque::from([Work::Send { parts, signaled: true, solicited: false }]))
    }

    fn send(&self, byte: u8) {
        assert_eq!(self.try_send(byte).unwrap(), 1);
    }

    fn poll(&self, cq: Cq) -> Vec<Completion> {
        let mut out = Vec::new();
        self.queues.poll(cq, usize::MAX, &mut out).unwrap();
        out
    }

    /// The first bytes of what has arrived.
    fn received(&self) -> Vec<u8> {
        let byte = |completion| match completion {
            Completion::Received { slot, len: 200, .. } => slot[199],
            other => panic!("{other:?}"),
        };
        self.poll(Cq::Receive).into_iter().map(byte).collect()
    }

    /// How its sends have failed.
    fn failures(&self) -> Vec<WcStatus> {
        let status = |completion| match completion {
            Completion::SendFailed { error, .. } => error.status,
            other => panic!("{other:?}"),
        };
        self.poll(Cq::Send).into_iter().map(status).collect()
    }
}

fn connect(a: &End, b: &End, rnr_retry: u8) {
    let tuning = QpTuning { rnr_retry, ..QpTuning::new(a.path.status.active_mtu) };
    for (this, that) in [(a, b), (b, a)] {
        this.qp.to_rtr(&this.path, &that.address(), &tuning).unwrap();
        this.qp.to_rts(this.address().psn, &tuning).unwrap();
    }
}

fn pair(fabric: &Arc<Fabric>) -> (End, End) {
    let (a, b) = (End::new(fabric.host([10, 0, 0, 1].into())), End::new(fabric.host([10, 0, 0, 2].into())));
    connect(&a, &b, 6);
    (a, b)
}

#[test]
fn message_travels_between_machines() {
    let (a, b) = pair(&Fabric::new(1));
    b.receives(1);
    a.send(7);
    assert_eq!(b.received(), [7]);
    assert!(matches!(a.poll(Cq::Send)[..], [Completion::Sent { count: 1, .. }]));
}

#[test]
fn seed_decides_the_order_across_queue_pairs_and_nothing_within_one() {
    let order = |seed| {
        let fabric = Fabric::new(seed);
        let b = End::new(fabric.host([10, 0, 0, 9].into()));
        b.receives(30);
        let senders: Vec<End> = (1..=3)
            .map(|i| {
                let a = End::new(fabric.host([10, 0, 0, i].into()));
                let there = b.queues.create_qp(QpSize { sends: 8, ..SIZE }).unwrap();
                let tuning = QpTuning::new(a.path.status.active_mtu);
                let back = RemoteQp { qp_num: there.number(), psn: 0, gid: b.path.gid, lid: 0 };
                there.to_init(&b.path).unwrap();
                there.to_rtr(&b.path, &a.address(), &tuning).unwrap();
                a.qp.to_rtr(&a.path, &back, &tuning).unwrap();
                a.qp.to_rts(a.address().psn, &tuning).unwrap();
                // Kept for as long as the fabric.
                std::mem::forget(there);
                a
            })
            .collect();
        for n in 0..10 {
            senders.iter().enumerate().for_each(|(i, a)| a.send(i as u8 * 10 + n));
        }
        b.received()
    };
    let orders: Vec<_> = (0..8).map(order).collect();
    assert_eq!(order(3), orders[3], "equal seeds, equal orders");
    assert!(orders.iter().any(|o| *o != orders[0]), "the seed decides nothing");
    for order in orders {
        assert_eq!(order.len(), 30);
        for sender in 0..3 {
            let its: Vec<u8> = order.iter().copied().filter(|n| n / 10 == sender).collect();
            assert!(its.is_sorted(), "{its:?}");
        }
    }
}

#[test]
fn missing_receive_waits_or_fails_as_the_retries_say() {
    let fabric = Fabric::new(1);
    let (a, b) = pair(&fabric);
    a.send(1);
    assert!(a.poll(Cq::Send).is_empty() && b.received().is_empty());
    b.receives(1);
    assert_eq!(b.received(), [1]);
    assert_eq!(a.poll(Cq::Send).len(), 1);
    a.send(2);
    a.send(3);
    fabric.expire();
    assert_eq!(a.failures(), [WcStatus::RNR_RETRY_EXC_ERR, WcStatus::WR_FLUSH_ERR]);
}

#[test]
fn lost_packets_are_repeated_until_retries_run_out() {
    let fabric = Fabric::new(1);
    let (a, b) = pair(&fabric);
    b.receives(4);
    fabric.set_traffic(false);
    a.send(1);
    assert!(b.received().is_empty());
    fabric.set_traffic(true);
    assert_eq!(b.received(), [1]);
    assert_eq!(a.poll(Cq::Send).len(), 1);
    fabric.set_traffic(false);
    a.send(2);
    fabric.expire();
    assert_eq!(a.failures(), [WcStatus::RETRY_EXC_ERR]);
    assert!(b.received().is_empty());
    assert!(a.try_send(3).is_ok(), "in ERR a send is taken, and flushed");
    assert_eq!(a.failures(), [WcStatus::WR_FLUSH_ERR]);
}

#[test]
fn failed_send_may_have_arrived() {
    let fabric = Fabric::new(1);
    let (a, b) = pair(&fabric);
    b.receives(4);
    fabric.set_acknowledgements(false);
    a.send(1);
    a.send(2);
    assert_eq!(b.received(), [1, 2]);
    fabric.expire();
    assert_eq!(a.failures(), [WcStatus::RETRY_EXC_ERR, WcStatus::WR_FLUSH_ERR]);
}

#[test]
fn unplugged_machine_loses_packets_and_reports_it() {
    let fabric = Fabric::new(1);
    let (a, b) = pair(&fabric);
    b.receives(4);
    let mut events = b.device.events().unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(events.poll_next(&mut cx).is_pending());
    b.host.set_link(false);
    assert!(matches!(events.poll_next(&mut cx), Poll::Ready(Ok(DeviceEvent::PortDown { port: 1 }))));
    let devices = b.host.devices().unwrap();
    let reason = choose(&devices, &[], &RdmaConfig::default(), None).unwrap_err();
    assert!(matches!(reason, Unavailable::PortDown { .. }));
    a.send(1);
    assert!(b.received().is_empty());
    b.host.set_link(true);
    assert!(matches!(events.poll_next(&mut cx), Poll::Ready(Ok(DeviceEvent::PortUp { port: 1 }))));
    assert_eq!(b.received(), [1]);
}

#[test]
fn peer_that_is_gone_or_expects_another_packet_is_noticed() {
    let fabric = Fabric::new(1);
    let (a, b) = pair(&fabric);
    drop(b.qp);
    a.send(1);
    assert_eq!(a.failures(), [WcStatus::RETRY_EXC_ERR]);

    let (a, b) = (End::new(fabric.host([10, 0, 0, 3].into())), End::new(fabric.host([10, 0, 0, 4].into())));
    connect(&a, &b, 6);
    let stranger = End::new(fabric.host([10, 0, 0, 5].into()));
    let tuning = QpTuning::new(a.path.status.active_mtu);
    stranger.qp.to_rtr(&stranger.path, &b.address(), &tuning).unwrap();
    stranger.qp.to_rts(a.address().psn, &tuning).unwrap();
    b.receives(1);
    stranger.send(9);
    assert_eq!(stranger.failures(), [WcStatus::RETRY_EXC_ERR]);
    assert!(b.received().is_empty(), "a stranger's message");
}

#[test]
fn unpolled_completions_vanish_with_their_queue_pair() {
    let fabric = Fabric::new(1);
    let (a, b) = pair(&fabric);
    b.receives(4);
    let other = End::new(fabric.host([10, 0, 0, 3].into()));
    a.send(1);
    // Somebody polls, so the message arrives; b does not.
    assert_eq!(a.poll(Cq::Send).len(), 1);
    a.send(2);
    let End { qp, queues, slab, .. } = b;
    let number = qp.number();
    drop(qp);
    let mut out = Vec::new();
    queues.poll(Cq::Receive, 9, &mut out).unwrap();
    assert!(out.is_empty());
    assert_eq!(queues.receives_posted(), 4);
    assert_eq!(
        fabric.lock().shards.values().map(|shard| shard.posted.len()).sum::<usize>(),
        3,
        "the second is lost"
    );
    drop(queues);
    let free = std::iter::from_fn(|| slab.take()).collect::<Vec<_>>().len();
    assert_eq!(free, 64, "until the queue is gone");
    assert_eq!(other.queues.create_qp(SIZE).unwrap().number(), number, "numbers come back at once");
}

#[test]
fn killed_queue_pair_is_an_event_and_flushes_its_sends_but_no_receives() {
    let fabric = Fabric::new(1);
    let (a, b) = pair(&fabric);
    a.receives(2);
    fabric.set_traffic(false);
    a.send(1);
    a.send(2);
    assert!(fabric.kill_qp(a.qp.number()) && !fabric.kill_qp(9999));
    assert_eq!(a.failures(), [WcStatus::FATAL_ERR, WcStatus::WR_FLUSH_ERR]);
    assert!(a.received().is_empty());
    assert_eq!(a.queues.receives_posted(), 2);
    let mut events = a.device.events().unwrap();
    let event = events.poll_next(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(event, Poll::Ready(Ok(DeviceEvent::QpFailed { qp_num })) if qp_num == a.qp.number()));
    fabric.set_traffic(true);
    b.send(1);
    assert_eq!(b.failures(), [WcStatus::RETRY_EXC_ERR]);
}

#[test]
fn completion_queue_that_overflows_is_lost() {
    let fabric = Fabric::new(1);
    let (host, a) = (fabric.host([10, 0, 0, 2].into()), End::new(fabric.host([10, 0, 0, 1].into())));
    host.limit_completion_queues(2);
    let b = End::new(host);
    connect(&a, &b, 6);
    b.receives(4);
    (0..3).for_each(|n| a.send(n));
    assert_eq!(a.poll(Cq::Send).len(), 3);
    let mut events = b.device.events().unwrap();
    let event = events.poll_next(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Ok(DeviceEvent::QueueFailed { queue_id })) = event else { panic!("{event:?}") };
    assert!(b.queues.owns(queue_id) && !a.queues.owns(queue_id));
    assert!(b.queues.poll(Cq::Receive, 9, &mut Vec::new()).is_err());
    assert!(b.queues.poll(Cq::Send, 9, &mut Vec::new()).is_ok());
}

#[test]
fn solicited_only_arming_sleeps_through_the_rest() {
    let (a, b) = pair(&Fabric::new(1));
    b.receives(4);
    let mut channel = b.queues.channel().unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    b.queues.arm(Cq::Receive, true).unwrap();
    a.send(1);
    assert!(channel.poll_event(&mut cx).is_pending());
    let parts = [a.message(2), Bytes::new()];
    a.qp.post(&mut VecDeque::from([Work::Send { parts, signaled: false, solicited: true }])).unwrap();
    assert!(channel.poll_event(&mut cx).is_ready());
    assert_eq!(b.received(), [1, 2]);
    a.send(3);
    assert!(channel.poll_event(&mut cx).is_pending(), "one event per arming");
}

#[tokio::test]
async fn sleeper_is_woken_without_anybody_polling() {
    let (a, b) = pair(&Fabric::new(1));
    b.receives(1);
    let mut channel = b.queues.channel().unwrap();
    b.queues.arm(Cq::Receive, false).unwrap();
    let sleeper = tokio::spawn(async move {
        poll_fn(|cx| channel.poll_event(cx)).await.unwrap();
        b.received()
    });
    tokio::task::yield_now().await;
    a.send(5);
    assert_eq!(sleeper.await.unwrap(), [5]);
}

#[test]
fn discovery_fails_as_it_is_told() {
    let host = Fabric::new(1).host([10, 0, 0, 1].into());
    let config = RdmaConfig::default();
    let devices = host.devices().unwrap();
    for reason in [
        Unavailable::LibraryAbsent { library: "libibverbs.so.1".into(), detail: "not found".into() },
        Unavailable::NoDevice { detail: "none".into() },
    ] {
        host.fail_discovery(Some(reason.clone()));
        assert_eq!(host.devices().unwrap_err(), reason);
    }
    host.fail_discovery(None);
    let forbidden = Unavailable::NoPermission { path: "/dev/infiniband/uverbs0".into() };
    host.fail_open(Some(forbidden.clone()));
    assert_eq!(host.open(&devices[0], &config).unwrap_err(), forbidden);
    host.fail_open(None);
    host.set_gid(false);
    let reason = choose(&host.devices().unwrap(), &host.interfaces(), &config, None).unwrap_err();
    assert!(matches!(reason, Unavailable::NoGid { .. }));
}

#[test]
fn memory_limit_counts_what_is_registered() {
    let host = Fabric::new(1).host([10, 0, 0, 1].into());
    host.limit_memory(Some(100_000));
    let device = host.open(&host.devices().unwrap()[0], &RdmaConfig::default()).unwrap();
    let layout = SlabLayout { slot_size: 64, slots: 1000 };
    let first = device.add_slab(layout).unwrap();
    let Unavailable::Memlock(memlock) = device.add_slab(layout).unwrap_err() else { panic!() };
    assert_eq!((memlock.asked, memlock.in_use, memlock.soft), (64_000, 64_000, Some(100_000)));
    drop((device, first));
    let device = host.open(&host.devices().unwrap()[0], &RdmaConfig::default()).unwrap();
    assert!(device.add_slab(layout).is_ok());
}

#[test]
fn every_call_can_be_the_one_that_fails() {
    let mut failures = 0;
    for calls in 0.. {
        let fabric = Fabric::new(1);
        let host = fabric.host([10, 0, 0, 1].into());
        host.fail_call_after(calls);
        let done = (|| -> Result<(), ()> {
            let device = host.open(&host.devices().unwrap()[0], &RdmaConfig::default()).map_err(drop)?;
            let slab = device.add_slab(SlabLayout { slot_size: 64, slots: 4 }).map_err(drop)?;
            let queues = device.create_queues(QueueSize { receives: 4, sends: 64 }).map_err(drop)?;
            let qp = queues.create_qp(SIZE).map_err(drop)?;
            queues.post_receives(&mut vec![slab.take().unwrap()]).map_err(drop)?;
            queues.arm(Cq::Receive, false).map_err(drop)?;
            qp.alloc_windows(1).map_err(drop)?;
            qp.to_err().map_err(drop)?;
            qp.post_marker().map_err(drop)
        })();
        if !host.has_failed() {
            assert_eq!(done, Ok(()));
            break;
        }
        assert_eq!(done, Err(()));
        failures += 1;
        assert!(fabric.lock().qps.is_empty() && fabric.lock().shards.is_empty());
    }
    assert_eq!(failures, 9);
}
