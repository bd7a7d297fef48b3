//! A link that delivers on the sending thread, so that a test decides the order of events.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use farcall_core::proto::inbox::Described;
use farcall_core::proto::wire::Header;
use farcall_core::transport::{
    BusyPoll, Counters, Description, Direction, FrameSource, Link, LinkEnd, LinkHandler, memory,
};

/// One end of the link.
#[derive(Debug)]
pub(crate) struct Direct {
    like: Arc<dyn Link>,
    description: Description,
    here: Arc<End>,
    there: Arc<End>,
    /// The messages that it was asked to read, by frame number.
    pulled: Mutex<Vec<u32>>,
    at_poll: AtPoll,
}

/// An action for the next time that a caller polls for its answer.
#[derive(Default)]
struct AtPoll(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for AtPoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AtPoll")
    }
}

/// The frames that arrive at one end.
#[derive(Default)]
struct End(Mutex<Arriving>);

#[derive(Default)]
struct Arriving {
    /// Set once early frames have been delivered.
    handler: Option<Arc<dyn LinkHandler>>,
    early: VecDeque<(Header, Bytes)>,
}

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("End")
    }
}

/// The two ends of a link.
pub(crate) fn pair() -> [Arc<Direct>; 2] {
    let (a, b) = (Arc::new(End::default()), Arc::new(End::default()));
    [(&a, &b), (&b, &a)].map(|(here, there)| {
        let (here, there) = (here.clone(), there.clone());
        let like: Arc<dyn Link> = memory::pair().0;
        let description = Description { busy_polls: true, ..like.description().clone() };
        Arc::new(Direct {
            like,
            description,
            here,
            there,
            pulled: Mutex::default(),
            at_poll: AtPoll::default(),
        })
    })
}

impl Direct {
    /// Ends the link, and tells this side.
    pub(crate) fn end(&self, end: LinkEnd) {
        let handler = lock(&self.here.0).handler.take();
        handler.expect("it has started").closed(end);
    }

    /// Whether it has started to deliver, which happens on the sending threads from then on.
    pub(crate) fn has_started(&self) -> bool {
        lock(&self.here.0).handler.is_some()
    }

    /// Runs this when a caller of this side next polls for its answer.
    pub(crate) fn at_next_poll(&self, act: impl FnOnce() + Send + 'static) {
        *lock(&self.at_poll.0) = Some(Box::new(act));
    }

    pub(crate) fn pulled(&self) -> Vec<u32> {
        lock(&self.pulled).clone()
    }
}

impl End {
    fn take(&self, header: Header, payload: Bytes) {
        let handler = {
            let mut arriving = lock(&self.0);
            let Some(handler) = &arriving.handler else {
                return arriving.early.push_back((header, payload));
            };
            handler.clone()
        };
        // An offender against the protocol is told so by the handler.
        let _ = handler.receive(header, payload);
        handler.batch_end();
    }

    fn start(&self, handler: &Arc<dyn LinkHandler>) {
        loop {
            let mut arriving = lock(&self.0);
            let Some((header, payload)) = arriving.early.pop_front() else {
                arriving.handler = Some(handler.clone());
                break;
            };
            drop(arriving);
            let _ = handler.receive(header, payload);
        }
        handler.batch_end();
    }
}

impl Link for Direct {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_frame(&self) -> usize {
        self.like.max_frame()
    }

    fn start(self: Arc<Self>, handler: Arc<dyn LinkHandler>) {
        self.here.start(&handler);
    }

    fn send(&self, source: &mut dyn FrameSource) {
        while let Some(frame) = source.next(self.max_frame()) {
            let mut payload = BytesMut::new();
            frame.pieces.slices().for_each(|piece| payload.extend_from_slice(piece));
            self.there.take(frame.header, payload.freeze());
        }
    }

    fn close(&self) {}

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn busy_poll(&self, _: Duration) -> BusyPoll {
        match lock(&self.at_poll.0).take() {
            Some(act) => {
                act();
                BusyPoll::Found
            }
            None => BusyPoll::Sleep,
        }
    }

    fn pull(&self, _: Direction, described: Described) {
        lock(&self.pulled).push(described.seq);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
