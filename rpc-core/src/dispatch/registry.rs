//! The services of a server, and the mapping of a client's indexes to them.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::admission::{Admission, AdmissionStats, Admitted, Refused, Share};
use crate::class::TrafficClass;
use crate::config;
use crate::context::Drain;
use crate::interface::{Kind, ServiceInfo};
use crate::memory::{Account, Gauge, Use};
use crate::proto::wire::{Bind, BindMethod, MAX_BIND_BYTES, WireError, counted_bind, list_of};
use crate::refusal::refusal;
use crate::service::{HandlerFuture, IncomingCall, Service};
use crate::status::{Code, Status};

/// The services of a server. Their names are distinct.
#[derive(Default)]
pub(crate) struct Registry {
    services: Vec<Arc<dyn Service>>,
    drain: Drain,
    /// Notified when a message has arrived in part.
    amid_message: Notify,
    /// How many calls are taken at once, if that is limited.
    admission: Option<Arc<Admission>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.services.iter().map(|service| &service.info().name)).finish()
    }
}

/// The services that a client has announced, by its index.
#[derive(Debug)]
pub(crate) struct RemoteServices {
    services: Vec<BoundService>,
    /// As how many bytes their BINDs count.
    bytes: usize,
    /// The memory that the services hold apart from the list, in bytes.
    memory: usize,
    /// Counts it, and the list.
    gauge: Gauge,
}

impl RemoteServices {
    /// Returns an empty list whose memory counts in the account.
    pub(crate) fn new(account: &Arc<Account>) -> Self {
        Self { services: Vec::new(), bytes: 0, memory: 0, gauge: Gauge::new(account, Use::Session) }
    }

    /// Adds the service that a BIND announces. The total is limited, because BINDs could come for ever.
    pub(super) fn add(&mut self, registry: &Registry, payload: Bytes) -> Result<(), WireError> {
        self.bytes += counted_bind(payload.len());
        if self.bytes > MAX_BIND_BYTES {
            return Err(WireError::new("bind", "makes more than 1024, or 1 MiB, of them on one connection"));
        }
        let bind = Bind::decode(payload)?;
        if usize::from(bind.service) != self.services.len() {
            return Err(WireError::new("bind.service", "is not the next index"));
        }
        let bound = registry.bind(bind)?;
        self.services.try_reserve(1).map_err(|_| WireError::no_memory("bind"))?;
        self.memory += bound.memory();
        self.services.push(bound);
        self.gauge.set(self.memory + self.services.capacity() * size_of::<BoundService>());
        Ok(())
    }

    /// Returns the service for the client's index.
    pub(super) fn get(&self, index: u16) -> Option<&BoundService> {
        self.services.get(usize::from(index))
    }
}

/// The bytes that an allocator takes beside those of a short text, at most.
const ALLOCATED: usize = 32;

/// A service that a client has announced.
pub(super) struct BoundService {
    /// The name, as in `shop.v1.Kv`.
    name: String,
    /// The codec that the client uses.
    codec: String,
    /// The index of our service of that name.
    service: Option<usize>,
    /// The match for each of the client's methods.
    methods: Vec<Match>,
}

impl BoundService {
    /// Returns the memory that it holds, in bytes.
    fn memory(&self) -> usize {
        let texts = [&self.name, &self.codec].map(|text| ALLOCATED + text.capacity());
        texts.iter().sum::<usize>() + self.methods.capacity() * size_of::<Match>()
    }
}

/// A method that can be called, by index.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundMethod {
    service: u32,
    method: u16,
    kind: Kind,
}

impl FoundMethod {
    pub(super) fn kind(self) -> Kind {
        self.kind
    }
}

#[derive(Clone, Copy, Debug)]
enum Match {
    Same(FoundMethod),
    /// The client uses another codec.
    OtherCodec,
    /// Our method of that name, and the client's fingerprint.
    Changed(usize, u64),
    Unknown,
}

