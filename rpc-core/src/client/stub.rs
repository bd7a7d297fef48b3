//! The channel and service behind a generated client.

use std::fmt;
use std::sync::Arc;

use super::policies::Policies;
use super::{Call, RawChannel};
use crate::class::TrafficClass;
use crate::payload::Payload;
use crate::service::ServiceInfo;
use crate::status::Status;

/// A service and the channel to call it on. Cheap to clone, because each of its calls holds one.
#[derive(Clone)]
pub struct Stub(Arc<Bound>);

struct Bound {
    channel: RawChannel,
    service: Arc<ServiceInfo>,
}

impl Stub {
    /// Returns a stub for this service on this channel.
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

    /// Returns a call of the method with this index.
    pub fn call<O, C>(&self, method: usize, arguments: Result<Payload, Status>) -> Call<O, C> {
        Call::new(self.clone(), method, arguments)
    }

    /// Reads the setting that counts for calls of the method with this index.
    #[inline]
    pub(super) fn policy<R>(&self, method: usize, setting: impl FnOnce(&Policies) -> R) -> R {
        self.channel().policies().read(self.service(), method, setting)
    }

    /// Returns this stub for calls of another class.
    pub(super) fn class(&self, class: TrafficClass) -> Self {
        Self(Arc::new(Bound { channel: self.channel().class(class), service: self.service().clone() }))
    }

    /// Returns the name of a method for messages: `shop.v1.Kv/get`.
    pub(super) fn name_of(&self, method: usize) -> String {
        let service = self.service();
        let method = service.methods.get(method).map_or("?", |m| &*m.name);
        format!("{}/{method}", service.name)
    }

    /// Returns the service.
    pub fn service(&self) -> &Arc<ServiceInfo> {
        &self.0.service
    }

    /// Returns the channel.
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
