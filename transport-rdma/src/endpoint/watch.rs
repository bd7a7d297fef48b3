//! The task that reads a device's events for an endpoint. It lives as long as the endpoint's runtime does, which is how a
//! thread that drives the endpoint learns of the runtime's end.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::Shard;
use crate::device::{DeviceEvent, DeviceEvents};

/// How soon to try again when another endpoint watches the device's events.
const AGAIN: Duration = Duration::from_millis(100);

/// Forsakes the shard's driver when it is dropped, polled or not.
pub(super) fn watch(shard: Arc<Shard>) -> impl Future<Output = ()> + Send {
    let last = Last(shard);
    async move { watch_until(last).await }
}

async fn watch_until(last: Last) {
    let device = &last.0.device;
    let name = device.device.name();
    loop {
        match device.device.events() {
            Ok(events) => {
                let Err(error) = pass_on(&last.0, events).await;
                // So it ends when a device is taken out of a machine.
                tracing::warn!(device = name, %error, "the device's events cannot be read any more");
                device.broadcast(DeviceEvent::DeviceFailed);
            }
            // A runtime watches a descriptor once: now for an endpoint that is on its way out, and passes on what comes.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            Err(error) => tracing::warn!(device = name, %error, "the device's events cannot be watched"),
        }
        pending::<()>().await;
    }
}

/// Passes the device's events on to all endpoints on it.
async fn pass_on(shard: &Shard, mut events: Box<dyn DeviceEvents>) -> io::Result<Infallible> {
    loop {
        let event = poll_fn(|cx| events.poll_next(cx)).await?;
        shard.device.broadcast(event);
    }
}

struct Last(Arc<Shard>);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.resources.mailbox.forsake();
    }
}
