//! A stream link within a process: two ends of a queue. It serves users' tests, under paused time too.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

use super::{Counters, Description, FrameSource, Link, LinkEnd, LinkHandler, SHORT_PAYLOAD};
use crate::proto::wire::{HEADER_LEN, Header};

/// The longest payload of a frame, as on TCP.
const MAX_FRAME: usize = 128 * 1024;

/// How many bytes one direction holds before its sender must wait.
const WINDOW: usize = 512 * 1024;

/// Makes the two ends of a connection within this process.
pub fn pair() -> (Arc<dyn Link>, Arc<dyn Link>) {
    let (there, back) = (Arc::new(Pipe::default()), Arc::new(Pipe::default()));
    let end = |out: &Arc<Pipe>, inward: &Arc<Pipe>| {
        Arc::new(MemoryLink {
            description: Description {
                transport: "memory",
                local: None,
                peer: None,
                device: String::new(),
                busy_polls: false,
            },
            out: out.clone(),
            inward: inward.clone(),
            sent: AtomicU64::new(0),
            received: Arc::new(AtomicU64::new(0)),
        })
    };
    (end(&there, &back), end(&back, &there))
}

/// One direction.
#[derive(Default)]
struct Pipe {
    state: Mutex<Queue>,
    /// Notified when there is something to read, or the end.
    readable: Notify,
    /// Notified when a sender that was told to wait can send again.
    writable: Notify,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<(Header, Bytes)>,
    bytes: usize,
    sender_waits: bool,
    /// No more frames will come.
    ended: bool,
    /// Nobody reads any more.
    abandoned: bool,
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.lock().ended = true;
        self.readable.notify_one();
    }

    fn abandon(&self) {
        let mut queue = self.lock();
        queue.abandoned = true;
        queue.frames.clear();
        queue.bytes = 0;
        drop(queue);
        self.writable.notify_one();
    }
}

struct MemoryLink {
    description: Description,
    out: Arc<Pipe>,
    inward: Arc<Pipe>,
    sent: AtomicU64,
    received: Arc<AtomicU64>,
}

impl fmt::Debug for MemoryLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryLink")
    }
}

impl Link for MemoryLink {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_frame(&self) -> usize {
        MAX_FRAME
    }

    fn start(self: Arc<Self>, handler: Arc<dyn LinkHandler>) {
        let (inward, out) = (self.inward.clone(), self.out.clone());
        tokio::spawn(deliver(inward, out, self.received.clone(), handler));
    }

    fn send(&self, source: &mut dyn FrameSource) {
        let mut queue = self.out.lock();
        loop {
            if queue.ended || queue.abandoned {
                // Frames of a link that is over are dropped, as a network would drop them.
                return;
            }
            if queue.bytes >= WINDOW {
                queue.sender_waits = true;
                return;
            }
            let Some(frame) = source.next(MAX_FRAME) else { return };
            let mut pieces = frame.pieces.iter();
            let payload = match (frame.pieces.head(), pieces.next(), pieces.next()) {
                ([], None, _) => Bytes::new(),
                ([], Some(short), None) if short.len() < SHORT_PAYLOAD => Bytes::copy_from_slice(short),
                ([], Some(only), None) => only.clone(),
                _ => {
                    let mut whole = BytesMut::with_capacity(frame.header.len as usize);
                    frame.pieces.slices().for_each(|piece| whole.extend_from_slice(piece));
                    whole.freeze()
                }
            };
            let len = HEADER_LEN + payload.len();
            queue.bytes += len;
            queue.frames.push_back((frame.header, payload));
            self.sent.fetch_add(len as u64, Ordering::Relaxed);
            self.out.readable.notify_one();
        }
    }

    fn close(&self) {
        self.out.end();
        self.inward.readable.notify_one();
    }

    fn counters(&self) -> Counters {
        Counters {
            bytes_sent: self.sent.load(Ordering::Relaxed),
            bytes_received: self.received.load(Ordering::Relaxed),
            bytes_copied: 0,
        }
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        self.out.end();
    }
}

async fn deliver(inward: Arc<Pipe>, out: Arc<Pipe>, received: Arc<AtomicU64>, handler: Arc<dyn LinkHandler>) {
    // When this task ends, for whatever reason, nobody reads any more, and the sender must learn of it.
    let guard = Abandon(inward);
    let inward = &guard.0;
    loop {
        tokio::select! {
            () = inward.readable.notified() => {}
            () = out.writable.notified() => {
                handler.writable();
                continue;
            }
        }
        loop {
            let (batch, ended, wake) = {
                let mut queue = inward.lock();
                queue.bytes = 0;
                let wake = std::mem::take(&mut queue.sender_waits);
                (std::mem::take(&mut queue.frames), queue.ended, wake)
            };
            if wake {
                inward.writable.notify_one();
            }
            if batch.is_empty() {
                let closed_here = out.lock().ended;
                if ended || closed_here {
                    return handler.closed(LinkEnd::orderly());
                }
                break;
            }
            let mut frames = batch.into_iter().inspect(|(_, payload)| {
                received.fetch_add((HEADER_LEN + payload.len()) as u64, Ordering::Relaxed);
            });
            if handler.receive_all(&mut frames).is_err() {
                return;
            }
            handler.batch_end();
            tokio::task::consume_budget().await;
        }
    }
}

struct Abandon(Arc<Pipe>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::conformance;

    #[tokio::test]
    async fn memory_conforms() {
        conformance::check(|| async { super::pair() }).await;
    }
}
