//! The end that answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::half::{Half, LOOK_EVERY, Patience, address, give_way};
use super::{Contact, Failed, Operation, Request};
use crate::config::RdmaConfig;
use crate::device::{
    Cq, Exposure, Host, Paths, RegisteredWords, RemoteAccess, RemoteRange, Slab, Slot, StreamEnds, Work,
    addresses,
};
use crate::dma::SharedExtent;
use crate::probe::stop::Stop;
use crate::verbs::SystemHost;

/// The end whose memory is used, or whose messages are sent back.
#[derive(Debug)]
pub struct Answering {
    half: Half,
    /// The memory that the peer may use. `None`: it sends messages.
    memory: Option<RemoteRange>,
    /// Where messages arrive. `None`: none do.
    slab: Option<Arc<Slab>>,
    /// Messages that have arrived.
    arrived: Vec<(Slot, usize)>,
    /// Slots that messages are to arrive in.
    slots: Vec<Slot>,
}

impl Answering {
    /// Opens the device that reaches the asking process, registers memory, and connects with it.
    ///
    /// `local` and `peer` are the ends of the connection by which the request came, as this process sees them. Blocks for milliseconds.
    ///
    /// # Errors
    ///
    /// The request is beyond the limits of a [`Plan`](super::Plan), or makes no sense, or the machine or its device can't do it.
    pub fn open(
        config: &RdmaConfig,
        local: Option<IpAddr>,
        peer: Option<IpAddr>,
        request: &Request,
    ) -> Result<Self, Failed> {
        Self::open_at(&SystemHost::default(), config, StreamEnds { local, peer }, request)
    }

    pub(super) fn open_at(
        host: &dyn Host,
        config: &RdmaConfig,
        stream: StreamEnds,
        request: &Request,
    ) -> Result<Self, Failed> {
        request.plan.check()?;
        Ok(Self::made(host, config, stream, request)?)
    }

    fn made(
        host: &dyn Host,
        config: &RdmaConfig,
        stream: StreamEnds,
        request: &Request,
    ) -> Result<Self, Stop> {
        let devices = host.devices()?;
        let own = addresses(&devices, &host.interfaces(), config, stream.local)?;
        let theirs = address(&request.contact)?;
        let pair = Paths::default().choose(&own, &[theirs], stream, host.home_node());
        let no_pair = || {
            let ip = theirs.gid.ip();
            Stop::Other(format!(
                "no address of this machine's devices reaches {ip}, which is of another kind"
            ))
        };
        let (chosen, _) = pair.ok_or_else(no_pair)?;
        let half = Half::open(host, config, &devices, &own[chosen], request.plan)?;
        let (arrived, slots) = (Vec::new(), Vec::new());
        let mut answering = Self { half, memory: None, slab: None, arrived, slots };
        match request.plan.operation {
            Operation::Send => {
                answering.slab = Some(answering.half.slab(request.plan.slots())?);
                answering.receive()?;
                answering.half.connect(&request.contact)?;
            }
            Operation::Read | Operation::Write => {
                answering.half.connect(&request.contact)?;
                answering.memory = Some(answering.expose()?);
            }
        }
        Ok(answering)
    }

    /// Lets the peer use memory, for as long as this end is there.
    fn expose(&mut self) -> Result<RemoteRange, Stop> {
        let half = &mut self.half;
        let size = half.plan.size as usize;
        let extent = half.device.add_arena(size)?.take(size).ok_or_else(Stop::no_memory)?;
        half.qp().alloc_windows(1)?;
        let exposure: Exposure = match half.plan.operation {
            Operation::Write => {
                let words = RegisteredWords::within_arena(SharedExtent::new(extent), size);
                half.qp().expose_words(Arc::new(words), RemoteAccess::WRITE)?
            }
            _ => half.qp().expose(&extent.freeze(0..size))?,
        };
        half.works.push_back(Work::Bind(exposure));
        half.post()?;
        let mut patience = Patience::new();
        while half.poll(Cq::Send, &mut self.arrived)? == 0 {
            patience.wait()?;
        }
        Ok(RemoteRange { addr: exposure.addr(), rkey: exposure.rkey() })
    }

    /// Posts receives for as many messages as there is memory.
    fn receive(&mut self) -> Result<(), Stop> {
        self.slots.extend(std::iter::from_fn(|| self.slab.as_ref()?.take()));
        self.half.queues.post_receives(&mut self.slots)?;
        Ok(())
    }

    /// Whether as many messages can arrive as the peer sends at a time. For each that goes back, another may come.
    fn can_receive(&self) -> bool {
        self.half.queues.receives_posted() >= usize::from(self.half.plan.in_flight)
    }

    /// Returns what the asking process needs to [connect](super::Asking::connect).
    pub fn contact(&self) -> Contact {
        self.half.contact(self.memory)
    }

    /// Returns the device, port and address in words.
    pub fn name(&self) -> String {
        self.half.name()
    }

    /// Answers for as long as it is wanted, which is asked again and again.
    ///
    /// Messages are polled for, which keeps the thread's processor busy. READs and WRITEs are done by the device, and the thread sleeps.
    ///
    /// # Errors
    ///
    /// A request failed, as it does after the peer has gone. This is the end of the queue pair.
    pub fn answer(&mut self, is_wanted: impl FnMut() -> bool) -> Result<(), Failed> {
        if self.slab.is_some() {
            self.send_back(is_wanted)?;
        } else {
            stay(is_wanted);
        }
        Ok(())
    }

    fn send_back(&mut self, mut is_wanted: impl FnMut() -> bool) -> Result<(), Stop> {
        let mut polls = 0_u32;
        loop {
            if polls.is_multiple_of(LOOK_EVERY) {
                self.half.reap()?;
                if !is_wanted() {
                    return Ok(());
                }
            }
            polls = polls.wrapping_add(1);
            self.half.poll(Cq::Receive, &mut self.arrived)?;
            if self.arrived.is_empty() && self.half.works.is_empty() {
                give_way(polls);
                continue;
            }
            let longest = self.half.plan.size as usize;
            for (slot, len) in self.arrived.drain(..) {
                self.half.send(slot.freeze(0..len.min(longest)));
            }
            if self.can_receive() {
                self.half.post()?;
            }
            self.receive()?;
            self.half.reap()?;
        }
    }
}

/// Sleeps for as long as it is wanted.
fn stay(mut is_wanted: impl FnMut() -> bool) {
    while is_wanted() {
        thread::sleep(Duration::from_millis(20));
    }
}
