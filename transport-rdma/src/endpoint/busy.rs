//! The driver as a thread of its own, which never sleeps: the least latency, for a whole CPU.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;

use super::Shard;
use super::driver::Driver;
use super::watch::watch;
use crate::device::Unavailable;
use crate::resources::no_thread;
use crate::verbs::pin_to_cpu;

/// Starts the thread, which ends with the endpoint or with the runtime. Handlers are polled on it first, and then on the
/// runtime, which they can use all the same.
pub(super) fn start(shard: &Arc<Shard>, runtime: &Handle) -> Result<(), Unavailable> {
    let (cpu, device) = (shard.config.busy_cpu, shard.device.device.name().to_owned());
    let (sender, pinned) = sync_channel(1);
    // Waking a caller on another thread takes longer than many an answer.
    shard.polling.set_window(Duration::MAX);
    let (shard, runtime) = (Arc::clone(shard), runtime.clone());
    // The kernel shows fifteen characters.
    let thread = thread::Builder::new().name(format!("busy-{device}")).spawn(move || {
        let result = cpu.map_or(Ok(()), pin_to_cpu);
        let failed = result.is_err();
        // Whoever starts it waits for this.
        let _ = sender.send(result);
        if !failed {
            let _context = runtime.enter();
            let watch = runtime.spawn(watch(Arc::clone(&shard))).abort_handle();
            run(Driver::new(shard, watch));
        }
    });
    thread.map_err(|error| no_thread(&device, error.raw_os_error().unwrap_or(0)))?;
    // It can't end without having said so.
    match (pinned.recv(), cpu) {
        (Ok(Err(errno)), Some(cpu)) => Err(Unavailable::BusyCpu { cpu, errno }),
        _ => Ok(()),
    }
}

fn run(mut driver: Driver) {
    while !driver.is_done() {
        match driver.turn() {
            Ok(true) => {}
            Ok(false) => {
                driver.shard().resources.counts.spun();
                super::relax();
            }
            Err(error) => return driver.die(&error.to_string()),
        }
    }
}
