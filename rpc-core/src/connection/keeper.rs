//! What a connection does by the clock: asks a silent peer whether it is there, and acknowledges what no answer
//! has acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Connection, Phase, lock};
use crate::proto::wire::{CloseCode, FrameType, Ping};
use crate::status::{Blame, Executed};

/// How long what arrived by an upgraded link may stay unacknowledged.
const ACKNOWLEDGE: Duration = Duration::from_millis(10);

/// How many frames may be unacknowledged before an ACK is sent at once.
const ACKNOWLEDGE_AT_ONCE: u32 = 64;

/// Runs for as long as the connection lives. Sleeps without a timer while no call waits: an idle connection costs
/// nothing.
pub(super) async fn keep(connection: Arc<Connection>) {
    let mut silence = None;
    while !matches!(*connection.phase.borrow(), Phase::Closed(_)) {
        if connection.is_idle() {
            silence = None;
            // A call that begins wakes it, and so does the end of the connection.
            connection.keeper.notified().await;
        } else {
            tokio::time::sleep(connection.settings.liveness.ping()).await;
            connection.look(&mut silence);
        }
    }
}

/// What was heard when the peer was last found silent, and how often since.
type Silence = Option<(u64, u32)>;

impl Connection {
    fn look(&self, silence: &mut Silence) {
        let heard = self.heard.load(Ordering::Relaxed);
        let missed = match *silence {
            Some((then, missed)) if then == heard => missed + 1,
            _ => 0,
        };
        *silence = Some((heard, missed));
        let liveness = &self.settings.liveness;
        if missed > liveness.missed_pings {
            let detail = format!(
                "no sign of the peer for {:?} while calls waited ({missed} pings unanswered): its process is stopped \
                 or its host gone",
                liveness.ping() * missed
            );
            self.close(CloseCode::Silent, self.status(detail, Executed::Maybe, Blame::Peer));
        } else if missed > 0 {
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
            _ if self.acknowledging.swap(true, Ordering::Relaxed) => {}
            _ => {
                let connection = self.me.clone();
                self.runtime.spawn(async move {
                    tokio::time::sleep(ACKNOWLEDGE).await;
                    let Some(this) = connection.upgrade() else { return };
                    this.acknowledging.store(false, Ordering::Relaxed);
                    if this.unacknowledged() > 0 {
                        this.acknowledge();
                    }
                });
            }
        }
    }

    /// How many frames have been taken in that no header has acknowledged.
    fn unacknowledged(&self) -> u32 {
        self.rx_seq.load(Ordering::Acquire).wrapping_sub(self.stamped.load(Ordering::Acquire))
    }

    fn acknowledge(&self) {
        self.send_link(FrameType::ACK, |_| {});
    }
}
