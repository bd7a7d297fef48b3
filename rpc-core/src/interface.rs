//! The names and shapes of services and methods, which both peers must agree on.

use std::borrow::Cow;

use crate::proto::text::cut;
use crate::proto::wire::{TooLong, bind_has_room};

/// The shape of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Kind {
    /// One message each way.
    Unary = 0,
    /// One request message, a stream back.
    ServerStreaming = 1,
    /// A stream of arguments, one message back.
    ClientStreaming = 2,
    /// A stream each way.
    BidiStreaming = 3,
}

impl Kind {
    /// Whether there is a stream from client to server.
    pub fn streams_requests(self) -> bool {
        matches!(self, Self::ClientStreaming | Self::BidiStreaming)
    }

    /// Whether there is a stream from server to client.
    pub fn streams_answers(self) -> bool {
        matches!(self, Self::ServerStreaming | Self::BidiStreaming)
    }
}

/// A method, as both peers must see it to understand each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method {
    /// The name on the wire.
    pub name: Cow<'static, str>,
    /// The shape.
    pub kind: Kind,
    /// The arguments, result and error as this side's codec sees them, as in `put(key: string, value: attachment) ->
    /// unit | Status`. For people only: peers compare the fingerprint.
    pub signature: String,
    /// The fingerprint of the signature, as a client announces it.
    pub fingerprint: u64,
    /// Fingerprints of earlier signatures that this side still understands: those that lack trailing arguments with a
    /// default.
    pub accepts: Vec<u64>,
    /// Whether it does no harm to execute a call more than once. Clients alone need to know.
    pub idempotent: bool,
    /// The Rust types of the messages of protobuf in the signature, in order: what [`std::any::type_name`] says. Peers do not compare
    /// them.
    pub messages: Vec<&'static str>,
    /// Why this side's codec cannot carry one of the types, if so. No server or client is made of such a method.
    pub refusal: Option<String>,
}

impl Method {
    /// Returns a unary method. Its fingerprint is the hash of its signature.
    pub fn unary(name: impl Into<Cow<'static, str>>, signature: impl Into<String>) -> Self {
        Self::new(name, Kind::Unary, signature)
    }

    /// Returns a method of this kind. Its fingerprint is the hash of its signature.
    pub fn new(name: impl Into<Cow<'static, str>>, kind: Kind, signature: impl Into<String>) -> Self {
        let signature = signature.into();
        let fingerprint = stable_hash(signature.as_bytes());
        Self {
            name: name.into(),
            kind,
            signature,
            fingerprint,
            accepts: Vec::new(),
            idempotent: false,
            messages: Vec::new(),
            refusal: None,
        }
    }

    /// Whether this side understands calls of a peer whose signature has this fingerprint.
    pub fn understands(&self, fingerprint: u64) -> bool {
        self.fingerprint == fingerprint || self.accepts.contains(&fingerprint)
    }

    /// Returns the number that names the method in a BIND: the stable hash of its wire name.
    pub fn hash(&self) -> u64 {
        stable_hash(self.name.as_bytes())
    }
}

/// A service as both peers must see it.
///
/// A server refuses to serve a service whose names or methods do not fit on the wire. A client's calls of one end
/// INVALID_ARGUMENT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceInfo {
    /// The name on the wire, as in `shop.v1.Kv`: at most 65,535 bytes.
    pub name: Cow<'static, str>,
    /// The name of the codec: at most 255 bytes.
    pub codec: Cow<'static, str>,
    /// The methods, at most 65,535. Calls use their index here.
    pub methods: Vec<Method>,
}

impl ServiceInfo {
    /// Checks that a client can announce the service. Returns a description of what does not fit.
    pub(crate) fn check(&self) -> Result<(), String> {
        let room = bind_has_room(self.name.len(), self.codec.len(), self.methods.len());
        room.map_err(|why: TooLong| format!("service `{}`: {why}", cut(&self.name, 100)))?;
        self.refusal().map_or(Ok(()), Err)
    }

    /// Why the codec cannot carry one of the types, in words.
    pub(crate) fn refusal(&self) -> Option<String> {
        let (method, why) =
            self.methods.iter().find_map(|method| Some((&method.name, method.refusal.as_ref()?)))?;
        Some(format!(
            "service `{}`, method `{method}`: the codec {} can't carry a type: {why}",
            cut(&self.name, 100),
            self.codec
        ))
    }
}

/// Returns the 64-bit FNV-1a hash: stable between versions and machines, and short. It guards against mistakes, not
/// attacks.
pub const fn stable_hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01b3);
        i += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Peers of all versions must compute the same hashes.
    #[test]
    fn the_hash_is_stable() {
        assert_eq!(stable_hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(stable_hash(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(stable_hash(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_method_understands_its_own_signature_and_those_it_accepts() {
        let old = Method::unary("put", "put(key: string) -> unit | Status");
        let mut new = Method::unary("put", "put(key: string, ttl: u64) -> unit | Status");
        assert!(new.understands(new.fingerprint) && !new.understands(old.fingerprint));
        new.accepts.push(old.fingerprint);
        assert!(new.understands(old.fingerprint) && !old.understands(new.fingerprint));
    }
}
