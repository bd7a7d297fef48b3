//! Services that a server has, for programs that learn of them when they run.
//!
//! [`ServerBuilder::with_reflection`](crate::ServerBuilder::with_reflection) adds the service [`Reflection`], which `farcall list`,
//! `farcall describe` and `farcall call` use. The signatures are those that clients and servers compare. They contain the types of
//! arguments and results as the codec sees them, so nothing has to be derived for it. Their text names types, fields and arguments:
//! keep the service from those who must not know them.
//!
//! A signature of the codec [`Prost`](crate::Prost) has the word `protobuf` for each message.
//! [`ServerBuilder::with_descriptors`](crate::ServerBuilder::with_descriptors) adds the messages' descriptors.

#[cfg(all(feature = "tcp", feature = "prost"))]
mod descriptors;

use bytes::Bytes;
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
    /// Returns the descriptors of protobuf messages: each a `google.protobuf.FileDescriptorSet`, as the server was given it.
    async fn descriptors(&self) -> Result<Vec<Bytes>>;
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
    /// The messages of protobuf in the signature: one for each `protobuf`, in order.
    #[serde(default)]
    pub messages: Vec<Message>,
}

/// A message of protobuf in a signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Message {
    /// The path of its Rust type at the server, as in `shop::v1::GetRequest`. It is for people.
    pub rust_type: String,
    /// Names of messages in the descriptors that the type can be, as in `shop.v1.GetRequest`. One: it is this message. None: the
    /// descriptors do not have it. Several: the type's path does not tell which.
    pub names: Vec<String>,
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

/// Describes a service whose protobuf messages have no descriptors.
impl From<&ServiceInfo> for Service {
    fn from(info: &ServiceInfo) -> Self {
        Self::new(info, |rust_type| Message { rust_type: rust_type.to_owned(), names: Vec::new() })
    }
}

impl Service {
    fn new(info: &ServiceInfo, message: impl Fn(&str) -> Message) -> Self {
        let method = |method: &crate::dynamic::Method| Method {
            name: method.name.clone().into_owned(),
            streams_requests: method.kind.streams_requests(),
            streams_answers: method.kind.streams_answers(),
            signature: method.signature.clone(),
            fingerprint: method.fingerprint,
            accepts: method.accepts.clone(),
            messages: method.messages.iter().map(|rust_type| message(rust_type)).collect(),
        };
        let methods = info.methods.iter().map(method).collect();
        Self { name: info.name.clone().into_owned(), codec: info.codec.clone().into_owned(), methods }
    }
}

/// The services of a server, itself included.
#[cfg(feature = "tcp")]
#[derive(Debug, Default)]
pub(crate) struct Services {
    all: Vec<Service>,
    descriptors: Vec<Bytes>,
}

#[cfg(feature = "tcp")]
impl Services {
    /// Returns the service that describes these, and itself. Fails with the reason if a set of descriptors can't be used.
    pub(crate) fn of<'a>(
        infos: impl Iterator<Item = &'a ServiceInfo>,
        descriptors: Vec<Bytes>,
    ) -> std::result::Result<ReflectionServer<Self>, String> {
        #[cfg(feature = "prost")]
        let names = descriptors::Names::read(&descriptors)?;
        #[cfg(feature = "prost")]
        let described =
            |info: &ServiceInfo| Service::new(info, |rust_type| names.message(&info.name, rust_type));
        #[cfg(not(feature = "prost"))]
        let described = |info: &ServiceInfo| Service::from(info);
        let own = ReflectionServer::new(Self::default());
        let own = described(crate::__private::Service::info(&own));
        let mut all: Vec<_> = infos.map(described).chain([own]).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(ReflectionServer::new(Self { all, descriptors }))
    }
}

#[cfg(feature = "tcp")]
impl Reflection for Services {
    async fn services(&self) -> Result<Vec<Service>> {
        Ok(self.all.clone())
    }

    async fn service(&self, name: String) -> Result<Service> {
        let found = self.all.iter().find(|service| service.name == name).cloned();
        found.ok_or_else(|| Status::not_found(format!("the server has no service `{name}`")))
    }

    async fn descriptors(&self) -> Result<Vec<Bytes>> {
        Ok(self.descriptors.clone())
    }
}
