//! Services that a server has, for programs that learn of them when they run.
//!
//! [`ServerBuilder::with_reflection`](crate::ServerBuilder::with_reflection) adds the service [`Reflection`], which `farcall list`,
//! `farcall describe` and `farcall call` use. The signatures are those that clients and servers compare. They contain the types of
//! arguments and results as the codec sees them, so nothing has to be derived for it. Their text names types, fields and arguments:
//! keep the service from those who must not know them.

use serde::{Deserialize, Serialize};

use crate::Result;
#[cfg(feature = "tcp")]
use crate::Status;
use crate::dynamic::{Kind, ServiceInfo};

/// Tells which services a server has.
#[crate::service(package = "farcall.reflection.v1", crate = "crate")]
pub trait Reflection {
    /// Returns the services, in order of name.
    async fn services(&self) -> Result<Vec<Service>>;
    /// Returns the service of this name. NOT_FOUND: the server has none.
    async fn service(&self, name: String) -> Result<Service>;
}

/// A service of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Service {
    /// The name on the wire, as in `shop.v1.Kv`.
    pub name: String,
    /// The name of the codec.
    pub codec: String,
    /// The methods, in the order in which the trait has them.
    pub methods: Vec<Method>,
}

/// A method of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Method {
    /// The name on the wire.
    pub name: String,
    /// Whether the arguments have a stream.
    pub streams_requests: bool,
    /// Whether the answer is a stream.
    pub streams_answers: bool,
    /// The arguments, result and error as the codec sees them.
    pub signature: String,
    /// The hash of the signature, as clients announce it.
    pub fingerprint: u64,
    /// The hashes of earlier signatures that the server still understands.
    pub accepts: Vec<u64>,
}

impl Method {
    /// Returns the shape of the method.
    pub fn kind(&self) -> Kind {
        match (self.streams_requests, self.streams_answers) {
            (false, false) => Kind::Unary,
            (false, true) => Kind::ServerStreaming,
            (true, false) => Kind::ClientStreaming,
            (true, true) => Kind::BidiStreaming,
        }
    }
}

impl From<&ServiceInfo> for Service {
    fn from(info: &ServiceInfo) -> Self {
        let method = |method: &crate::dynamic::Method| Method {
            name: method.name.clone().into_owned(),
            streams_requests: method.kind.streams_requests(),
            streams_answers: method.kind.streams_answers(),
            signature: method.signature.clone(),
            fingerprint: method.fingerprint,
            accepts: method.accepts.clone(),
        };
        let methods = info.methods.iter().map(method).collect();
        Self { name: info.name.clone().into_owned(), codec: info.codec.clone().into_owned(), methods }
    }
}

/// The services of a server, itself included.
#[cfg(feature = "tcp")]
#[derive(Debug)]
pub(crate) struct Services(Vec<Service>);

#[cfg(feature = "tcp")]
impl Services {
    /// Returns the service that describes these, and itself.
    pub(crate) fn of<'a>(infos: impl Iterator<Item = &'a ServiceInfo>) -> ReflectionServer<Self> {
        let own = ReflectionServer::new(Self(Vec::new()));
        let own = Service::from(crate::__private::Service::info(&own));
        let mut services: Vec<_> = infos.map(Service::from).chain([own]).collect();
        services.sort_by(|a, b| a.name.cmp(&b.name));
        ReflectionServer::new(Self(services))
    }
}

#[cfg(feature = "tcp")]
impl Reflection for Services {
    async fn services(&self) -> Result<Vec<Service>> {
        Ok(self.0.clone())
    }

    async fn service(&self, name: String) -> Result<Service> {
        let found = self.0.iter().find(|service| service.name == name).cloned();
        found.ok_or_else(|| Status::not_found(format!("the server has no service `{name}`")))
    }
}
