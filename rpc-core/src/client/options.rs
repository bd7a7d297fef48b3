//! The option setters of calls, as a macro that serves both kinds of calls.

/// Implements the setters for a type with an [`InFlightCall`](super::in_flight::InFlightCall) named `call`.
macro_rules! options {
    ($call:ident<$($of:ident),+>) => {
        impl<$($of),+> $call<$($of),+> {
            /// Limits the call to `timeout`, counted from when it is awaited. It includes connecting, waiting for a
            /// place, and the call's streams. The call ends with DEADLINE_EXCEEDED; the server is told, and drops the
            /// handler. The earliest of several limits applies: a call made by a handler never outlasts the call that
            /// it serves. `Duration::MAX` sets no limit, and overrides the channel's.
            #[inline]
            pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
                self.call.set_timeout(timeout);
                self
            }

            /// Limits the call to end at `deadline`, for several calls that share one limit. Otherwise like
            /// [`timeout`](Self::timeout).
            pub fn deadline(mut self, deadline: std::time::Instant) -> Self {
                self.call.set_deadline(deadline.into());
                self
            }

            /// Limits how long nothing of the call may move: one setting that serves an answer of a megabyte and a stream of
            /// 64 GB. Each of these moves the call and starts the time anew:
            ///
            /// - a part of a message, in either direction, also one that RDMA reads;
            /// - an item that is sent or taken, and more room from the reader of the stream that this side sends;
            /// - an access of the server to memory that the call lends.
            ///
            /// Signs of life of the connection do not. The time starts with the first poll, and again when the call is sent.
            /// When it has passed, the call ends with DEADLINE_EXCEEDED, and the message says how far the call had come. The
            /// server is told, and drops the handler. This happens up to an eighth of `timeout` late.
            ///
            /// A handler that works for long before it answers moves nothing, and neither does a stream without items. So
            /// set it for calls that are always busy. While the server's device uses lent memory by RDMA by itself, this
            /// side sees nothing of that, and the call is not ended. The limit of a stream of answers holds while it is
            /// read. `Duration::MAX` sets no limit, and overrides the channel's
            /// [`Calls::progress_timeout_ms`](crate::config::Calls::progress_timeout_ms).
            pub fn progress_timeout(mut self, timeout: std::time::Duration) -> Self {
                self.call.set_progress_timeout(timeout);
                self
            }

            /// Makes the call by the connection of this class, instead of the client's. This costs an allocation; a
            /// client on a [view](crate::client::RawChannel::class) of the channel avoids it.
            pub fn class(mut self, class: crate::class::TrafficClass) -> Self {
                self.call.set_class(class);
                self
            }

            /// Inherits from `context` instead of from the handler that is being polled, for calls made by tasks that a
            /// handler has spawned. If the context's call [ends](crate::context::Context::ended) before its handler is
            /// done, this call and its streams end CANCELLED.
            pub fn context(mut self, context: &crate::context::Context) -> Self {
                self.call.inherit(context);
                self
            }

            /// Inherits nothing: the call may outlast the call that it is made for.
            pub fn detached(mut self) -> Self {
                self.call.detach();
                self
            }

            /// Sets whether to wait for the server while it can't be reached, instead of failing with UNAVAILABLE. The
            /// channel connects with [pauses](crate::client::RawChannel) between attempts. At its deadline the call
            /// ends DEADLINE_EXCEEDED, with the last attempt's error as source. Without a deadline it waits for ever.
            ///
            /// This applies only to failures that may pass without action. A call that was sent and may have been
            /// executed still fails. The default is the channel's
            /// [`Calls::wait_for_ready`](crate::config::Calls::wait_for_ready).
            pub fn wait_for_ready(mut self, wait: bool) -> Self {
                self.call.set_wait_for_ready(wait);
                self
            }

            /// Sets whether to wait for room while too many calls to the server are in progress: for one of the places that
            /// the server's [`concurrent_calls`](crate::config::Limits::concurrent_calls) allows, and for a part of the
            /// channel's own [`request_memory`](crate::config::Limits::request_memory). Otherwise the call fails at once with
            /// RESOURCE_EXHAUSTED, not executed, so that its caller can drop what it would send to a slow or absent server.
            /// The default is the channel's [`Calls::wait_for_room`](crate::config::Calls::wait_for_room).
            pub fn wait_for_room(mut self, wait: bool) -> Self {
                self.call.set_wait_for_room(wait);
                self
            }

            /// Sets whether it does no harm to execute the call more than once, so that the channel's
            /// [policy](crate::config::Retry) may make it again after failures that leave open whether it was executed. The default is what
            /// the method says: `#[rpc(idempotent)]`.
            pub fn idempotent(mut self, idempotent: bool) -> Self {
                self.call.set_idempotent(idempotent);
                self
            }

            /// Sets the key by which a channel that balances [by key](crate::config::BalancePolicy::ByKey) chooses the server: calls with
            /// one key go to one server for as long as it is connected. Other channels ignore it.
            pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
                self.call.set_key(key.as_ref());
                self
            }

            /// Sets how the arguments are compressed, including all items of a stream, overriding the channel's
            /// settings. See [`Compression`](crate::compress::Compression) for messages that are sent plain
            /// nevertheless. This does not affect the answer; see
            /// [`Response::compression`](crate::client::Response::compression), and
            /// [`Streaming::compression`](crate::stream::Streaming::compression) for items. If this build lacks `by`,
            /// the call fails FAILED_PRECONDITION, not executed.
            pub fn compress(mut self, by: crate::compress::Compression) -> Self {
                self.call.set_compression(by);
                self
            }

            /// Sends a metadata value with this key to the handler, beside the arguments and before all items. A key
            /// can have several values. Keys and values that [`Metadata`](crate::metadata::Metadata) does not allow
            /// fail the call with INVALID_ARGUMENT, not executed.
            pub fn metadata(mut self, key: &str, value: impl AsRef<str>) -> Self {
                self.call.edit_metadata(|all| all.append(key, value));
                self
            }

            /// Sends a metadata value of bytes to the handler. The key must end in `-bin`.
            pub fn metadata_bin(mut self, key: &str, value: impl AsRef<[u8]>) -> Self {
                self.call.edit_metadata(|all| all.append_bin(key, value));
                self
            }

            /// Sends all of these metadata to the handler, in addition to those that were set before.
            pub fn with_metadata(mut self, metadata: crate::metadata::Metadata) -> Self {
                let extend = |all: &mut crate::metadata::Metadata| {
                    all.extend(&metadata);
                    Ok(())
                };
                self.call.edit_metadata(extend);
                self
            }
        }
    };
}

pub(super) use options;
