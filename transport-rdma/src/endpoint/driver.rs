//! The driver: takes completions, delivers what arrives, and sees links to their end.
//!
//! It never waits. A task ([`super::wait`]) or a thread ([`super::busy`]) runs it when there is something to do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use farcall_core::transport::LinkEnd;
use tokio::task::AbortHandle;

use super::Shard;
use super::intake::Intake;
use super::teardown::Teardown;
use crate::device::{Completion, Cq, DeviceError, DeviceEvent};
use crate::link::LinkCore;

/// Completions that are handled before other tasks get their turn.
const BATCH: usize = 64;

/// Messages that are taken from the device before the first of them is delivered. Credits keep them below this; it is for a
/// peer that does not heed them.
const MAX_ARRIVALS: usize = 4096;

/// Turns that pass over sends of which no completion was asked for. If they fail, their link ends that much later.
const SILENT_TURNS: u32 = 16;

/// Drives a shard from its beginning to its end. Dropping it leaves the links without a word to their handlers, unless it
/// is a panic that drops it.
pub(super) struct Driver {
    shard: Arc<Shard>,
    /// The task that reads the device's events.
    watch: AbortHandle,
    teardown: Teardown,
    /// Since sends were looked at.
    turns: u32,
    /// Whether handlers took long in the last turn.
    was_long: bool,
}

impl Driver {
    pub(super) fn new(shard: Arc<Shard>, watch: AbortHandle) -> Self {
        Self { shard, watch, teardown: Teardown::default(), turns: 0, was_long: false }
    }

    pub(super) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// Whether the last link and the last [`super::Endpoint`] are gone, or the runtime is.
    pub(super) fn is_done(&self) -> bool {
        let mailbox = &self.shard.resources.mailbox;
        let unused = self.teardown.is_empty() && mailbox.is_leaving() && self.shard.links().is_empty();
        unused || mailbox.is_forsaken()
    }

