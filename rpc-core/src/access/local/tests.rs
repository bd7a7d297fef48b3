//! Turns of transfers, and the registration of regions, at links whose device does as it is told.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};

use tokio::sync::Semaphore;

use super::*;
use crate::region::{Region, Rights};
use crate::status::Code;
use crate::transport::{BoxFuture, Counters, Description, FrameSource, LinkHandler};

fn is_pending<F: Future>(future: std::pin::Pin<&mut F>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

fn region() -> Region {
    Region::zeroed(100, Rights::NONE)
}

#[tokio::test]
async fn transfers_have_their_turns_in_order_where_they_would_get_in_each_others_way() {
    let region = region();
    let range = |range| region.local(range).unwrap();
    let first = range(0..50).turn(false).await.unwrap();
    // Others that change nothing go on beside it, and so does one of another range.
    let second = range(40..60).turn(false).await.unwrap();
    let _beside = range(60..70).turn(true).await.unwrap();
    let changing = range(45..55);
    let mut changing = pin!(changing.turn(true));
    assert!(is_pending(changing.as_mut()));
    // It does not pass the one that waits, or that would wait for ever.
    let later = range(50..51);
    let mut later = pin!(later.turn(false));
    assert!(is_pending(later.as_mut()));
    let settled = range(0..10);
    let mut settled = pin!(settled.settled());
    assert!(is_pending(settled.as_mut()));
    drop(first);
    settled.await.unwrap();
    assert!(is_pending(changing.as_mut()));
    drop(second);
    let turn = changing.await.unwrap();
    // As a device has it.
    let clone = turn.clone();
    drop(turn);
    assert!(is_pending(later.as_mut()));
    drop(clone);
    later.await.unwrap();
}

#[tokio::test]
async fn nobody_waits_for_a_turn_that_was_given_up() {
    let region = region();
    let range = region.local(..).unwrap();
    let turn = range.turn(true).await.unwrap();
    {
        let given_up = pin!(range.turn(true));
        assert!(is_pending(given_up));
    }
    drop(turn);
    range.settled().await.unwrap();
    range.turn(true).await.unwrap();
}

#[tokio::test]
async fn a_region_that_is_revoked_has_no_more_turns() {
    let region = region();
    let range = region.local(..).unwrap();
    let _turn = range.turn(true).await.unwrap();
    let mut waiting = pin!(range.turn(true));
    let mut settled = pin!(range.settled());
    assert!(is_pending(waiting.as_mut()) && is_pending(settled.as_mut()));
    // Those who wait are told, though the turn before has not ended.
    region.revoke().await;
    let codes = [
        waiting.await.err().unwrap(),
        settled.await.unwrap_err(),
        range.turn(false).await.err().unwrap(),
        range.settled().await.unwrap_err(),
    ];
    assert_eq!(codes.map(|status| status.code()), [Code::FailedPrecondition; 4]);
}

/// A device that registers as many regions as it is given permits for, unless it refuses.
#[derive(Debug)]
struct Registrar {
    id: DeviceId,
    asked: AtomicUsize,
    permits: Semaphore,
    refuses: AtomicBool,
    is_gone: AtomicBool,
}

#[derive(Debug)]
struct Memory(Arc<Registrar>);

impl Registered for Memory {
    fn is_over(&self) -> bool {
        self.0.is_gone.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct TestLink(Arc<Registrar>);

impl Link for TestLink {
    fn description(&self) -> &Description {
        unreachable!("nobody looks at it")
    }

    fn max_frame(&self) -> usize {
        0
    }

    fn start(self: Arc<Self>, _: Arc<dyn LinkHandler>) {}

    fn send(&self, _: &mut dyn FrameSource) {}

    fn close(&self) {}

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn registrar(&self) -> Option<DeviceId> {
        Some(self.0.id)
    }

    fn register(self: Arc<Self>, _: Words) -> BoxFuture<Option<Arc<dyn Registered>>> {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            self.0.permits.acquire().await.unwrap().forget();
            let refuses = self.0.refuses.load(Ordering::Relaxed);
            (!refuses).then(|| Arc::new(Memory(self.0.clone())) as Arc<dyn Registered>)
        })
    }
}

fn device() -> (Arc<Registrar>, Arc<dyn Link>) {
    let device = Arc::new(Registrar {
        id: DeviceId::unique(),
        asked: AtomicUsize::new(0),
        permits: Semaphore::new(0),
        refuses: AtomicBool::new(false),
        is_gone: AtomicBool::new(false),
    });
    (device.clone(), Arc::new(TestLink(device)))
}

#[tokio::test]
async fn a_region_is_registered_once_though_those_who_wait_give_up() {
    let (device, link) = device();
    let (region, runtime) = (region(), Handle::current());
    let range = region.local(..).unwrap();
    for _ in 0..3 {
        assert!(is_pending(pin!(range.registered(&link, &runtime))));
        assert!(range.registered_already(&link, &runtime).is_none());
        tokio::task::yield_now().await;
    }
    device.permits.add_permits(1);
    assert!(range.registered(&link, &runtime).await.unwrap().is_some());
    assert!(range.registered_already(&link, &runtime).is_some());
    assert_eq!(device.asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn each_device_registers_a_region_for_itself_and_again_when_it_was_gone() {
    let [(one, to_one), (other, to_other)] = [(); 2].map(|()| device());
    let (region, runtime) = (region(), Handle::current());
    let range = region.local(..).unwrap();
    one.permits.add_permits(1);
    other.permits.add_permits(1);
    assert!(range.registered(&to_one, &runtime).await.unwrap().is_some());
    assert!(range.registered(&to_other, &runtime).await.unwrap().is_some());
    one.is_gone.store(true, Ordering::Relaxed);
    let again = range.registered(&to_one, &runtime);
    assert!(is_pending(pin!(again)));
    assert!(Arc::strong_count(&one) <= 3, "what the device had is kept");
    assert!(range.registered_already(&to_other, &runtime).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_device_that_refuses_is_asked_again_later() {
    let (device, link) = device();
    let (region, runtime) = (region(), Handle::current());
    let range = region.local(..).unwrap();
    device.permits.add_permits(2);
    device.refuses.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        assert!(range.registered(&link, &runtime).await.unwrap().is_none());
    }
    assert_eq!(device.asked.load(Ordering::Relaxed), 1);
    device.refuses.store(false, Ordering::Relaxed);
    tokio::time::sleep(REFUSAL).await;
    assert!(range.registered(&link, &runtime).await.unwrap().is_some());
}

#[test]
fn a_runtime_that_ends_leaves_the_registration_to_another() {
    let (device, link) = device();
    let region = region();
    let range = region.local(..).unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let first = runtime();
    assert!(range.registered_already(&link, first.handle()).is_none());
    drop(first);
    device.permits.add_permits(1);
    let second = runtime();
    let registered = second.block_on(range.registered(&link, second.handle()));
    assert!(registered.unwrap().is_some());
}

#[tokio::test]
async fn nobody_waits_for_a_registration_on_a_runtime_that_has_ended() {
    let (_, link) = device();
    let region = region();
    let range = region.local(..).unwrap();
    let ended = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let handle = ended.handle().clone();
    ended.shutdown_background();
    assert!(range.registered(&link, &handle).await.unwrap().is_none());
}

#[test]
fn parts_are_the_range() {
    let region = region();
    let parts = |range, most| -> Vec<_> {
        region.local(range).unwrap().parts(most).map(|(begin, part)| (begin, part.range())).collect()
    };
    assert_eq!(parts(10..50, 100), [(0, 10..50)]);
    assert_eq!(parts(10..50, 20), [(0, 10..30), (20, 30..50)]);
    assert_eq!(parts(10..51, 20), [(0, 10..30), (20, 30..50), (40, 50..51)]);
    assert_eq!(parts(10..10, 20), []);
}
