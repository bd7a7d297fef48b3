//! Support for the code that `#[farcall::service]` generates. Nothing else may use it: it changes with the macro.
//!
//! Everything that does not depend on the trait is here, to keep the generated code small.

mod errors;
mod relay;
mod streams;

use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

pub use crate::class::TrafficClass;
pub use crate::client::{Call, CallFuture, RawChannel, StreamCall, Stub};
pub use crate::codec::{Codec, Postcard};
pub use crate::context::Context;
use crate::context::open_grant;
pub use crate::decoding::in_task;
pub use crate::in_process::in_process;
pub use crate::payload::Payload;
pub use crate::service::{HandlerFuture, IncomingCall, Method, Outcome, Reply, Service, ServiceInfo};
pub use crate::status::Status;
pub use crate::stream::{Stream, StreamItem, Streaming};
pub use errors::{ErrorType, OtherError, StatusIn};
pub use relay::{Relay, Relayed, relay};
pub use streams::{
    Flattened, Items, Streamed, WithErrors, answer, call_for_stream, call_with_stream, flatten, refuse,
    requests, streamed,
};

use crate::buffer_pool::encoder;
use crate::client::{Finish, read};
use crate::codec::{Carry, CodecError, Decode, Encode, Shape, all_read};
use crate::payload::{Decoder, Encoder, MemoryGrant};
use crate::refusal::undecodable;
use crate::service::{Failure, Kind};
use crate::status::{Blame, Code, Executed};
use crate::stream::ReadItem;

/// The codec's functions for a type of argument.
///
/// Only [`argument`] has bounds, and the functions that need them take this type instead. So the compiler reports a
/// missing bound once, in the same words wherever the argument is used.
#[derive(Debug)]
pub struct Argument<T> {
    encode: fn(&T, &mut Encoder) -> Result<(), CodecError>,
    decode: ReadItem<T>,
    shape: fn(&mut Shape),
    /// Whether the codec identifies arguments by position, so that their names are part of a signature.
    named: bool,
}

/// Returns the codec's functions for an argument of type `T`.
pub fn argument<C: Carry<T>, T: Send + 'static>() -> Argument<T> {
    Argument {
        encode: <C as Encode<T>>::encode,
        decode: ReadItem::by::<C>(),
        shape: <C as Decode<T>>::shape,
        named: C::ARGUMENTS > 1,
    }
}

/// The codec's functions for the return type of a method, without bounds for the reason given at [`Argument`].
#[derive(Debug)]
pub struct Returned<O> {
    shape: fn(&mut Shape),
    reply: fn(&ServiceInfo, usize, O, StatusIn) -> Reply,
    status_in: StatusIn,
    finish: Finish<O>,
}

/// Returns the codec's functions for a method that returns `O`. `C` and `D` are the codec, and `E` is the error type.
/// The three are separate so that the compiler reports missing bounds at the right tokens: of the result, of the error,
/// and of the error's `From<Status>`.
pub fn returned<O, C, D, E>() -> (Returned<O>, ErrorType<E>)
where
    O: Outcome<Err = E> + Send + 'static,
    C: Carry<O::Ok>,
    D: Carry<E>,
    E: Failure + 'static,
{
    let returned = Returned {
        shape: |result| {
            <C as Decode<O::Ok>>::shape(result);
            result.opaque(" | ");
            error_shape::<D, E>(result);
        },
        reply: reply::<O, C, D, E>,
        status_in: errors::is_status,
        finish: Finish::decoding::<C>(|call, answer, _| read::<O, C, D>(call, answer)),
    };
    (returned, ErrorType(PhantomData))
}

impl<O> Returned<O> {
    /// Sets the function that finds the status in an error.
    #[must_use]
    pub fn with_status_in(self, status_in: StatusIn) -> Self {
        Self { status_in, ..self }
    }
}

fn error_shape<D: Decode<E>, E: 'static>(shape: &mut Shape) {
    if TypeId::of::<E>() == TypeId::of::<Status>() {
        // A status does not go through the codec.
        shape.opaque("Status");
    } else {
        <D as Decode<E>>::shape(shape);
    }
}

/// The signature of a method, as it is built.
#[derive(Debug)]
pub struct Signature {
    method: &'static str,
    /// The text of each argument: its name, unless the codec leaves it out, and its type.
    arguments: Vec<String>,
    /// How many of the last arguments may be missing.
    defaults: usize,
    /// The text of the argument that is a stream.
    rows: Option<String>,
    idempotent: bool,
    /// The messages of protobuf in the arguments, and those in the stream, which the text has last.
    messages: [Vec<&'static str>; 2],
    /// Why an argument cannot be carried, if so.
    refusal: Option<String>,
}

impl Signature {
    pub fn new(method: &'static str) -> Self {
        Self {
            method,
            arguments: Vec::new(),
            defaults: 0,
            rows: None,
            idempotent: false,
            messages: Default::default(),
            refusal: None,
        }
    }