impl fmt::Debug for BoundService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundService")
            .field("name", &self.name)
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// Adds a service. Fails if its name is taken, a client can't announce it, or its codec can't carry one of its types.
    pub(crate) fn add(&mut self, service: Arc<dyn Service>) -> Result<(), String> {
        service.info().check()?;
        let name = &service.info().name;
        if self.position(name).is_some() {
            return Err(format!("two services are named `{name}`"));
        }
        self.services.push(service);
        Ok(())
    }

    /// Limits how many calls are taken at once of all services that were added. Fails if the configuration does not fit them.
    pub(crate) fn limit(&mut self, config: &config::Admission) -> Result<(), String> {
        self.admission = Admission::new(config, self.services.iter().map(|service| service.info()))?;
        Ok(())
    }

    /// Whether calls may be refused because the server is overloaded.
    pub(super) fn is_limited(&self) -> bool {
        self.admission.is_some()
    }

    /// Returns what the limit on calls allows and has refused so far, if there is such a limit.
    pub(crate) fn admission(&self) -> Option<AdmissionStats> {
        self.admission.as_ref().map(|admission| admission.stats())
    }

    /// [Admits](Admission::admit) a call, or refuses it. `None`: the call does not count.
    pub(super) fn admit(
        &self,
        share: &Arc<Share>,
        class: TrafficClass,
        found: FoundMethod,
        deadline: Option<Instant>,
    ) -> Result<Option<Box<Admitted>>, Refused> {
        let Some(admission) = &self.admission else { return Ok(None) };
        let method = (found.service as usize, found.method.into());
        let admitted = admission.admit(share, class, method, deadline)?;
        Ok(admitted.map(Box::new))
    }

    pub(crate) fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Notified when a message has arrived in part, on any connection.
    pub(crate) fn amid_message(&self) -> &Notify {
        &self.amid_message
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.services.iter().position(|service| service.info().name == name)
    }

    fn info(&self, service: usize) -> &ServiceInfo {
        self.services[service].info()
    }

    fn bind(&self, bind: Bind) -> Result<BoundService, WireError> {
        let Bind { name, codec, methods, .. } = bind;
        let service = self.position(&name);
        let mut matches = Vec::new();
        if let Some(service) = service {
            let is_same_codec = self.info(service).codec == codec;
            matches = list_of(methods.len(), "bind.methods")?;
            matches.extend(methods.iter().map(|method| match is_same_codec {
                true => self.find_method(service, method),
                false => Match::OtherCodec,
            }));
        }
        Ok(BoundService { name, codec, service, methods: matches })
    }

    fn find_method(&self, service: usize, wanted: &BindMethod) -> Match {
        let methods = &self.info(service).methods;
        let Some(method) = methods.iter().position(|m| m.hash() == wanted.hash) else {
            return Match::Unknown;
        };
        let ours = &methods[method];
        if !ours.understands(wanted.fingerprint) || ours.kind as u8 != wanted.kind {
            Match::Changed(method, wanted.fingerprint)
        } else {
            Match::Same(FoundMethod { service: service as u32, method: method as u16, kind: ours.kind })
        }
    }

    /// Returns the service of a method, and the method's index in it.
    pub(super) fn service(&self, found: FoundMethod) -> (Arc<dyn Service>, usize) {
        (self.services[found.service as usize].clone(), found.method.into())
    }

    /// Makes a handler. This runs the service's own code, which may panic.
    pub(super) fn call(&self, found: FoundMethod, request: IncomingCall) -> HandlerFuture {
        self.services[found.service as usize].call(found.method.into(), request)
    }

    /// Returns the method that a call of the client's method runs, or why it can't be called.
    #[inline]
    pub(super) fn find(&self, bound: &BoundService, method: u16) -> Result<FoundMethod, Status> {
        match bound.methods.get(usize::from(method)) {
            Some(Match::Same(found)) => Ok(*found),
            other => Err(self.refuse(bound, other)),
        }
    }

    #[cold]
    fn refuse(&self, bound: &BoundService, found: Option<&Match>) -> Status {
        let BoundService { name, codec, .. } = bound;
        let Some(info) = bound.service.map(|service| self.info(service)) else {
            let message = format!("this server has no service `{name}`; was it added to the server?");
            return refusal(Code::Unimplemented, message);
        };
        match found {
            Some(Match::OtherCodec) => {
                let message = format!(
                    "service `{name}`: the caller's codec is {codec}, the server's is {}; they must be the same",
                    info.codec
                );
                refusal(Code::FailedPrecondition, message)
            }
            Some(Match::Changed(index, theirs)) => {
                let ours = &info.methods[*index];
                let message = format!(
                    "method `{}` of service `{name}` has another signature here: the caller's fingerprint is \
                     {theirs:016x}, the server's {:016x}: `{}`; build both from the same definition, or see \
                     EVOLUTION.md",
                    ours.name, ours.fingerprint, ours.signature
                );
                refusal(Code::FailedPrecondition, message)
            }
            Some(Match::Same(_) | Match::Unknown) => {
                let message = format!("service `{name}` of this server has no such method; it may be older");
                refusal(Code::Unimplemented, message)
            }
            None => refusal(Code::Unimplemented, "the call's method was not announced"),
        }
    }
}
