//! Acknowledgement of what arrived by an upgraded link, where no frame that leaves anyway does it (WIRE.md section 4).

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use super::sender::Sender;
use crate::proto::message::Frame;
use crate::proto::wire::FrameType;

/// How long frames that arrived by an upgraded link may stay unacknowledged.
const ACKNOWLEDGE: Duration = Duration::from_millis(10);

/// How many frames may be unacknowledged before an ACK is sent at once.
const ACKNOWLEDGE_AT_ONCE: u32 = 64;

impl Sender {
    /// Notes the number of the last frame that was taken in, for the headers of the frames that leave from now on.
    #[inline]
    pub(crate) fn note_received(&self, seq: u32) {
        self.received.store(seq, Ordering::Release);
    }

    /// Returns the number that the header of a frame which leaves now acknowledges.
    pub(super) fn acknowledge_now(&self) -> u32 {
        let received = self.received.load(Ordering::Acquire);
        self.acknowledged.store(received, Ordering::Release);
        received
    }

    /// Acknowledges what arrived: at once if much is not acknowledged, else soon, unless a frame that leaves meanwhile does.
    pub(crate) fn acknowledge_soon(&self) {
        match self.unacknowledged() {
            0 => {}
            ACKNOWLEDGE_AT_ONCE.. => self.acknowledge(),
            _ if self.acknowledging.swap(true, Ordering::AcqRel) => {}
            _ => drop(self.runtime.spawn(acknowledge_what_stays(self.me.clone()))),
        }
    }

    /// How many frames have been taken in that no header has acknowledged.
    fn unacknowledged(&self) -> u32 {
        self.received.load(Ordering::Acquire).wrapping_sub(self.acknowledged.load(Ordering::Acquire))
    }

    fn acknowledge(&self) {
        self.change(|sending| {
            // Any frame that waits there acknowledges as well when it leaves. The peer may read slowly: one ACK waits at most.
            if sending.control.is_empty() {
                sending.control.push_back(Frame::link(FrameType::ACK, Bytes::new()));
            }
        });
    }
}

/// Acknowledges what no header has acknowledged for a while, and ends when there is nothing left. Frames that go the other way
/// acknowledge for free. The task looks after each pause and not before: calls made one after the other each leave something
/// for the next to acknowledge, and would each begin a task that finds it done.
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
            // A frame that came just before that was left to this task; one that comes after it begins another.
            if this.unacknowledged() == 0 || this.acknowledging.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }
}
