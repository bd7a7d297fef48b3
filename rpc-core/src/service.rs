//! What `#[farcall::service]` makes of a trait, as the server and the client see it.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;

use crate::compress::Compression;
use crate::context::{Context, SetForAnswer};
use crate::metadata::AnswerMetadata;
use crate::payload::Payload;
use crate::proto::text::cut;
use crate::proto::wire::{TooLong, bind_has_room};
use crate::status::Status;
use crate::stream::{Sent, Streams};

/// The shapes a method can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Kind {
    /// One message each way.
    Unary = 0,
    /// One message there, a stream back.
    ServerStreaming = 1,
    /// A stream there, one message back.
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

/// One method as both peers must see it to understand each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method {
    /// Its name on the wire.
    pub name: &'static str,
    /// Its shape.
    pub kind: Kind,
    /// Its arguments, result and error as this side's codec sees them, as in
    /// `put(key: string, value: attachment) -> unit | Status`. For people: peers compare the fingerprint.
    pub signature: String,
    /// The fingerprint of the signature; what a client announces.
    pub fingerprint: u64,
    /// Fingerprints of earlier signatures that this side still understands: those without the trailing arguments
    /// that have a default.
    pub accepts: Vec<u64>,
}

impl Method {
    /// A method with one message each way, whose fingerprint is that of its signature.
    pub fn unary(name: &'static str, signature: impl Into<String>) -> Self {
        Self::new(name, Kind::Unary, signature)
    }

    /// A method of this kind, likewise.
    pub fn new(name: &'static str, kind: Kind, signature: impl Into<String>) -> Self {
        let signature = signature.into();
        let fingerprint = stable_hash(signature.as_bytes());
        Self { name, kind, signature, fingerprint, accepts: Vec::new() }
    }

    /// Whether this side understands calls of a peer whose signature has this fingerprint.
    pub fn understands(&self, fingerprint: u64) -> bool {
        self.fingerprint == fingerprint || self.accepts.contains(&fingerprint)
    }

    /// What names the method in a BIND: the first eight bytes of a stable hash of its wire name.
    pub fn hash(&self) -> u64 {
        stable_hash(self.name.as_bytes())
    }
}

/// A service as both peers must see it.
///
/// A server refuses to serve one whose names or methods are more than the wire has room for, and calls of one end
/// INVALID_ARGUMENT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceInfo {
    /// Its name on the wire, as in `shop.v1.Kv`: at most 65,535 bytes.
    pub name: Cow<'static, str>,
    /// The name of its codec: at most 255 bytes.
    pub codec: &'static str,
    /// Its methods, at most 65,535; calls use their index here.
    pub methods: Vec<Method>,
}

impl ServiceInfo {
    /// Whether a client can announce it. `Err`: what is wrong with it, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        let room = bind_has_room(self.name.len(), self.codec.len(), self.methods.len());
        room.map_err(|why: TooLong| format!("service `{}`: {why}", cut(&self.name, 100)))
    }
}

/// FNV-1a, 64 bit: stable between versions and machines, and short. It guards against mistakes, not attacks.
pub const fn stable_hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01b3);
        i += 1;
    }
    hash
}

/// One call on its way into a handler.
#[derive(Debug)]
pub struct Request {
    /// What the handler may know of its call. What goes with its answer it sets by [`Context::current`].
    pub context: Context,
    /// The arguments.
    pub payload: Payload,
    /// The streams of the call, if it has any.
    pub streams: Option<Streams>,
}

/// What a handler answers.
#[derive(Debug)]
pub enum Reply {
    /// The result.
    Ok(Payload),
    /// The application's own error.
    Err(Payload),
    /// A status. Of a handler that ran, UNAVAILABLE never counts as not executed: it may be passed on from a call that
    /// the handler made.
    Status(Status),
    /// The end of a stream that was sent whole, or not: [`Streams::answer`](crate::stream::Streams::answer) gives it.
    End(Sent),
    /// One of these, with what the handler has set in its context.
    With(Box<WithMetadata>),
}

