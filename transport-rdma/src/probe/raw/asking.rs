//! The end that asks.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::half::{Half, Patience};
use super::{Contact, Failed, Operation, Plan, Request};
use crate::config::RdmaConfig;
use crate::device::{Cq, Host, ReadTarget, RemoteRange, Slab, Slot, Work, choose};
use crate::probe::stop::Stop;
use crate::verbs::SystemHost;

/// The end that has its device do something, again and again.
#[derive(Debug)]
pub struct Asking {
    pub(super) half: Half,
    /// The bytes that go there.
    source: Bytes,
    /// The memory that READs fill. `None`: nothing is read.
    target: Option<Arc<ReadTarget>>,
    /// The memory of the other process.
    theirs: RemoteRange,
    /// Messages that have arrived.
    arrived: Vec<(Slot, usize)>,
    /// Slots that messages are to arrive in.
    slots: Vec<Slot>,
    _slab: Option<Arc<Slab>>,
}

impl Asking {
    /// Opens the device that a connection from this local address would use, and registers memory.
    ///
    /// Blocks for milliseconds. Without an address, or with a loopback one, it is the machine's best port.
    ///
    /// # Errors
    ///
    /// The plan is beyond the limits, or the machine or its device can't do it.
    pub fn open(config: &RdmaConfig, local: Option<IpAddr>, plan: Plan) -> Result<Self, Failed> {
        Self::open_at(&SystemHost::default(), config, local, plan)
    }

    pub(super) fn open_at(
        host: &dyn Host,
        config: &RdmaConfig,
        local: Option<IpAddr>,
        plan: Plan,
    ) -> Result<Self, Failed> {
        plan.check()?;
        Ok(Self::made(host, config, local, plan)?)
    }

    fn made(host: &dyn Host, config: &RdmaConfig, local: Option<IpAddr>, plan: Plan) -> Result<Self, Stop> {
        let devices = host.devices()?;
        let chosen = choose(&devices, &host.interfaces(), config, local)?;
        let half = Half::open(host, config, &devices, &chosen, plan)?;
        let size = plan.size as usize;
        let mut extent = half.device.add_arena(size)?.take(size).ok_or_else(Stop::no_memory)?;
        let (source, target) = match plan.operation {
            Operation::Read => (Bytes::new(), Some(ReadTarget::new(extent))),
            Operation::Write | Operation::Send => {
                extent.iter_mut().zip(0..).for_each(|(byte, i): (&mut u8, u32)| *byte = (i * 31) as u8);
                (extent.freeze(0..size), None)
            }
        };
        let mut slots = Vec::new();
        let slab = match plan.operation {
            Operation::Send => Some(half.slab(plan.slots())?),
            Operation::Read | Operation::Write => None,
        };
        slots.extend(slab.iter().flat_map(|slab| std::iter::from_fn(|| slab.take())));
        half.queues.post_receives(&mut slots)?;
        let theirs = RemoteRange { addr: 0, rkey: 0 };
        Ok(Self { half, source, target, theirs, arrived: Vec::new(), slots, _slab: slab })
    }

    /// Returns what the other process needs to [answer](super::Answering::open).
    pub fn request(&self) -> Request {
        Request { plan: self.half.plan, contact: self.half.contact(None) }
    }

    /// Returns the device, port and address in words.
    pub fn name(&self) -> String {
        self.half.name()
    }

    /// Connects with the end that answers. Blocks for milliseconds.
    ///
    /// # Errors
    ///
    /// The contact is malformed, or the device refuses it.
    pub fn connect(&mut self, answering: &Contact) -> Result<(), Failed> {
        self.half.connect(answering)?;
        self.theirs = RemoteRange { addr: answering.addr, rkey: answering.rkey };
        Ok(())
    }

    /// Has the device do its work in a closed loop, and polls for it: a request begins when one has ended.
    ///
    /// `ended` gets two times for each request. The first is when its turn came: when the end of the request before it was seen. The
    /// second is when its own end was seen. `ended` runs while the device does the next request. Once it has returned `false`, no further
    /// request begins, and this returns when the last has ended. Keeps the thread's processor busy meanwhile.
    ///
    /// # Errors
    ///
    /// A request failed, or the device says nothing any more. This is the end of the queue pair.
    pub fn run(&mut self, ended: impl FnMut(Instant, Instant) -> bool) -> Result<(), Failed> {
        Ok(self.work(ended)?)
    }

    fn work(&mut self, mut ended: impl FnMut(Instant, Instant) -> bool) -> Result<(), Stop> {
        let (mut begun, mut over) = (VecDeque::new(), Vec::new());
        let mut patience = Patience::new();
        let (mut now, mut goes_on, mut due) = (Instant::now(), true, usize::from(self.half.plan.in_flight));
        while goes_on || !begun.is_empty() {
            if goes_on {
                (0..due).for_each(|_| self.ask());
                begun.extend(std::iter::repeat_n(now, due));
            }
            self.half.post()?;
            // The device works meanwhile.
            self.tidy()?;
            over.drain(..).for_each(|begun| goes_on &= ended(begun, now));
            // A peer may send more messages than it was asked for. A request that was not posted has no answer.
            let posted = begun.len() - self.half.works.len();
            due = self.completed()?.min(posted);
            if due == 0 {
                if patience.wait()? && self.half.plan.operation == Operation::Send {
                    self.half.reap()?;
                }
                continue;
            }
            now = Instant::now();
            patience.renew(now);
            over.extend(begun.drain(..due));
        }
        for begun in over {
            ended(begun, now);
        }
        Ok(())
    }

    /// Makes the next request.
    fn ask(&mut self) {
        let (len, tag) = (self.half.plan.size as usize, 0);
        match &self.target {
            Some(target) => {
                let into = Arc::clone(target);
                self.half.works.push_back(Work::Read { into, at: 0, len, from: self.theirs, tag });
            }
            None if self.half.plan.operation == Operation::Write => {
                let bytes = self.source.clone();
                self.half.works.push_back(Work::Write { from: bytes.into(), to: self.theirs, tag });
            }
            None => self.half.send(self.source.clone()),
        }
    }

    /// Polls once. Returns how many requests have ended, in the order in which they were made.
    fn completed(&mut self) -> Result<usize, Stop> {
        let cq = match self.half.plan.operation {
            Operation::Send => Cq::Receive,
            Operation::Read | Operation::Write => Cq::Send,
        };
        self.half.poll(cq, &mut self.arrived)
    }

    /// Has further messages arrive in the place of those that have, and takes the completions of those that were sent.
    fn tidy(&mut self) -> Result<(), Stop> {
        if self.arrived.is_empty() {
            return Ok(());
        }
        self.slots.extend(self.arrived.drain(..).map(|(slot, _)| slot));
        self.half.queues.post_receives(&mut self.slots)?;
        self.half.reap()
    }
}
