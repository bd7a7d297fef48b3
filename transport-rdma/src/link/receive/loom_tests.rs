//! Every interleaving of a driver that lets go of a link and of who starts it: `RUSTFLAGS="--cfg farcall_loom" cargo test -p
//! farcall-rdma --lib loom`.

use bytes::BytesMut;
use farcall_core::proto::wire::Header;
use loom::sync::{Arc, Mutex, MutexGuard};
use loom::thread;

use super::*;

/// The events that it has heard.
#[derive(Default)]
struct Handler(Mutex<Vec<&'static str>>);

impl Handler {
    /// Only one may be here.
    fn hear(&self, what: &'static str) {
        self.0.try_lock().expect("two deliver at once").push(what);
    }
}

impl LinkHandler for Handler {
    fn receive(&self, _: Header, _: Bytes) -> Result<(), WireError> {
        self.hear("frame");
        Ok(())
    }

    fn closed(&self, _: LinkEnd) {
        self.hear("end");
    }
}

/// As [`LinkCore::deliver_rest`] does.
fn deliver_rest(receiving: &Mutex<Receiving>) {
    let lock = || -> MutexGuard<'_, Receiving> { receiving.lock().unwrap() };
    let (handler, mut inbox, end) = {
        let mut receiving = lock();
        let Some(handler) = receiving.handler.clone() else { return };
        (handler, std::mem::take(&mut receiving.inbox), receiving.end.take())
    };
    hand_over(&*handler, &mut inbox).unwrap();
    if let Some(end) = end {
        lock().handler = None;
        handler.closed(end);
    }
}

#[test]
fn rest_of_a_link_is_delivered_by_one() {
    loom::model(|| {
        let mut receiving = Receiving { ended: true, ..Receiving::default() };
        for _ in 0..2 {
            let message = Header::new(FrameType::ITEM, 1).encode();
            receiving.inbox.push_back(ReceivedSend::new(Bytes::copy_from_slice(&message)).unwrap());
        }
        receiving.end = Some(LinkEnd::orderly());
        let receiving = Arc::new(Mutex::new(receiving));
        let handler = std::sync::Arc::new(Handler::default());
        let driver = thread::spawn({
            let receiving = Arc::clone(&receiving);
            move || {
                while !receiving.lock().unwrap().release() {
                    deliver_rest(&receiving);
                }
            }
        });
        let released = receiving.lock().unwrap().start(std::sync::Arc::clone(&handler) as _);
        if released {
            deliver_rest(&receiving);
        }
        driver.join().unwrap();
        assert_eq!(*handler.0.lock().unwrap(), ["frame", "frame", "end"]);
    });
}
