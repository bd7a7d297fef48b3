//! A service and its channel in one process, for tests without a network.

use std::sync::Arc;

use crate::client::{Connector, RawChannel};
use crate::config::{Limits, Liveness};
use crate::server::ServerCore;
use crate::service::Service;
use crate::settings::Settings;
use crate::status::Status;
use crate::transport::{BoxFuture, Link, Reason, Unavailable, memory};

/// Returns a channel of a service in this process, for tests without a network. It uses the whole protocol and its real
/// limits over the in-memory transport. Must be called within a tokio runtime, or calls fail. Works under paused time.
pub fn in_process(service: impl Service) -> RawChannel {
    in_process_with(vec![Arc::new(service)], Limits::default())
}

/// Returns a channel like [`in_process`], for several services and other limits.
///
/// # Panics
///
/// If two services have the same name, if one has names or methods that do not fit on the wire, or if the limits
/// contradict each other. In a test, that is a mistake of the test.
pub fn in_process_with(services: Vec<Arc<dyn Service>>, limits: Limits) -> RawChannel {
    let why = Unavailable::new(Reason::Disabled, "calls within a process need no network");
    let settings = Settings::plain(limits, Liveness::default(), why);
    match ServerCore::new(services, settings.clone()) {
        Ok(host) => RawChannel::new(InProcess(host), settings),
        Err(why) => panic!("in_process: {why}"),
    }
}

struct InProcess(Arc<ServerCore>);

impl Connector for InProcess {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>, Status>> {
        let (near, far) = memory::pair();
        self.0.serve(far);
        Box::pin(async { Ok(near) })
    }

    fn target(&self) -> String {
        "in process".into()
    }
}
