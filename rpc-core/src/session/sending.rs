//! The state of sending: the outbox, and the links that it feeds.

use std::collections::VecDeque;
use std::sync::Arc;

use super::combining::{Absorb, Queued};
use super::wait_time::WaitTime;
use crate::memory::{Account, Gauge, Use};
use crate::proto::message::{Frame, Message};
use crate::proto::outbox::Outbox;
use crate::proto::small_frames::SmallFrames;
use crate::transport::{Counters, Link};

/// The most that an upgraded link may hold unacknowledged, in bytes.
const MAX_RETAINED: usize = 16 << 20;

/// The state of sending, under one lock that is held while a link is fed.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) outbox: Outbox,
    /// Link frames for the stream link. They go before session frames, because UP and DOWN take effect at their
    /// position.
    pub(crate) control: VecDeque<Frame>,
    pub(crate) upgraded: Option<UpgradedLink>,
    /// The bytes that earlier upgraded links have moved.
    pub(crate) retired: Counters,
    /// The longest frame that the peer accepts on the stream link.
    pub(crate) peer_max_frame: usize,
    /// The memory of the outbox.
    pub(super) gauge: Gauge,
    pub(super) wait_time: WaitTime,
}

impl Sending {
    pub(super) fn new(account: &Arc<Account>) -> Self {
        Self {
            outbox: Outbox::new(0, MAX_RETAINED),
            control: VecDeque::new(),
            upgraded: None,
            retired: Counters::default(),
            peer_max_frame: usize::MAX,
            gauge: Gauge::new(account, Use::Unsent),
            wait_time: WaitTime::default(),
        }
    }

    /// Takes the gauge of what was in the outbox. From now on another one counts.
    pub(crate) fn take_gauge(&mut self, account: &Arc<Account>) -> Gauge {
        std::mem::replace(&mut self.gauge, Gauge::new(account, Use::Unsent))
    }

    /// Stops using the upgraded link, and returns it for the caller to close.
    pub(crate) fn retire(&mut self) -> Option<UpgradedLink> {
        let (epoch, link) = self.upgraded.take()?;
        self.retired += link.counters();
        Some((epoch, link))
    }
}

/// An upgraded link, and its epoch.
pub(crate) type UpgradedLink = (u32, Arc<dyn Link>);

/// Messages that were queued and are not in the outbox yet.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) small_frames: SmallFrames,
    pub(super) others: VecDeque<Message>,
}

impl Queue {
    /// Returns how many messages begin or end calls.
    pub(super) fn of_calls(&self) -> usize {
        let begins_or_ends = |message: &&Message| message.call != 0 && !message.is_amid_call();
        self.small_frames.len() + self.others.iter().filter(begins_or_ends).count()
    }
}

impl Queued for Queue {
    fn len(&self) -> usize {
        self.small_frames.len() + self.others.len()
    }
}

impl Absorb<Queue> for Sending {
    fn absorb(&mut self, queue: &mut Queue) {
        self.outbox.push_small_frames(&mut queue.small_frames);
        while let Some(message) = queue.others.pop_front() {
            self.outbox.push(message);
        }
    }
}
