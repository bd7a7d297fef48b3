//! The methods by which an application sets a call's options: one text for both kinds of calls.

/// The options of a type that has a [`InFlightCall`](super::in_flight::InFlightCall) `call`.
macro_rules! options {
    ($call:ident<$($of:ident),+>) => {
        impl<$($of),+> $call<$($of),+> {
            /// Gives up after `timeout`, counted from when the call is awaited. Connecting and waiting for a turn count, and the
            /// call's streams must have ended by then. The call ends with DEADLINE_EXCEEDED; the server is told, and drops the
            /// handler. Of several limits the earliest counts: a call made by a handler never outlasts the call that it serves.
            /// `Duration::MAX` sets no limit, and overrides the channel's.
            #[inline]
            pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
                self.call.set_timeout(timeout);
                self
            }

            /// Gives up at `deadline`, as [`timeout`](Self::timeout) does after a time: for several calls that share one limit.
            pub fn deadline(mut self, deadline: std::time::Instant) -> Self {
                self.call.set_deadline(deadline.into());
                self
            }

            /// Makes the call by the connection of this class, whichever the client's is. That costs an allocation, which a
            /// client on a [view](crate::client::RawChannel::class) of the channel saves.
            pub fn class(mut self, class: crate::class::TrafficClass) -> Self {
                self.call.set_class(class);
                self
            }

            /// Inherits from `context` instead of from the handler that is being polled, for calls made by tasks that a
            /// handler has spawned. If the call that this is the context of [ends](crate::context::Context::ended) before its
            /// handler is done, this one ends, too, and with it its streams: CANCELLED.
            pub fn context(mut self, context: &crate::context::Context) -> Self {
                self.call.inherit(context);
                self
            }

            /// Inherits nothing: the call may outlast the one that it is made for.
            pub fn detached(mut self) -> Self {
                self.call.detach();
                self
            }

            /// Whether to wait for the server while it can't be reached, in place of failing with UNAVAILABLE. Attempts to
            /// connect are made with the pauses that are said [there](crate::client::RawChannel). Such a call ends at its deadline,
            /// DEADLINE_EXCEEDED with the last attempt's error as its source, and without one waits for ever.
            ///
            /// Only for what can change by itself: a call that was sent and may have been executed fails as any other.
            /// Otherwise what the channel's configuration says counts:
            /// [`Calls::wait_for_ready`](crate::config::Calls::wait_for_ready).
            pub fn wait_for_ready(mut self, wait: bool) -> Self {
                self.call.set_wait_for_ready(wait);
                self
            }

            /// Has the arguments compressed, or not, whatever the channel is set to do: those of a stream, too, all alike.
            /// [`Compression`](crate::compress::Compression) says when that is not done all the same. How the handler answers is
            /// its own affair: [`Response::compression`](crate::client::Response::compression) says it, and
            /// [`Streaming::compression`](crate::stream::Streaming::compression) of items. Where this build lacks `by` the call
            /// fails, FAILED_PRECONDITION and not executed.
            pub fn compress(mut self, by: crate::compress::Compression) -> Self {
                self.call.set_compression(by);
                self
            }

            /// Sends a value of this key to the handler, beside the arguments and before all items; with others, if it has some
            /// already. [`Metadata`](crate::metadata::Metadata) says what keys and values may be: with others the call fails,
            /// INVALID_ARGUMENT and not executed.
            pub fn metadata(mut self, key: &str, value: impl AsRef<str>) -> Self {
                self.call.edit_metadata(|all| all.append(key, value));
                self
            }

            /// Sends a value of bytes to the handler, under a key that ends in `-bin`.
            pub fn metadata_bin(mut self, key: &str, value: impl AsRef<[u8]>) -> Self {
                self.call.edit_metadata(|all| all.append_bin(key, value));
                self
            }

            /// Sends all of these to the handler, with those that were set before.
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