    /// Adds an argument.
    pub fn argument<T>(&mut self, argument: Argument<T>, name: &str) {
        let mut shape = Shape::default();
        if argument.named {
            shape.opaque(&format!("{name}: "));
        }
        (argument.shape)(&mut shape);
        self.note_refusal(&shape, name);
        self.arguments.push(shape.text().to_owned());
        self.messages[0].extend(shape.messages());
        self.defaults = 0;
    }

    fn note_refusal(&mut self, shape: &Shape, argument: &str) {
        if let (None, Some(why)) = (&self.refusal, shape.refusal()) {
            self.refusal = Some(format!("argument `{argument}`: {why}"));
        }
    }

    /// Notes that it does no harm to execute a call more than once.
    pub fn idempotent(&mut self) {
        self.idempotent = true;
    }

    /// Adds an argument that may be missing.
    pub fn default_argument<T>(&mut self, argument: Argument<T>, name: &str) {
        let defaults = self.defaults + 1;
        self.argument(argument, name);
        self.defaults = defaults;
    }

    /// Adds the return type.
    pub fn returns<O>(self, returned: Returned<O>) -> Method {
        let kind = if self.rows.is_some() { Kind::ClientStreaming } else { Kind::Unary };
        self.method(kind, returned.shape)
    }

    fn method(self, kind: Kind, answer: fn(&mut Shape)) -> Method {
        let mut shape = Shape::default();
        answer(&mut shape);
        let signature = |count: usize| {
            let arguments: Vec<&str> =
                self.arguments[..count].iter().chain(&self.rows).map(String::as_str).collect();
            let text = format!("{}({}) -> {}", self.method, arguments.join(", "), shape.text());
            Method::new(self.method, kind, text)
        };
        let all = self.arguments.len();
        let refusal = self.refusal.clone().or_else(|| Some(format!("result: {}", shape.refusal()?)));
        let accepts = (all - self.defaults..all).map(|count| signature(count).fingerprint).collect();
        let messages = [self.messages.concat().as_slice(), shape.messages()].concat();
        Method { accepts, idempotent: self.idempotent, messages, refusal, ..signature(all) }
    }
}

/// Returns the description of a service with this codec.
pub fn service_info<C: Codec>(
    name: impl Into<std::borrow::Cow<'static, str>>,
    methods: Vec<Method>,
) -> Arc<ServiceInfo> {
    Arc::new(ServiceInfo { name: name.into(), codec: C::NAME.into(), methods })
}

/// An encoder for the arguments of a call.
#[derive(Debug)]
pub struct ArgumentsEncoder<'a> {
    call: CallName<'a>,
    arguments: Result<Encoder, Status>,
}

impl<'a> ArgumentsEncoder<'a> {
    #[inline]
    pub fn new(service: &'a ServiceInfo, method: usize) -> Self {
        Self { call: CallName { service, method }, arguments: Ok(encoder().lending()) }
    }

    /// Adds an argument.
    pub fn put<T>(&mut self, argument: Argument<T>, name: &str, value: &T) {
        if let Ok(out) = &mut self.arguments
            && let Err(e) = (argument.encode)(value, out)
        {
            let message = format!("{}: the argument `{name}` can't be encoded: {e}", self.call);
            self.arguments = Err(Status::new(Code::Internal, message)
                .with_blame(Blame::Caller)
                .with_executed(Executed::No));
        }
    }

    #[inline]
    pub fn finish(self) -> Result<Payload, Status> {
        self.arguments.map(Encoder::finish)
    }
}

/// Returns the future of a call. Unlike [`Call`] it has no bounds.
pub fn begin<O, C>(call: Call<O, C>, returned: Returned<O>) -> CallFuture<O> {
    call.finished_by(returned.finish)
}

/// A service as the server runs it: the implementation and the description of its trait. Cheap to clone, because each
/// handler holds one.
#[derive(Debug)]
pub struct Served<S>(Arc<(Arc<S>, Arc<ServiceInfo>)>);

impl<S> Served<S> {
    pub fn new(service: Arc<S>, info: Arc<ServiceInfo>) -> Self {
        Self(Arc::new((service, info)))
    }

    pub fn service(&self) -> &S {
        &self.0.0
    }

