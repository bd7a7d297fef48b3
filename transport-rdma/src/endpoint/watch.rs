//! The task that reads a device's events for an endpoint. It lives as long as the endpoint's runtime does, which is how a
//! thread that drives the endpoint learns of the runtime's end.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io;
use std::sync::Arc;

use super::Shard;
use crate::device::{DeviceEvent, DeviceEvents};

pub(super) async fn watch(shard: Arc<Shard>) {
    let last = Last(shard);
    let device = &last.0.device;
    let name = device.device.name();
    match device.device.events() {
        Ok(events) => {
            let Err(error) = pass_on(&last.0, events).await;
            // So it ends when a device is taken out of a machine.
            tracing::warn!(device = name, %error, "the device's events cannot be read any more");
            device.broadcast(DeviceEvent::DeviceFailed);
        }
        Err(error) => tracing::warn!(device = name, %error, "the device's events cannot be watched"),
    }
    pending::<()>().await;
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
        self.0.mailbox.forsake();
    }
}
