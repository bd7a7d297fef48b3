//! What a connection does by the clock: asks a silent peer whether it is there, and acknowledges what no answer
//! has acknowledged.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{Connection, lock};
use crate::proto::message::Frame;
use crate::proto::wire::{CloseCode, FrameType, Ping};
use crate::status::{Blame, Executed};

/// How long what arrived by an upgraded link may stay unacknowledged.
const ACKNOWLEDGE: Duration = Duration::from_millis(10);

/// How many frames may be unacknowledged before an ACK is sent at once.
const ACKNOWLEDGE_AT_ONCE: u32 = 64;

/// Runs for as long as the connection lives. Sleeps without a timer while no call waits: an idle connection costs
/// nothing.
pub(super) async fn keep(connection: Arc<Connection>) {
    tokio::select! {
        _ = connection.closed() => {}
        () = connection.listen() => {}
        () = connection.keep_deadlines() => {}
    }
}

/// What had been heard of the peer when it was last looked for, and how often it was looked for in vain since.
type Silence = Option<(u64, u32)>;

impl Connection {
    /// Ends the calls whose deadlines pass. A timer for each would cost more than many a call does; this one is set anew
    /// only for a deadline before all others, and looks at all calls when it goes off.
    async fn keep_deadlines(&self) {
        loop {
            let next = self.wake_late();
            let told = self.deadlines.notified();
            match next {
                None => told.await,
                // An error says that it is time.
                Some(next) => drop(tokio::time::timeout_at(next, told).await),
            }
        }
    }

    /// Finds a silent peer.
    async fn listen(&self) {
        let mut silence = None;
        loop {
            if self.is_idle() {
                silence = None;
                // A call that begins wakes it.
                self.keeper.notified().await;
            } else {
                tokio::time::sleep(self.settings.liveness.ping()).await;
                self.look(&mut silence);
            }
        }
    }

    fn look(&self, silence: &mut Silence) {
        let heard = self.heard.load(Ordering::Relaxed);
        let looked = match *silence {
            Some((then, looked)) if then == heard => looked + 1,
            _ => 0,
        };
        *silence = Some((heard, looked));
        let liveness = &self.settings.liveness;
        let most = liveness.missed_pings.max(1);
        if looked > most {
            let detail = format!(
                "no sign of the peer for {:?} while calls waited ({most} pings unanswered): its process is stopped or \
                 its host gone",
                liveness.ping() * looked
            );
            self.close(CloseCode::Silent, self.status(detail, Executed::Maybe, Blame::Peer));
        } else if looked > 0 {
            self.send_link(FrameType::PING, |out| Ping { token: 0 }.encode(out));
        }
    }

    /// Asks the peer and waits for its answer, for ever if there is none.
    pub(super) async fn ping(&self) {
        let (sender, receiver) = oneshot::channel();
        let token = {
            let mut receiving = lock(&self.receiving);
            let token = self.heard.load(Ordering::Relaxed).wrapping_add(1).max(1);
            receiving.ping = Some((token, sender));
            token
        };
        self.send_link(FrameType::PING, |out| Ping { token }.encode(out));
        let _ = receiver.await;
    }

    /// Sees to it that what arrived by an upgraded link is acknowledged: at once if much is not, else soon, unless
    /// something that leaves meanwhile does it.
    pub(super) fn acknowledge_soon(&self) {
        match self.unacknowledged() {
            0 => {}
            ACKNOWLEDGE_AT_ONCE.. => self.acknowledge(),
            _ if self.acknowledging.swap(true, Ordering::AcqRel) => {}
            _ => {
                let connection = self.me.clone();
                self.runtime.spawn(acknowledge_what_stays(connection));
            }
        }
    }

    /// How many frames have been taken in that no header has acknowledged.
    fn unacknowledged(&self) -> u32 {
        self.rx_seq.load(Ordering::Acquire).wrapping_sub(self.stamped.load(Ordering::Acquire))
    }

    fn acknowledge(&self) {
        self.change_sending(|sending| {
            // Whatever waits there says it as well when it leaves. The peer may read slowly: no more than one waits.
            if sending.control.is_empty() {
                sending.control.push_back(Frame::link(FrameType::ACK, Bytes::new()));
            }
        });
    }
}

/// Acknowledges what no header has acknowledged for a while, and ends when there is nothing left. What goes the other way
/// does it for nothing. It looks after each pause and not before: of calls one after the other each leaves something for
/// the next to acknowledge, and would begin a task of its own that finds it done.
async fn acknowledge_what_stays(connection: Weak<Connection>) {
    loop {
        let Some(this) = connection.upgrade() else { return };
        let seen = this.rx_seq.load(Ordering::Acquire);
        drop(this);
        tokio::time::sleep(ACKNOWLEDGE).await;
        let Some(this) = connection.upgrade() else { return };
        if (this.stamped.load(Ordering::Acquire).wrapping_sub(seen) as i32) < 0 {
            this.acknowledge();
        }
        if this.unacknowledged() == 0 {
            this.acknowledging.swap(false, Ordering::AcqRel);
            // What came just before that has been left to this task, and what comes after it begins another.
            if this.unacknowledged() == 0 || this.acknowledging.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }
}
