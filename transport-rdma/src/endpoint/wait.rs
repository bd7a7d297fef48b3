//! The driver as a task: it polls while that pays, and then sleeps until there is something.

use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::futures::Notified;

use super::driver::Driver;
use crate::config::Completion;
use crate::device::{Channel, Cq, DeviceError};
use farcall_core::transport::spin::SpinWindow;

/// How long the device is asked before other tasks get their turn, which takes a system call if there are none.
pub(super) const LOOK: Duration = Duration::from_micros(5);

/// The reason that a sleep ended.
enum Woken {
    Completion,
    Mail,
    Time,
}

/// After so many sleeps in a row before which arming was not in vain, the driver arms without looking before. To arm in vain
/// costs more than to look in vain, so it takes several.
const QUIET: u32 = 8;

/// Runs until the driver is done. Dropped, it leaves the links, as the driver does.
pub(super) async fn drive(mut driver: Driver) {
    let channel = match driver.shard().queues.channel() {
        Ok(channel) => channel,
        Err(error) => {
            let device = driver.shard().device.device.name();
            return driver.die(&format!("{device}: cannot wait for completions: {error}"));
        }
    };
    if let Err(error) = run(&mut driver, channel).await {
        driver.die(&error.to_string());
    }
}

async fn run(driver: &mut Driver, mut channel: Box<dyn Channel>) -> Result<(), DeviceError> {
    let shard = Arc::clone(driver.shard());
    let mut spin = match shard.config.completion {
        Completion::Adaptive => SpinWindow::adaptive(),
        Completion::Event => SpinWindow::none(),
        Completion::Busy => SpinWindow::always(),
    };
    let polling = &shard.polling;
    // Kept from sleep to sleep, like a place in a line.
    let mut mail = pin!(shard.resources.mailbox.arrived());
    let mut found = polling.found();
    let mut idle_since: Option<Instant> = None;
    let mut others_turn = Instant::now() + LOOK;
    let mut quiet = 0;
    loop {
        let taken = driver.turn()?;
        if taken || polling.found() != found {
            found = polling.found();
            if let Some(since) = idle_since.take() {
                spin.found(since.elapsed());
            }
            let_others_run(driver).await;
            if quiet < QUIET || !spin.get().is_zero() {
                continue;
            }
        }
        if driver.is_done() {
            return Ok(());
        }
        if spin.is_adaptive() {
            idle_since.get_or_insert_with(Instant::now);
        }
        let window = spin.get();
        polling.set_window(window);
        if window == Duration::MAX || idle_since.is_some_and(|since| since.elapsed() < window) {
            shard.resources.counts.spun();
            super::relax();
            if Instant::now() > others_turn {
                tokio::task::yield_now().await;
                others_turn = Instant::now() + LOOK;
            }
            continue;
        }
        if arm_and_look(driver, arm, Driver::last_turn)? {
            quiet = 0;
            idle_since = None;
            let_others_run(driver).await;
            continue;
        }
        quiet = QUIET.min(quiet + 1);
        // The last link may have gone with the second look, and nothing wakes a driver without links.
        if driver.is_done() {
            return Ok(());
        }
        shard.resources.counts.slept();
        match sleep(driver, &mut *channel, mail.as_mut()).await {
            Woken::Completion => {
                if let Some(since) = idle_since {
                    spin.slept(since.elapsed());
                }
            }
            Woken::Mail => mail.set(shard.resources.mailbox.arrived()),
            Woken::Time => {}
        }
        idle_since = None;
    }
}

/// Lets those run who have got something. Unlike [`tokio::task::yield_now`] it does not look at timers and sockets each time,
/// which takes a system call; only after a long turn.
async fn let_others_run(driver: &Driver) {
    if driver.was_long() {
        return tokio::task::yield_now().await;
    }
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Asks for an event, and looks once more. False: there was nothing, and the next completion makes an event.
///
/// Completions from before the asking make no event. Without the second look a completion that comes between the first
/// and the asking would wait for the next one.
pub(super) fn arm_and_look<D, E>(
    driver: &mut D,
    arm: impl FnOnce(&mut D) -> Result<(), E>,
    look: impl FnOnce(&mut D) -> Result<bool, E>,
) -> Result<bool, E> {
    arm(driver)?;
    look(driver)
}

fn arm(driver: &mut Driver) -> Result<(), DeviceError> {
    [Cq::Receive, Cq::Send].iter().try_for_each(|&cq| driver.shard().queues.arm(cq, false))
}

async fn sleep(driver: &Driver, channel: &mut dyn Channel, mail: Pin<&mut Notified<'_>>) -> Woken {
    let timer = async {
        match driver.deadline() {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => pending().await,
        }
    };
    tokio::select! {
        biased;
        result = poll_fn(|cx| channel.poll_event(cx)) => {
            if let Err(error) = result {
                // The next poll of the queues shows whether they are lost, too.
                tracing::error!(%error, "the completion channel failed");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Woken::Completion
        }
        () = mail => Woken::Mail,
        () = timer => Woken::Time,
    }
}
