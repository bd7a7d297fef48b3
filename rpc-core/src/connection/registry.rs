//! The services of a server, and what a client's indexes stand for.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::proto::wire::{Bind, BindMethod, MAX_BIND_BYTES, WireError};
use crate::service::{Service, ServiceInfo};
use crate::status::{Blame, Code, Executed, Status};

/// The services of a server, by name.
#[derive(Default)]
pub(crate) struct Registry {
    services: HashMap<String, Arc<dyn Service>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.services.keys()).finish()
    }
}

/// The services that a client has announced, by its index.
#[derive(Debug, Default)]
pub(super) struct Announced {
    services: Vec<Bound>,
    /// The BINDs of all of them, in bytes.
    bytes: usize,
}

impl Announced {
    /// Adds what a BIND announces. What is kept of one is no longer than it, but they could come for ever.
    pub(super) fn add(&mut self, registry: &Registry, payload: Bytes) -> Result<(), WireError> {
        self.bytes += payload.len();
        if self.bytes > MAX_BIND_BYTES {
            return Err(WireError::new("bind", "makes more than 1 MiB of them on one connection"));
        }
        let bind = Bind::decode(payload)?;
        if usize::from(bind.service) != self.services.len() {
            return Err(WireError::new("bind.service", "is not the next index"));
        }
        self.services.push(registry.bind(bind));
        Ok(())
    }

    /// What the client's index stands for.
    pub(super) fn get(&self, index: u16) -> Option<&Bound> {
        self.services.get(usize::from(index))
    }
}

/// What a service index of the client stands for.
pub(super) struct Bound {
    /// As in `shop.v1.Kv`.
    name: String,
    /// The codec the client uses.
    codec: String,
    service: Option<Arc<dyn Service>>,
    /// What each of the client's methods is here.
    methods: Vec<Match>,
}

#[derive(Clone, Copy, Debug)]
enum Match {
    Same(usize),
    /// Our method of that name, and the client's fingerprint.
    Changed(usize, u64),
    Unknown,
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound")
            .field("name", &self.name)
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// Adds a service. `Err`: its name is taken.
    pub(crate) fn add(&mut self, service: Arc<dyn Service>) -> Result<(), String> {
        let name = service.info().name.to_string();
        if self.services.contains_key(&name) {
            return Err(format!("two services are named `{name}`"));
        }
        self.services.insert(name, service);
        Ok(())
    }

    fn bind(&self, bind: Bind) -> Bound {
        let Bind { name, codec, methods, .. } = bind;
        let service = self.services.get(&name).cloned();
        let methods = match &service {
            Some(service) => methods.iter().map(|m| find_method(service.info(), m)).collect(),
            None => Vec::new(),
        };
        Bound { name, codec, service, methods }
    }
}

fn find_method(info: &ServiceInfo, wanted: &BindMethod) -> Match {
    match info.methods.iter().position(|m| m.hash() == wanted.hash) {
        None => Match::Unknown,
        Some(i) => {
            let same =
                info.methods[i].understands(wanted.fingerprint) && info.methods[i].kind as u8 == wanted.kind;
            if same { Match::Same(i) } else { Match::Changed(i, wanted.fingerprint) }
        }
    }
}

impl Bound {
    /// The service, and our index for the client's method; or why it can't be called.
    pub(super) fn find(&self, method: u16) -> Result<(&Arc<dyn Service>, usize), Status> {
        let name = &self.name;
        let Some(service) = &self.service else {
            let message = format!("this server has no service `{name}`; was it added to the server?");
            return Err(refusal(Code::Unimplemented, message));
        };
        let info = service.info();
        if info.codec != self.codec {
            let message = format!(
                "service `{name}`: the caller's codec is {}, the server's is {}; they must be the same",
                self.codec, info.codec
            );
            return Err(refusal(Code::FailedPrecondition, message));
        }
        match self.methods.get(usize::from(method)) {
            Some(Match::Same(index)) => Ok((service, *index)),
            Some(Match::Changed(index, theirs)) => {
                let ours = &info.methods[*index];
                let message = format!(
                    "method `{}` of service `{name}` has another signature here: the caller's fingerprint is \
                     {theirs:016x}, the server's {:016x}: `{}`; build both from the same definition, or see \
                     EVOLUTION.md",
                    ours.name, ours.fingerprint, ours.signature
                );
                Err(refusal(Code::FailedPrecondition, message))
            }
            Some(Match::Unknown) => {
                let message = format!("service `{name}` of this server has no such method; it may be older");
                Err(refusal(Code::Unimplemented, message))
            }
            None => Err(refusal(Code::Unimplemented, "the call's method was not announced")),
        }
    }
}

/// A status for a call that was not given to a handler.
pub(super) fn refusal(code: Code, message: impl Into<String>) -> Status {
    Status::new(code, message).with_executed(Executed::No).with_blame(Blame::Caller)
}
