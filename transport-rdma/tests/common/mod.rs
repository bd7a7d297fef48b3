//! Two queue pairs of one process that talk to each other through a device.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

pub(crate) mod atomics;
mod beside;
pub(crate) mod keys;
pub(crate) mod scenarios;
pub(crate) mod windows;
pub(crate) mod words;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use farcall_rdma::testing::device::*;

pub(crate) const SLOT: usize = 8192;

pub(crate) const SIZE: QpSize = QpSize { sends: 64, signal_every: 16, inline: 220 };

/// Against hanging only: nothing here takes a tenth of it.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Machine {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) path: LocalPath,
    pub(crate) slab: Arc<Slab>,
}

impl Machine {
    /// The device of this machine that the configuration allows, with two MiB of memory.
    pub(crate) fn open(host: &dyn Host, config: &RdmaConfig) -> Self {
        let devices = host.devices().unwrap();
        let chosen = choose(&devices, &host.interfaces(), config, None).unwrap();
        let summary = devices.iter().find(|device| device.name == chosen.device).unwrap();
        let device = host.open(summary, config).unwrap();
        let path = LocalPath::new(chosen.port, &chosen.gid, device.port(chosen.port).unwrap(), config);
        let slab = device.add_slab(SlabLayout { slot_size: SLOT, slots: 256 }).unwrap();
        Self { device, path, slab }
    }

    /// One end, with this many receives posted.
    pub(crate) fn end(&self, receives: usize) -> End {
        self.end_of_size(receives, SIZE)
    }

    pub(crate) fn end_of_size(&self, receives: usize, size: QpSize) -> End {
        let queues = self.device.create_queues(QueueSize { receives: 128, sends: 256 }).unwrap();
        let qp = queues.create_qp(size).unwrap();
        qp.to_init(&self.path).unwrap();
        let end = End { queues, qp, slab: Arc::clone(&self.slab), psn: 0xff_fff0, path: self.path };
        end.post_receives(receives);
        end
    }

    pub(crate) fn pair(&self, receives: usize) -> (End, End) {
        let (a, b) = (self.end(receives), self.end(receives));
        let tuning = self.tuning();
        connect(&a, &b, &tuning);
        (a, b)
    }

    /// A missing receive fails at once, and a missing peer within milliseconds.
    pub(crate) fn tuning(&self) -> QpTuning {
        QpTuning { timeout: 10, retry_cnt: 2, rnr_retry: 0, ..QpTuning::new(self.path.status.active_mtu) }
    }

    /// How many slots are free.
    pub(crate) fn free(&self) -> usize {
        std::iter::from_fn(|| self.slab.take()).collect::<Vec<_>>().len()
    }
}

pub(crate) struct End {
    // The fields are dropped in order: the queue pair before its queues, though it does not matter to them.
    pub(crate) qp: Arc<dyn QueuePair>,
    pub(crate) queues: Arc<dyn Queues>,
    pub(crate) slab: Arc<Slab>,
    pub(crate) psn: u32,
    pub(crate) path: LocalPath,
}

pub(crate) fn connect(a: &End, b: &End, tuning: &QpTuning) {
    for (this, that) in [(a, b), (b, a)] {
        this.qp.to_rtr(&this.path, &that.address(), tuning).unwrap();
        this.qp.to_rts(this.psn, tuning).unwrap();
    }
}

impl End {
    pub(crate) fn address(&self) -> RemoteQp {
        let lid = self.path.status.lid;
        RemoteQp { qp_num: self.qp.number(), psn: self.psn, gid: self.path.gid, lid }
    }

    pub(crate) fn post_receives(&self, count: usize) {
        let mut slots: Vec<Slot> = (0..count).map(|_| self.slab.take().unwrap()).collect();
        assert_eq!(self.queues.post_receives(&mut slots).unwrap(), count);
        assert!(slots.is_empty());
    }

    /// A message of this length in registered memory.
    pub(crate) fn message(&self, len: usize, fill: u8) -> Bytes {
        let mut slot = self.slab.take().unwrap();
        slot[..len].fill(fill);
        slot.freeze(0..len)
    }

    pub(crate) fn send(&self, message: Bytes) {
        let mut requests = VecDeque::from([request(message)]);
        assert_eq!(self.qp.post(&mut requests).unwrap(), 1);
    }

    /// Sends messages, and returns when they have arrived.
    pub(crate) fn send_and_await(&self, count: u8) {
        for i in 0..count {
            let parts = [self.message(1024, i), Bytes::new()];
            let mut requests = VecDeque::from([Work::Send { parts, signaled: true, solicited: false }]);
            assert_eq!(self.qp.post(&mut requests).unwrap(), 1);
            let done = self.poll(Cq::Send, 1).remove(0);
            assert!(matches!(done, Completion::Sent { count: 1, .. }), "{done:?}");
        }
    }

    /// The next completions, by polling.
    pub(crate) fn poll(&self, cq: Cq, count: usize) -> Vec<Completion> {
        let (mut out, start) = (Vec::new(), Instant::now());
        while out.len() < count {
            if self.queues.poll(cq, count - out.len(), &mut out).unwrap() == 0 {
                assert!(start.elapsed() < LIMIT, "{cq:?}: {} of {count} completions", out.len());
                std::thread::yield_now();
            }
        }
        out
    }

    /// The next completion of either queue, sleeping until there is one.
    pub(crate) async fn wait(&self, channel: &mut dyn Channel, cq: Cq) -> Completion {
        let mut out = Vec::new();
        loop {
            if self.queues.poll(cq, 1, &mut out).unwrap() == 1 {
                return out.remove(0);
            }
            self.queues.arm(cq, false).unwrap();
            if self.queues.poll(cq, 1, &mut out).unwrap() == 1 {
                return out.remove(0);
            }
            let event = poll_fn(|cx| channel.poll_event(cx));
            tokio::time::timeout(LIMIT, event).await.expect("no event came").unwrap();
        }
    }

    /// Sets the queue pair to ERR and polls its sends until the last; says how many there were and how they ended.
    pub(crate) fn drain(&self) -> (usize, Vec<WcStatus>) {
        self.qp.to_err().unwrap();
        self.qp.post_marker().unwrap();
        let (mut total, mut failures) = (0, Vec::new());
        loop {
            match self.poll(Cq::Send, 1).remove(0) {
                Completion::Sent { count, .. } => total += count,
                Completion::SendFailed { count, error, .. } => {
                    total += count;
                    failures.push(error.status);
                }
                Completion::Drained { count, qp_num } => {
                    assert_eq!(qp_num, self.qp.number());
                    return (total + count, failures);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

pub(crate) fn request(message: Bytes) -> Work {
    Work::Send { parts: [message, Bytes::new()], signaled: false, solicited: false }
}

pub(crate) fn received(completion: Completion) -> Bytes {
    match completion {
        Completion::Received { slot, len, .. } => slot.freeze(0..len),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn failure(completion: Completion) -> WcStatus {
    match completion {
        Completion::SendFailed { error, .. } | Completion::ReceiveFailed { error, .. } => error.status,
        other => panic!("{other:?}"),
    }
}

/// Polls until the send queue is empty, which it is when everything has completed and was asked for.
pub(crate) fn reap(end: &End) {
    let start = Instant::now();
    let mut out = Vec::new();
    while end.queues.poll(Cq::Send, 64, &mut out).unwrap() > 0
        || end.qp.sends_outstanding() > SIZE.sends as usize / 2
    {
        assert!(start.elapsed() < LIMIT);
    }
    assert!(out.iter().all(|c| matches!(c, Completion::Sent { .. })), "{out:?}");
}