impl Reply {
    /// Adds what the handler has set in its context, if that is anything.
    #[inline]
    pub(crate) fn add(&mut self, set: Option<Box<SetForAnswer>>) {
        if let Some(set) = set {
            self.add_set(*set);
        }
    }

    #[cold]
    fn add_set(&mut self, set: SetForAnswer) {
        let SetForAnswer { mut metadata, compression } = set;
        *self = match std::mem::replace(self, Self::Ok(Payload::default())) {
            Self::With(mut with) => {
                metadata.extend(&with.metadata);
                with.metadata = metadata;
                with.compression = compression.or(with.compression);
                Self::With(with)
            }
            reply => Self::With(Box::new(WithMetadata { reply, metadata, compression })),
        };
    }
}

/// A [`Reply`] with metadata, and with what it is to be compressed by.
#[derive(Debug)]
pub struct WithMetadata {
    pub(crate) reply: Reply,
    pub(crate) metadata: AnswerMetadata,
    /// `None`: as the server is set.
    pub(crate) compression: Option<Compression>,
}

/// A handler at work. Boxed once, when the request is decoded, because it may outlive that moment.
///
/// It is polled the first time where its request was taken in, by what reads the connection (by RDMA: all connections of
/// this runtime), with a waker that wakes nobody; if it is not done at that, it becomes a task of its own and is polled
/// again. So a handler that computes for long, or blocks, holds up the other calls there, as it would hold up a thread of
/// the runtime: `tokio::task::spawn_blocking` is for that, or a `tokio::task::yield_now().await` before. One that blocks in a
/// call of its own may wait for ever: what is held up is, perhaps, the answer. It is dropped where it waits when its caller
/// gives up, its deadline passes or its connection ends.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// A service that can be added to a server. `#[farcall::service]` implements it for the generated `…Server` types.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a service that can be added to a server",
    label = "not a service",
    note = "what implements the trait `Kv` is served by the type that was made with it: write `KvServer::new({Self})`"
)]
pub trait Service: Send + Sync + 'static {
    /// Its names and fingerprints.
    fn info(&self) -> &ServiceInfo;

    /// Starts the handler of method `method` (an index into [`ServiceInfo::methods`]). Does nothing but read the arguments and
    /// make the future: it may be called with many requests at once.
    fn call(&self, method: usize, request: Request) -> HandlerFuture;
}

/// Lets generated code see through type aliases to the two types of a result.
#[diagnostic::on_unimplemented(
    message = "a method of a service, and a stream of it, gives a `Result`, not `{Self}`",
    label = "not a `Result`",
    note = "every call can fail, and every stream be cut short, if only by a deadline: write `farcall::Result<..>`, or \
            `Result<.., E>` with an error type of your own"
)]
pub trait Outcome {
    /// What the method returns when it succeeds.
    type Ok;
    /// What it returns when it does not.
    type Err;

    /// The result itself.
    fn into_result(self) -> Result<Self::Ok, Self::Err>;

    /// A view of it.
    fn as_result(&self) -> Result<&Self::Ok, &Self::Err>;

    /// Makes one from a result.
    fn from_result(result: Result<Self::Ok, Self::Err>) -> Self;
}

impl<T, E> Outcome for Result<T, E> {
    type Ok = T;
    type Err = E;

    fn into_result(self) -> Self {
        self
    }

    fn as_result(&self) -> Result<&T, &E> {
        self.as_ref()
    }

    fn from_result(result: Self) -> Self {
        result
    }
}

/// What the error type of a method is: `From<Status>`, because any call can fail on its way.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be the error type of a method, for it is not `From<farcall::Status>`",
    label = "not `From<farcall::Status>`",
    note = "any call can fail for reasons of farcall's own, such as its deadline: write `impl From<farcall::Status> for \
            {Self}`, or return `farcall::Result<..>`"
)]
pub trait Failure: From<Status> {}

#[diagnostic::do_not_recommend]
impl<E: From<Status>> Failure for E {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Peers of all versions must compute the same.
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
