//! What a client holds.

use std::fmt;
use std::sync::Arc;

use super::{Call, RawChannel};
use crate::class::TrafficClass;
use crate::payload::Payload;
use crate::service::ServiceInfo;
use crate::status::Status;

/// A service, and what to call it on. Cheap to clone: each of its calls holds one.
#[derive(Clone)]
pub struct Stub(Arc<Bound>);

struct Bound {
    channel: RawChannel,
    service: Arc<ServiceInfo>,
}

impl Stub {
    /// Calls of this service on this channel.
    ///
    /// # Panics
    ///
    /// If the service's codec cannot carry one of its types: no call of that method could succeed.
    #[track_caller]
    pub fn new(channel: RawChannel, service: Arc<ServiceInfo>) -> Self {
        if let Some(refusal) = service.refusal() {
            panic!("{refusal}");
        }
        Self(Arc::new(Bound { channel, service }))
    }

    /// A call of the method with this index.
    pub fn call<O, C>(&self, method: usize, arguments: Result<Payload, Status>) -> Call<O, C> {
        Call::new(self.clone(), method, arguments)
    }

    /// Returns this stub for calls of another class.
    pub(super) fn class(&self, class: TrafficClass) -> Self {
        Self(Arc::new(Bound { channel: self.channel().class(class), service: self.service().clone() }))
    }

    /// A method as messages name it: `shop.v1.Kv/get`.
    pub(super) fn name_of(&self, method: usize) -> String {
        let service = self.service();
        let method = service.methods.get(method).map_or("?", |m| m.name);
        format!("{}/{method}", service.name)
    }

    /// What is called.
    pub fn service(&self) -> &Arc<ServiceInfo> {
        &self.0.service
    }

    /// What it is called on.
    pub fn channel(&self) -> &RawChannel {
        &self.0.channel
    }
}

impl fmt::Debug for Stub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bound { channel, service } = &*self.0;
        f.debug_struct("Stub").field("service", &service.name).field("channel", channel).finish()
    }
}