    /// When the next turn is due, whether or not anything has come.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.teardown.deadline()
    }

    /// Whether handlers took long in the last turn, so that timers and sockets may wait, too.
    pub(super) fn was_long(&self) -> bool {
        self.was_long
    }

    /// Does what [`turn`](Self::turn) does and looks at everything, before the driver sleeps.
    pub(super) fn last_turn(&mut self) -> Result<bool, DeviceError> {
        self.turns = SILENT_TURNS;
        self.turn()
    }

    /// Does what there is to do now and says whether there was anything.
    pub(super) fn turn(&mut self) -> Result<bool, DeviceError> {
        let shard = Arc::clone(&self.shard);
        shard.resources.counts.polled();
        shard.polling.driver_turns();
        shard.meter.tell_soon(&shard);
        // Waits for a helper at most, for microseconds. Handlers run while this is held: they, too, can only ask whether
        // it is free, which it is not.
        let mut intake = shard.intake();
        let (polled, delivered) = self.receive(&mut intake)?;
        if polled < BATCH && !self.teardown.is_empty() {
            self.finish_drained();
        }
        let sent = self.reap(&shard, &mut intake)?;
        let mail = self.read_mail(&mut intake)?;
        self.teardown.advance(&self.shard.device.control);
        Ok(intake.is_ready() || polled + delivered + sent + mail > 0)
    }

    /// Takes all that has arrived; then delivers some of it. Returns how many completions the last batch had, and how
    /// many messages were delivered.
    fn receive(&mut self, intake: &mut Intake) -> Result<(usize, usize), DeviceError> {
        let polled = self.take_in(intake)?;
        let mut count = 0;
        self.was_long = false;
        // A link whose handlers take long ends the turn. The others are before it in the next ones.
        while count < BATCH
            && !self.was_long
            && let Some(link) = intake.next()
        {
            let delivered = intake.deliver(&link, BATCH - count);
            // A link that has nothing but a frame of its own counts, too.
            count += delivered.messages.max(1);
            self.was_long = delivered.was_long;
            if let Some(end) = delivered.over {
                self.end(&link, end);
            }
        }
        Ok((polled, count))
    }

    /// Takes all that has arrived. Returns how many completions the last batch had.
    fn take_in(&self, intake: &mut Intake) -> Result<usize, DeviceError> {
        let mut taken = 0;
        loop {
            let polled = intake.poll(&self.shard, BATCH)?;
            taken += polled;
            // All at once, because a message is held against what its sender knew when it came: what is told it meanwhile
            // must not excuse messages that were there already.
            if polled < BATCH || taken >= MAX_ARRIVALS {
                return Ok(polled);
            }
        }
    }

    /// Takes completions of sends, and lets those go on who waited for room.
    fn reap(&mut self, shard: &Shard, intake: &mut Intake) -> Result<usize, DeviceError> {
        // Waits for a helper at most, as for the intake.
        let mut done = shard.done();
        self.turns += 1;
        if self.turns < SILENT_TURNS && done.is_empty() && !shard.queues.awaits_sends() {
            return Ok(0);
        }
        self.turns = 0;
        shard.queues.poll(Cq::Send, BATCH, &mut done)?;
        let count = done.len();
        if count == 0 {
            return Ok(0);
        }
        for completion in done.drain(..) {
            match completion {
                Completion::Sent { qp_num, .. } => {
                    if let Some(link) = self.link(qp_num) {
                        link.on_room();
                    }
                }
                Completion::Moved { qp_num, .. } => {
                    if let Some(link) = self.link(qp_num) {
                        link.on_moved();
                        self.go_on(&link);
                    }
                }
                Completion::SendFailed { qp_num, error, .. } => {
                    if let Some(link) = self.link(qp_num) {
                        let end = link.explain(error);
                        self.fail(intake, link, end)?;
                    }
                }
                Completion::Drained { qp_num, .. } => self.teardown.drained(qp_num),
                // A send queue completes no receives.
                Completion::Received { .. } | Completion::ReceiveFailed { .. } => {}
            }
        }
        drop(done);
        for waiter in self.shard.resources.mailbox.take_slot_waiters() {
            if let Some(link) = self.link(waiter) {
                link.on_room();
            }
        }
        Ok(count)
    }

    fn read_mail(&mut self, intake: &mut Intake) -> Result<usize, DeviceError> {
        let Some(mail) = self.shard.resources.mailbox.take() else { return Ok(0) };
        let count = mail.changed.len() + mail.failed.len() + mail.events.len();
        for number in mail.changed {
            let Some(link) = self.link(number) else { continue };
            if link.is_closing() {
                self.end(&link, LinkEnd::orderly());
            } else {
                intake.started(&link);
                link.read_on();
                self.go_on(&link);
            }
        }
        for (number, end) in mail.failed {
            if let Some(link) = self.link(number) {
                self.end(&link, end);
            }
        }
        for event in mail.events {
            self.on_event(intake, event)?;
        }
        Ok(count)
    }

    fn on_event(&mut self, intake: &mut Intake, event: DeviceEvent) -> Result<(), DeviceError> {
        let device = self.shard.device.device.name();
        let lost = |operation| DeviceError { device: device.to_owned(), operation, errno: libc::EIO };
        match event {
            DeviceEvent::QpFailed { qp_num } => {
                if let Some(link) = self.link(qp_num) {
                    let why = format!("{}: {event}, says the device; {}", link.ends(), event.remedy());
                    self.fail(intake, link, LinkEnd::failed(why))?;
                }
            }
            DeviceEvent::QueueFailed { queue_id } if self.shard.queues.owns(queue_id) => {
                return Err(lost("a completion queue (asynchronous event)"));
            }
            DeviceEvent::DeviceFailed => return Err(lost("the device (asynchronous event)")),
            // Those of ports do not come here.
            _ => {}
        }
        Ok(())
    }

    /// Delivers the messages that were read, and lets answers leave.
    fn go_on(&mut self, link: &Arc<LinkCore>) {
        match link.deliver_pulled() {
            Some(end) => self.end(link, end),
            None => link.batch_end(),
        }
    }

    /// The link has failed, which its handler hears after what has arrived. The last message may be the peer's CLOSE,
    /// because of which the link has failed.
    fn fail(&self, intake: &mut Intake, link: Arc<LinkCore>, end: LinkEnd) -> Result<(), DeviceError> {
        self.take_in(intake)?;
        intake.fail(link, end);
        Ok(())
    }

    /// The link is over: tells its handler, after all that was delivered before, and begins to take it down.
    fn end(&mut self, link: &Arc<LinkCore>, end: LinkEnd) {
        self.teardown.begin(link, end);
    }

    /// Lets go of the links that are drained. Called when the receive queue was found empty after they were.
    fn finish_drained(&mut self) {
        for link in self.teardown.take_drained() {
            self.shard.links().remove(&link.number());
            link.release();
            let room = Arc::clone(&self.shard.room);
            // Behind the destruction of the queue pair.
            self.shard.device.control.spawn(move || room.note_destroyed(&link));
        }
    }

    fn link(&self, qp_num: u32) -> Option<Arc<LinkCore>> {
        self.shard.link(qp_num)
    }

    /// The queues are lost, and all links with them. The next link gets an endpoint of its own.
    pub(super) fn die(&mut self, why: &str) {
        tracing::error!(why, "an RDMA endpoint is lost");
        self.abandon(Some(&LinkEnd::failed(why)));
    }

    fn abandon(&mut self, end: Option<&LinkEnd>) {
        // No helper delivers meanwhile.
        let shard = Arc::clone(&self.shard);
        let _intake = shard.intake();
        let links: Vec<_> = {
            let mut links = self.shard.links();
            self.shard.dead.store(true, Ordering::Release);
            std::mem::take(&mut *links).into_values().collect()
        };
        self.teardown.clear();
        shard.room.note_lost();
        for link in links {
            if let Some(qp) = link.qp().filter(|_| !link.is_connecting()) {
                self.shard.device.control.spawn(move || drop(qp.to_err()));
            }
            match end {
                Some(end) => {
                    link.end(end.clone());
                    link.release();
                }
                None => link.abandon(),
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.watch.abort();
        // With the runtime go the connections: there is nobody to be told. But a panic here must not leave them waiting.
        let end = std::thread::panicking()
            .then(|| LinkEnd::failed("the RDMA driver has panicked; report this as a bug"));
        self.abandon(end.as_ref());
    }
}
