//! Links on their way out.
//!
//! A link ends in this order: its handler is told, what was taken to be sent is sent, the queue pair goes to ERR, a marker
//! comes back behind all that was outstanding, the receive queue is found empty, the queue pair is destroyed. Destroying it
//! earlier would lose completions, and with them receives, on devices that drop those of a queue pair that is gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_core::transport::LinkEnd;

use crate::link::LinkCore;
use crate::resources::Control;

/// How long sending what was taken may take, and then draining.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a link whose peer has closed it waits to be closed here, too. The session hears of it by its stream link, where
/// the reason comes; without the wait it would often hear of it here first, and take it for a failure.
const FAREWELL: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Teardown(Vec<Ending>);

struct Ending {
    link: Arc<LinkCore>,
    stage: Stage,
    deadline: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The peer has closed it, and its handler has not been told.
    Farewell,
    /// Frames that were taken to be sent are on their way.
    Sending,
    /// The queue pair goes to ERR, and the marker after it.
    Draining,
    /// The marker has come back: no send is outstanding, and no receive will complete.
    Drained,
}

impl Teardown {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// When the next of them has to go on, whether or not anything has come.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.iter().map(|ending| ending.deadline).min()
    }

    /// The link is over, for this reason.
    pub(super) fn begin(&mut self, link: &Arc<LinkCore>, end: LinkEnd) {
        let known = self.0.iter_mut().find(|ending| ending.link.number() == link.number());
        let now = Instant::now();
        // A failure after the peer has closed the link follows from that.
        let heard = known.as_ref().is_some_and(|ending| ending.stage == Stage::Farewell) && !end.malformed;
        if (!end.failed || heard) && !link.is_closing() {
            if known.is_none() {
                link.hear_farewell();
                let deadline = now + FAREWELL;
                self.0.push(Ending { link: Arc::clone(link), stage: Stage::Farewell, deadline });
            }
            return;
        }
        link.end(end);
        let sending = Ending { link: Arc::clone(link), stage: Stage::Sending, deadline: now + PATIENCE };
        match known {
            None => self.0.push(sending),
            Some(ending) if ending.stage == Stage::Farewell => *ending = sending,
            Some(_) => {}
        }
    }

    /// The marker of this queue pair has come back.
    pub(super) fn drained(&mut self, qp_num: u32) {
        if let Some(ending) = self.0.iter_mut().find(|ending| ending.link.number() == qp_num) {
            ending.stage = Stage::Drained;
        }
    }

    /// Lets those go on who can, or must.
    pub(super) fn advance(&mut self, control: &Control) {
        if self.0.is_empty() {
            return;
        }
        let now = Instant::now();
        for ending in &mut self.0 {
            let late = ending.deadline <= now;
            if ending.stage == Stage::Farewell && late {
                ending.link.end(LinkEnd::orderly());
                ending.stage = Stage::Sending;
                ending.deadline = now + PATIENCE;
            }
            if ending.stage == Stage::Sending && ending.link.is_connecting() {
                // A call on its queue pair has not returned. To wait for that here would hold up other links.
                ending.deadline = now + PATIENCE;
            } else if ending.stage == Stage::Sending && (late || ending.link.has_sent()) {
                ending.stage = Stage::Draining;
                ending.deadline = now + PATIENCE;
                if let Some(qp) = ending.link.qp() {
                    control.spawn(move || {
                        // If the device refuses, the deadline ends the link undrained.
                        let _ = qp.to_err().map(|()| qp.post_marker());
                    });
                }
            } else if ending.stage == Stage::Draining && late {
                tracing::warn!(link = ending.link.name(), "its queue pair does not drain; destroying it");
                ending.stage = Stage::Drained;
            }
        }
    }

    /// Takes those out that are drained. To be asked when the receive queue was found empty after they were.
    pub(super) fn take_drained(&mut self) -> impl Iterator<Item = Arc<LinkCore>> {
        self.0.extract_if(.., |ending| ending.stage == Stage::Drained).map(|ending| ending.link)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