    pub fn info(&self) -> &ServiceInfo {
        &self.0.1
    }
}

impl<S> Clone for Served<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The account of the memory of a call's arguments, if they take much.
pub type Held = Option<Box<dyn MemoryGrant>>;

/// The arguments of a call as they arrived. A malformed argument is answered without running the handler.
#[derive(Debug)]
pub struct Incoming {
    input: Decoder,
}

impl Incoming {
    #[inline]
    pub fn new(payload: Payload) -> Self {
        Self { input: Decoder::new(payload).counted_at_need(open_grant) }
    }

    /// Takes the next argument.
    pub fn next<T>(&mut self, argument: Argument<T>, name: &str) -> Result<T, Reply> {
        (argument.decode.here)(&mut self.input)
            .map_err(|e| malformed(format_args!("the argument `{name}` can't be decoded"), &e))
    }

    /// Takes the next argument, or returns its default if the caller is too old to send it.
    pub fn next_or_default<T: Default>(&mut self, argument: Argument<T>, name: &str) -> Result<T, Reply> {
        if self.input.is_finished() { Ok(T::default()) } else { self.next(argument, name) }
    }

    /// Fails if there is more input than arguments. Returns the account of their memory, for the handler to hold as long as it
    /// holds them.
    pub fn finish(self) -> Result<Held, Reply> {
        match all_read(&self.input) {
            Ok(()) => Ok(self.input.into_grant()),
            Err(e) => Err(malformed(format_args!("there is more than the arguments"), &e)),
        }
    }
}

/// Returns the answer to malformed arguments. The client puts the call's name before the message.
fn malformed(what: fmt::Arguments<'_>, why: &CodecError) -> Reply {
    Reply::Status(undecodable(what, why, Executed::No))
}

/// Returns the context for a handler that takes it as an argument.
pub fn given(context: Context) -> Context {
    context.given()
}

/// Encodes the result or error of a handler.
pub fn finish<O>(service: &ServiceInfo, method: usize, outcome: O, returned: Returned<O>) -> Reply {
    (returned.reply)(service, method, outcome, returned.status_in)
}

fn reply<O, C, D, E>(service: &ServiceInfo, method: usize, outcome: O, status_in: StatusIn) -> Reply
where
    O: Outcome<Err = E>,
    C: Encode<O::Ok>,
    D: Encode<E>,
    E: 'static,
{
    let call = CallName { service, method };
    match outcome.into_result() {
        Ok(value) => {
            let mut out = encoder();
            match C::encode(&value, &mut out) {
                Ok(()) => Reply::Ok(out.finish()),
                Err(e) => not_encoded(&call, "result", &e),
            }
        }
        Err(error) => fail::<D, E>(&call, &error, status_in),
    }
}

/// Encodes the error of a call or its stream.
fn fail<D: Encode<E>, E: 'static>(call: &CallName<'_>, error: &E, status_in: StatusIn) -> Reply {
    if let Some(status) = status_in(error) {
        // The handler ran, even if the status says "not executed" of a call that the handler made. If it were left like
        // that, the caller's side might repeat this call.
        return Reply::Status(status.clone().with_executed(Executed::Yes));
    }
    let mut out = encoder();
    match D::encode(error, &mut out) {
        Ok(()) => Reply::Err(out.finish()),
        Err(e) => not_encoded(call, "error", &e),
    }
}

#[cold]
fn not_encoded(call: &CallName<'_>, what: &str, e: &CodecError) -> Reply {
    let message = format!("{call}: the {what} can't be encoded: {e}");
    Reply::Status(Status::new(Code::Internal, message))
}

/// Returns the future of a handler that has nothing to wait for.
pub fn at_once(reply: Reply) -> HandlerFuture {
    Box::pin(std::future::ready(reply))
}

/// Answers a call of a method that the service does not have. No caller sees this answer, because the server looks the
/// method up in the same `ServiceInfo` first.
pub fn no_such_method(service: &ServiceInfo, method: usize) -> HandlerFuture {
    let message = format!("service `{}` has no method {method}", service.name);
    let status = Status::new(Code::Unimplemented, message).with_blame(Blame::Bug).with_executed(Executed::No);
    at_once(Reply::Status(status))
}

/// The name of a method in messages: `shop.v1.Kv/get`.
#[derive(Clone, Copy, Debug)]
struct CallName<'a> {
    service: &'a ServiceInfo,
    method: usize,
}

impl fmt::Display for CallName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = self.service.methods.get(self.method).map_or("?", |m| &*m.name);
        write!(f, "{}/{method}", self.service.name)
    }
}
