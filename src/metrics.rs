//! Counts and times of calls, and what their transports do, through the [`metrics`](https://docs.rs/metrics) facade.
//!
//! Two interceptors, [`client`] and [`server`], and what farcall counts by itself; whatever recorder the program installs gets
//! them (`metrics-exporter-prometheus`, say). Without a recorder, or without the feature `metrics`, nothing is told.
//!
//! ```
//! use farcall::{Server, metrics};
//!
//! let server = Server::builder().intercept(metrics::server);
//! // channel.intercept(metrics::client)
//! ```
//!
//! | name | kind | labels | |
//! |---|---|---|---|
//! | `farcall_client_calls_total` | counter | `service`, `method`, `code`, `transport` | calls that have ended |
//! | `farcall_client_call_seconds` | histogram | `service`, `method`, `transport` | how long they took |
//! | `farcall_client_calls_in_flight` | gauge | `service`, `method` | calls that have not |
//! | `farcall_client_further_attempts_total` | counter | `why` | attempts beyond the first of a call: `elsewhere`, `retry`, `hedge` |
//! | `farcall_client_ejections_total` | counter | | how often a server that failed its calls was [ejected](crate::Balance::eject_after) |
//! | `farcall_server_calls_total` | counter | `service`, `method`, `code` | handlers that have ended |
//! | `farcall_server_call_seconds` | histogram | `service`, `method` | how long they took |
//! | `farcall_server_calls_in_flight` | gauge | `service`, `method` | handlers that have not |
//! | `farcall_server_refusals_total` | counter | `why` | calls that were refused before their handlers began: `overload` and `share` (see [`Admission`](crate::Admission)), `deadline`, `concurrent_calls`, `memory`, `draining`, `no_rdma` |
//! | `farcall_fallbacks_total` | counter | `reason` | how often a connection stayed on TCP or went back to it, and why: the name of the [`Reason`](crate::Reason), as in `NoDevice` |
//! | `farcall_bytes_sent_total` | counter | `side`, `transport` | bytes handed to the network, headers included |
//! | `farcall_bytes_received_total` | counter | `side`, `transport` | bytes taken from it |
//! | `farcall_send_wait_microseconds_total` | counter | `side` | how long connections had something to send and no room for it |
//! | `farcall_memory_used_bytes` | gauge | | what servers hold for their clients, in steps of 64 KiB for each connection: [`Limits::memory`](crate::Limits::memory) |
//! | `farcall_memory_held_bytes` | gauge | `use` | that memory by its use, as it was when `farcall_memory_used_bytes` last changed: `session`, `partial`, `arguments`, `items`, `unsent`; see [`PeerMemory`](crate::PeerMemory), which also says for whom |
//! | `farcall_memory_held_back_total` | counter | | how often a connection was not read, because it held more than its share |
//! | `farcall_memory_closed_total` | counter | | how many connections were closed to make room |
//! | `farcall_rdma_polls_total` | counter | `device` | how often drivers have asked the device what has completed |
//! | `farcall_rdma_spins_total` | counter | `device` | how many of those found nothing and were followed by the next without a sleep |
//! | `farcall_rdma_sleeps_total` | counter | `device` | how often a driver slept |
//! | `farcall_rdma_credit_waits_total` | counter | `device` | how often a connection had something to send and no credit |
//! | `farcall_rdma_direct_accesses_total` | counter | `device` | how often this process has used a peer's region, or memory that a peer lends, without the peer's program |
//!
//! `code` is `OK`, the name of a status such as `NOT_FOUND`, or `APPLICATION` for an error of the application's own type; what was
//! dropped is `CANCELLED`. `transport` is `tcp` or `rdma`, or `none` for a call that was not answered. A call whose answer is a
//! stream ends with that. A server's interceptor sees the calls that have a handler, not those that are refused before.
//!
//! `side` is `client` or `server`. Bytes, and what drivers do, are counted where they arise and told once a second
//! while there are some, and at the end; the same numbers can be had at any time from
//! [`Connection::traffic`](crate::Connection::traffic) and `farcall::rdma::stats`. Bytes that were sent but not read
//! when RDMA was lost are sent again by TCP, and counted again.

use std::future::Future;
use std::time::Instant;

use crate::Code;
use crate::Result;
use crate::middleware::{Next, Request, Response};

/// An interceptor of clients that counts calls.
pub fn client(request: Request, next: Next) -> impl Future<Output = Result<Response>> + Send + 'static {
    counted(&CLIENT, request, next)
}

/// An interceptor of servers that counts calls.
pub fn server(request: Request, next: Next) -> impl Future<Output = Result<Response>> + Send + 'static {
    counted(&SERVER, request, next)
}

struct Names {
    calls: &'static str,
    seconds: &'static str,
    in_flight: &'static str,
    is_client: bool,
}

const CLIENT: Names = Names {
    calls: "farcall_client_calls_total",
    seconds: "farcall_client_call_seconds",
    in_flight: "farcall_client_calls_in_flight",
    is_client: true,
};

const SERVER: Names = Names {
    calls: "farcall_server_calls_total",
    seconds: "farcall_server_call_seconds",
    in_flight: "farcall_server_calls_in_flight",
    is_client: false,
};

fn counted(
    names: &'static Names,
    request: Request,
    next: Next,
) -> impl Future<Output = Result<Response>> + Send + 'static {
    let begun = InFlight::begin(names, &request);
    async move {
        let mut call = begun;
        let mut result = next.run(request).await;
        if let Ok(response) = &result {
            call.transport = response.connection().map_or("none", |connection| connection.transport().name);
        }
        match &mut result {
            Ok(response) => response.on_end(move |end| call.has_ended(end.outcome())),
            Err(status) => call.has_ended(status.code().name()),
        }
        result
    }
}

/// A call that has not ended; dropped when it has.
struct InFlight {
    names: &'static Names,
    service: String,
    method: String,
    began: Instant,
    code: &'static str,
    transport: &'static str,
}

impl InFlight {
    fn begin(names: &'static Names, request: &Request) -> Self {
        let (service, method) = (request.service().to_owned(), request.method().to_owned());
        metrics::gauge!(names.in_flight, "service" => service.clone(), "method" => method.clone())
            .increment(1);
        let code = Code::Cancelled.name();
        Self { names, service, method, began: Instant::now(), code, transport: "none" }
    }

    fn has_ended(mut self, code: &'static str) {
        self.code = code;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Self { names, service, method, began, code, transport } = self;
        let mut labels = vec![("service", service.clone()), ("method", method.clone())];
        metrics::gauge!(names.in_flight, &labels).decrement(1);
        if names.is_client {
            labels.push(("transport", (*transport).to_owned()));
        }
        metrics::histogram!(names.seconds, &labels).record(began.elapsed());
        labels.push(("code", (*code).to_owned()));
        metrics::counter!(names.calls, &labels).increment(1);
    }
}
