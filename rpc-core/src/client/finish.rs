//! How the answer of a call becomes its result: at once, or, if it is long, away from the thread that reads connections.

use std::fmt;
use std::task::{Context as TaskContext, Poll, ready};

use super::Stub;
use super::in_flight::InFlightCall;
use crate::calls::Answered;
use crate::codec::{Codec, CodecError, Decode, from_payload};
use crate::decoding::{self, is_decoded, is_long};
use crate::proto::wire::ResponseKind;
use crate::refusal::undecodable;
use crate::service::Outcome;
use crate::status::{Executed, Status};
use crate::stream::Begun;
use crate::transport::BoxFuture;

/// A function that converts the answer of a call, and the stream that it began, into its result. It takes the call's name, for
/// messages.
type Read<O> = fn(&dyn fmt::Display, Answered, Option<Begun>) -> O;

/// A function that has the answer of a call converted on another thread.
type StartReading<O> = fn(Name, Answered, Read<O>) -> BoxFuture<O>;

/// How the answer of a call becomes its result.
pub(crate) struct Finish<O> {
    here: Read<O>,
    /// Reads a long answer apart. `None`: no answer takes long to read.
    apart: Option<StartReading<O>>,
}

impl<O> Finish<O> {
    /// Reads every answer where its call is polled.
    pub(crate) fn here(read: Read<O>) -> Self {
        Self { here: read, apart: None }
    }

    /// Decodes answers by `C`.
    #[inline]
    pub(crate) fn decoding<C: Codec>(read: Read<O>) -> Self
    where
        O: Send + 'static,
    {
        Self { here: read, apart: is_decoded::<C>().then_some(read_apart) }
    }
}

impl<O: Outcome<Err: From<Status>> + Send + 'static> Finish<O> {
    /// Decodes results and errors by `C`.
    #[inline]
    fn by<C: Decode<O::Ok> + Decode<O::Err>>() -> Self {
        Self::decoding::<C>(|call, answer, _| read::<O, C, C>(call, answer))
    }
}

fn read_apart<O: Send + 'static>(name: Name, answer: Answered, read: Read<O>) -> BoxFuture<O> {
    Box::pin(decoding::apart(None, move || read(&name, answer, None)))
}

impl<O> Clone for Finish<O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for Finish<O> {}

impl<O> fmt::Debug for Finish<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finish").finish_non_exhaustive()
    }
}

/// The name of a call, when the call itself is elsewhere.
struct Name {
    stub: Stub,
    method: usize,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.stub.name_of(self.method))
    }
}

/// The result of a call, while it is read apart.
pub(super) struct Apart<O>(Option<BoxFuture<O>>);

impl<O> Apart<O> {
    /// Returns the state of a call without an answer.
    #[inline]
    pub(super) const fn new() -> Self {
        Self(None)
    }

    /// Whether the answer has come.
    #[inline]
    pub(super) fn is_begun(&self) -> bool {
        self.0.is_some()
    }

    /// Polls a call whose answer `C` decodes.
    #[inline]
    pub(super) fn poll_decoding<C>(&mut self, call: &mut InFlightCall, cx: &mut TaskContext<'_>) -> Poll<O>
    where
        O: Outcome + Send + 'static,
        O::Err: From<Status>,
        C: Decode<O::Ok> + Decode<O::Err>,
    {
        if !self.is_begun() {
            let answer = ready!(call.poll(cx));
            // Short answers, which most are, are not passed to a function that is behind a pointer.
            if !is_decoded::<C>() || !answer.as_ref().is_ok_and(|(_, payload)| is_long(payload)) {
                return Poll::Ready(read::<O, C, C>(call, answer));
            }
            return self.read(call, Finish::by::<C>(), answer, None, cx);
        }
        self.poll(call, Finish::by::<C>(), cx)
    }

    /// Polls a call, and reads its answer.
    #[inline]
    pub(super) fn poll_call(
        &mut self,
        call: &mut InFlightCall,
        finish: Finish<O>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<O> {
        if self.is_begun() {
            return self.poll(call, finish, cx);
        }
        let answer = ready!(call.poll(cx));
        self.read(call, finish, answer, None, cx)
    }

    /// Reads the answer of a call. If this is pending, the result must be [polled](Self::poll).
    #[inline]
    pub(super) fn read(
        &mut self,
        call: &mut InFlightCall,
        finish: Finish<O>,
        answer: Answered,
        begun: Option<Begun>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<O> {
        if let (Ok((_, payload)), Some(apart), None) = (&answer, finish.apart, &begun)
            && is_long(payload)
        {
            let name = Name { stub: call.stub.clone(), method: call.method };
            self.0 = Some(apart(name, answer, finish.here));
            return self.poll(call, finish, cx);
        }
        Poll::Ready((finish.here)(call, answer, begun))
    }

    /// Waits for the result, as long as the call may take.
    #[cold]
    pub(super) fn poll(
        &mut self,
        call: &mut InFlightCall,
        finish: Finish<O>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<O> {
        let mut polled = self.0.as_mut().map_or(Poll::Pending, |reading| reading.as_mut().poll(cx));
        if polled.is_pending()
            && let Some(status) = call.ended_unread(cx)
        {
            polled = Poll::Ready((finish.here)(call, Err(status), None));
        }
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

/// Returns the outcome of a call: a result by `C`, or an error by `D`.
#[inline]
pub(crate) fn read<O, C, D>(call: &dyn fmt::Display, answer: Answered) -> O
where
    O: Outcome,
    O::Err: From<Status>,
    C: Decode<O::Ok>,
    D: Decode<O::Err>,
{
    O::from_result(read_result::<O::Ok, C, O::Err, D>(call, answer))
}

fn read_result<T, C: Decode<T>, E: From<Status>, D: Decode<E>>(
    call: &dyn fmt::Display,
    answer: Answered,
) -> Result<T, E> {
    let (kind, payload) = answer?;
    match kind {
        ResponseKind::Ok => Ok(from_payload::<C, T>(payload).map_err(|e| malformed(call, "result", &e))?),
        _ => Err(from_payload::<D, E>(payload).map_err(|e| malformed(call, "error", &e))?),
    }
}

/// Returns the error of an answer. `None` if it is a result.
pub(super) fn read_error<E: From<Status>, D: Decode<E>>(
    call: &dyn fmt::Display,
    answer: Answered,
) -> Option<E> {
    match answer {
        Err(status) => Some(status.into()),
        Ok((ResponseKind::Ok, _)) => None,
        Ok((_, payload)) => {
            let error = from_payload::<D, E>(payload);
            Some(error.unwrap_or_else(|e| malformed(call, "error", &e).into()))
        }
    }
}

#[cold]
fn malformed(call: &dyn fmt::Display, what: &str, why: &CodecError) -> Status {
    undecodable(format_args!("{call}: the {what} can't be decoded"), why, Executed::Yes)
}
