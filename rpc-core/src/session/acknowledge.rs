//! Acknowledgement of what arrived by an upgraded link, when no other frame carries it (WIRE.md section 4).

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use super::sender::Sender;
use crate::proto::message::Frame;
use crate::proto::wire::FrameType;

/// How long frames from an upgraded link may stay unacknowledged.
const ACKNOWLEDGE: Duration = Duration::from_millis(10);

/// How many frames may be unacknowledged before an ACK is sent at once.
const ACKNOWLEDGE_AT_ONCE: u32 = 64;

impl Sender {
    /// Records the number of the last frame received, for the headers of the frames sent from now on.
    #[inline]
    pub(crate) fn note_received(&self, seq: u32) {
        self.received.store(seq, Ordering::Release);
    }

    /// Returns the number that a frame sent now acknowledges in its header.
    pub(super) fn acknowledge_now(&self) -> u32 {
        let received = self.received.load(Ordering::Acquire);
        self.acknowledged.store(received, Ordering::Release);
        received
    }

    /// Acknowledges what arrived. If much is unacknowledged, does so at once, else soon, unless another frame does
    /// meanwhile.
    pub(crate) fn acknowledge_soon(&self) {
        match self.unacknowledged() {
            0 => {}
            ACKNOWLEDGE_AT_ONCE.. => self.acknowledge(),
            _ if self.acknowledging.swap(true, Ordering::AcqRel) => {}
            _ => drop(self.runtime.spawn(acknowledge_what_stays(self.me.clone()))),
        }
    }

    /// Returns how many received frames no header has acknowledged.
    fn unacknowledged(&self) -> u32 {
        self.received.load(Ordering::Acquire).wrapping_sub(self.acknowledged.load(Ordering::Acquire))
    }

    fn acknowledge(&self) {
        self.change(|sending| {
            // Any frame that waits there acknowledges as well when it is sent. The peer may read slowly, so at most one
            // ACK waits.
            if sending.control.is_empty() {
                sending.control.push_back(Frame::link(FrameType::ACK, Bytes::new()));
            }
        });
    }
}

/// Acknowledges what no header has acknowledged for a while, and ends when nothing is left. Frames that go the other
/// way acknowledge for free. The task checks only after each pause. If it checked first, consecutive calls would each
/// start a task that finds nothing to do, because each leaves its acknowledgement to the next.
async fn acknowledge_what_stays(sender: Weak<Sender>) {
    loop {
        let Some(this) = sender.upgrade() else { return };
        let seen = this.received.load(Ordering::Acquire);
        drop(this);
        tokio::time::sleep(ACKNOWLEDGE).await;
        let Some(this) = sender.upgrade() else { return };
        if (this.acknowledged.load(Ordering::Acquire).wrapping_sub(seen) as i32) < 0 {
            this.acknowledge();
        }
        if this.unacknowledged() == 0 {
            this.acknowledging.swap(false, Ordering::AcqRel);
            // A frame that arrived just before was left to this task. One that arrives from now on starts another task.
            if this.unacknowledged() == 0 || this.acknowledging.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }
}
