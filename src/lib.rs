//! Async RPC that runs over RDMA (InfiniBand, RoCE) where both ends have it, and over TCP where they don't.
//!
//! A trait with [`#[farcall::service]`](service) becomes a typed client and server. The same program uses either
//! transport, as it is configured. [`Connection::transport`] says which one it uses, and why.
//!
//! ```
//! use farcall::{Bytes, Channel, Server};
//!
//! #[farcall::service(package = "shop.v1")]
//! pub trait Kv {
//!     async fn get(&self, key: String) -> farcall::Result<Option<Bytes>>;
//! }
//!
//! struct Store;
//!
//! impl Kv for Store {
//!     async fn get(&self, key: String) -> farcall::Result<Option<Bytes>> {
//!         Ok((key == "greeting").then(|| Bytes::from_static(b"hello")))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().add(KvServer::new(Store)).bind("127.0.0.1:0").await?;
//! let address = format!("farcall://{}", server.local_addr());
//! tokio::spawn(server.serve());
//!
//! let channel = Channel::connect(&address).await?;
//! let kv = KvClient::new(channel.clone());
//! assert_eq!(kv.get("greeting").await?.unwrap(), "hello");
//! println!("over {}", channel.transport().await?);
//! # Ok(())
//! # }
//! ```
//!
//! # Streams
//!
//! A method may answer with a stream, take one, or both:
//!
//! ```
//! use farcall::{EndReason, Stream, Streaming, stream};
//!
//! #[farcall::service]
//! pub trait Log {
//!     /// Begins at once. If something goes wrong, the last item is an error.
//!     fn lines(&self, from: u64) -> impl Stream<Item = farcall::Result<String>>;
//!     /// May refuse before it begins.
//!     async fn tail(&self, file: String) -> farcall::Result<impl Stream<Item = farcall::Result<String>>>;
//!     /// Takes a stream, and answers when it likes: at its end, or before.
//!     async fn append(&self, lines: Streaming<String>) -> farcall::Result<u64>;
//!     /// Both at once.
//!     fn upper(&self, lines: Streaming<String>) -> impl Stream<Item = farcall::Result<String>>;
//! }
//!
//! struct Lines;
//!
//! impl Log for Lines {
//!     fn lines(&self, from: u64) -> impl Stream<Item = farcall::Result<String>> {
//!         stream::iter((from..from + 3).map(|n| Ok(format!("line {n}"))))
//!     }
//!
//!     async fn tail(&self, file: String) -> farcall::Result<impl Stream<Item = farcall::Result<String>>> {
//!         match file.as_str() {
//!             "log" => Ok(self.lines(7)),
//!             _ => Err(farcall::Status::not_found("no such file")),
//!         }
//!     }
//!
//!     async fn append(&self, mut lines: Streaming<String>) -> farcall::Result<u64> {
//!         let mut count = 0;
//!         while let Some(_line) = lines.message().await? {
//!             count += 1;
//!         }
//!         Ok(count)
//!     }
//!
//!     fn upper(&self, mut lines: Streaming<String>) -> impl Stream<Item = farcall::Result<String>> {
//!         let (sender, upper) = stream::channel(16);
//!         tokio::spawn(async move {
//!             while let Some(line) = lines.message().await.transpose() {
//!                 if sender.pass_on(line.map(|line| line.to_uppercase())).await.is_err() {
//!                     break; // the client has enough
//!                 }
//!             }
//!         });
//!         upper
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> farcall::Result<()> {
//! let log = LogClient::in_process(Lines);
//! let mut lines = log.lines(1).await?;
//! while let Some(line) = lines.message().await? {
//!     println!("{line}");
//! }
//! assert_eq!(lines.end_reason(), Some(EndReason::Completed));
//!
//! assert_eq!(log.tail("other").await.unwrap_err().message(), "no such file");
//!
//! let lines = stream::iter(["a", "b"].map(String::from));
//! assert_eq!(log.append(lines).await?, 2);
//!
//! let (say, lines) = stream::channel(1);
//! let mut upper = log.upper(lines).await?;
//! say.send("hello".to_owned()).await.expect("the call takes more");
//! assert_eq!(upper.message().await?.as_deref(), Some("HELLO"));
//! # Ok(())
//! # }
//! ```
//!
//! An item is a `Result`. An error ends its stream, so a stream that is cut short never looks complete. A sender waits while the
//! other side does not read, and no other call waits with it. Dropping a [`Streaming`] tells the other side to stop. The module
//! [`stream`] makes streams of iterators, of async blocks and of what tasks send.
//!
//! # Cancellation
//!
//! Dropping the future of a call, or the stream that it returned, cancels the call. The server drops the handler's future where it
//! awaits, and with it the calls that the handler is making, and so on. Nobody knows whether the handler has done its work by then.
//! Tasks that a handler has spawned go on. They learn of the end from its [`Context`], by [`ended`](Context::ended). Calls that
//! they make in its [`scope`](Context::scope) end, too. Other futures say in their documentation what dropping them does.
//!
//! # Errors
//!
//! A method returns `Result<T>`, or `Result<T, E>` with an error type of its own. For an error type of another crate there is
//! [`CallError`]. Failures of transport, deadline and peer are a [`Status`], and reach the caller as `E::from(status)`. A status
//! says whose fault it is ([`Status::blame`]) and whether the handler may have run ([`Status::executed`]). It can carry details for
//! programs, in the form of gRPC's ([`details`]). Its [sources](Status::with_source) reach the log of its caller:
//! `tracing::error!("{status:#}")`.
//!
//! # Metadata
//!
//! A call and its answer can carry names and values beside arguments and result ([`Metadata`]): a token, a request identifier, how
//! long a query took. A handler sets them by its [`Context`]. Those of an answer are either *metadata*, sent before the result, or
//! *trailers*, sent after it. A status that a handler returns can [have some](Status::with_metadata), too.
//!
//! ```
//! use farcall::{Code, Context, Status};
//!
//! #[farcall::service]
//! trait Reports {
//!     async fn count(&self, cx: &Context, table: String) -> farcall::Result<u64>;
//! }
//!
//! struct Database;
//!
//! impl Reports for Database {
//!     async fn count(&self, cx: &Context, table: String) -> farcall::Result<u64> {
//!         if cx.metadata().get("token") != Some("let me in") {
//!             return Err(Status::unauthenticated("no token, or a wrong one"));
//!         }
//!         cx.reply_trailers(|trailers| trailers.insert("took-ms", "12"))?;
//!         Ok(table.len() as u64)
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let reports = ReportsClient::in_process(Database);
//! let response = reports.count("orders").metadata("token", "let me in").with_response().await?;
//! assert_eq!((response.value, response.trailers.get("took-ms")), (6, Some("12")));
//!
//! let error = reports.count("orders").await.unwrap_err();
//! assert_eq!(error.code(), Code::Unauthenticated);
//! # Ok::<(), Status>(()) }).unwrap();
//! ```
//!
//! # Middleware
//!
//! An interceptor is an async function around the calls of a [channel](Channel::intercept), a
//! [service](middleware::ServiceExt) or a [server](ServerBuilder::intercept). It has one form on both sides. With the feature
//! `tower`, tower's layers go there, too. See [`middleware`]. The module [`trace`] has two interceptors that make spans and pass
//! traces on as W3C's Trace Context says.
//!
//! # Compression
//!
//! With the features `zstd` and `lz4`, arguments, results and items can be compressed ([`Compression`]). The choice is that of
//!
//! - a call: [`Call::compress`], [`StreamCall::compress`];
//! - a handler: [`Context::compress`], for each item anew if it likes;
//! - a service, channel or server: [`ServiceExt::compress`](middleware::ServiceExt::compress), [`ChannelBuilder::compress`],
//!   [`ServerBuilder::compress`];
//! - the configuration: [`Calls::compress`].
//!
//! The sides need not agree: a peer that can't read compressed messages gets plain ones. Nothing is decompressed that would be
//! longer than [`Limits::max_message`].
//!
#![cfg_attr(all(feature = "tcp", feature = "zstd", feature = "lz4"), doc = "```")]
#![cfg_attr(not(all(feature = "tcp", feature = "zstd", feature = "lz4")), doc = "```ignore")]
//! use farcall::{Channel, Compression, Context, Server};
//!
//! #[farcall::service]
//! trait Wiki {
//!     async fn translate(&self, cx: &Context, text: String) -> farcall::Result<String>;
//! }
//!
//! struct Translators;
//!
//! impl Wiki for Translators {
//!     async fn translate(&self, cx: &Context, text: String) -> farcall::Result<String> {
//!         assert_eq!(cx.compression(), Compression::Zstd);
//!         cx.compress(Compression::Lz4)?;
//!         Ok(text.to_uppercase())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().add(WikiServer::new(Translators)).bind("127.0.0.1:0").await?;
//! # let address = format!("farcall://{}", server.local_addr());
//! # tokio::spawn(server.serve());
//! let channel = Channel::builder().compress(Compression::Zstd).connect(&address).await?;
//! let wiki = WikiClient::new(&channel);
//! let response = wiki.translate("so long ".repeat(1000)).with_response().await?;
//! assert_eq!(response.compression, Compression::Lz4);
//! # Ok(())
//! # }
//! ```
//!
//! # Coming from gRPC
//!
//! The kinds of methods, the codes, their details and the rules for metadata are gRPC's, so a service can be moved with
//! its protobuf messages ([`Prost`]); `tests/interop` has gRPC's own test service and its cases. The protocol is
//! another one, and a client of gRPC can't call a server of this. Other differences:
//!
//! | gRPC | here |
//! |---|---|
//! | `OK` is a code | it is `Ok`; a [`Code`] is always an error's |
//! | a cancelled call gives its client CANCELLED | it is a future: who drops it, or the [`Streaming`] that it gave, gets nothing more |
//! | `ctx.Done()`; the handler goes on | its future is dropped; what it has spawned asks [`Context::ended`] |
//! | half-close | the end of the client's stream: of a [`channel`](stream::channel), when the last sender is dropped |
//! | header of a unary call, readable before its answer | [`Response::metadata`], with the answer; that of a [stream](Streaming::metadata) when it begins |
//! | `UnaryCall` on the wire | the method's name in Rust, unless `#[rpc(name = "UnaryCall")]` says otherwise |
//! | a client compresses message by message | call by call; a server may choose for each item ([`Context::compress`]) |
//! | whatever is asked to be is compressed | not below 1 KiB, and not what would not become shorter ([`Compression`]) |
//! | messages of 4 MiB, metadata of 8 KiB | 64 MiB and 16 KiB, and the sender looks before it sends: [`Limits`] |
//! | `MAX_CONCURRENT_STREAMS` | [`Limits::concurrent_calls`]; more calls wait, and their deadlines count |
//! | `GracefulStop`, GOAWAY | [`Handle::drain`]; calls that had not begun go to the next server of the [`Address`], or end UNAVAILABLE |
//! | transparent retries | what was certainly not executed is sent again |
//! | service config: `retryPolicy`, `hedgingPolicy`, `retryThrottling` | [`Retry`], whose budget differs from `retryThrottling` as it says |
//! | `pick_first`, `round_robin`, ring hash, outlier detection, subsetting | [`Balance`] |
//! | service config: `healthCheckConfig` | [`Balance::health_service`], which holds back no call: servers get calls until they have answered, and where all say that they do not serve |
//! | keepalive pings | while calls wait: [`Liveness`]; an idle connection has TCP's |
//! | a panic in a handler | INTERNAL; the process and the connection stay |
//!
//! # Features
//!
//! - `tcp`, `rdma` (both default): the transports. `rdma` needs nothing at build time and loads libibverbs when it
//!   runs, if it is there.
//! - `zstd`, `lz4`: [compression](#compression). To build `zstd` a C compiler is needed; `lz4` is Rust, without `unsafe`.
//! - `tls`: encryption and authentication ([`tls`]), with the crypto provider that the program installs in rustls. `tls-ring`
//!   brings one; to build it a C compiler is needed.
//! - `toml` (default): [`Config::from_toml`], and settings in an [`Address`].
//! - `prost` (default): the codec [`Prost`], and [`details`] of statuses.
//! - `metrics`: counts of calls, of bytes and of what RDMA does, through the `metrics` facade (`farcall::metrics`).
//! - `systemd`: sockets that systemd has opened, and what it is told of a server (`farcall::systemd`).
//! - `dns`: servers by DNS: SRV records of services, and names that are looked up again when their answers expire ([`ResolveBy::Dns`]).
//! - `tower`: layers of tower around channels, services and servers ([`middleware`]).
//! - `testing`: the in-memory transport and the suite that every transport passes, for who writes one.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
#[cfg(feature = "tcp")]
pub mod admin;
pub mod auth;
mod buf;
mod channel;
pub mod codec;
mod config;
pub mod explain;
pub mod health;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod middleware;
pub mod reflection;
#[cfg(feature = "tcp")]
mod server;
pub mod stream;
#[cfg(feature = "systemd")]
pub mod systemd;
pub mod trace;

pub use address::Address;
pub use buf::{Buf, buf};
pub use bytes::Bytes;
pub use channel::{Channel, EndpointChange, in_process};
#[cfg(feature = "tcp")]
pub use channel::{ChannelBuilder, Endpoint};
pub use config::{Config, ConfigError, ConfigErrorKind, ServerConfig};
pub use farcall_core::admission::AdmissionStats;
pub use farcall_core::bulk;
pub use farcall_core::call_error::CallError;
pub use farcall_core::class::{ByClass, TrafficClass};
pub use farcall_core::client::{
    Call, EndpointState, Parts, PartsFuture, RawChannel, Readiness, Response, ResponseFuture, StreamCall,
};
#[cfg(feature = "prost")]
pub use farcall_core::codec::Prost;
pub use farcall_core::codec::{Codec, EncodedOnce, Postcard, Raw, attachment};
pub use farcall_core::compress::Compression;
pub use farcall_core::config::{
    Admission, Balance, BalancePolicy, Calls, Limits, Liveness, MethodPolicy, Policy, Priority, ResolveBy,
    Retry,
};
pub use farcall_core::connection::{Connection, Traffic, Transport};
pub use farcall_core::context::{Context, Scope};
#[cfg(feature = "prost")]
pub use farcall_core::details;
pub use farcall_core::memory::PeerMemory;
pub use farcall_core::metadata::{Metadata, MetadataError, MetadataValue};
pub use farcall_core::region;
pub use farcall_core::status::{Blame, Code, Executed, RETRY_AFTER, Result, Status};
pub use farcall_core::stream::{EndReason, Stream, Streaming};
pub use farcall_core::transport::{Counters, Identity, PeerProcess, Reason, Unavailable};
pub use farcall_macros::service;
#[cfg(feature = "rdma")]
pub use farcall_rdma::RdmaConfig;
#[cfg(feature = "tcp")]
pub use farcall_tcp::{Listener, TcpConfig};
#[cfg(feature = "tcp")]
pub use server::{BindError, Handle, Server, ServerBuilder, ServerStats, StopSignals};

#[doc(hidden)]
pub use farcall_core::__private;

/// Calls of services that a program learns of when it runs.
pub mod dynamic {
    pub use farcall_core::dynamic::{
        Answer, Answers, Client, Failed, Kind, Method, Payload, ServiceInfo, Whole,
    };
}

/// How TCP waits.
#[cfg(feature = "tcp")]
pub mod tcp {
    pub use farcall_tcp::{Completion, TcpConfig};
}

/// Encryption and authentication by TLS.
///
/// The configuration's section `[tls]`, a [`TlsConfig`](tls::TlsConfig), names files for servers and clients.
/// [`TlsServer`](tls::TlsServer) and [`TlsClient`](tls::TlsClient) are built from such files or from configurations of rustls, and can
/// be replaced while servers and channels run. [`Context::identity`] says who a caller is.
#[cfg(feature = "tls")]
pub mod tls {
    pub use farcall_tcp::tls::{ClientAuth, TlsClient, TlsConfig, TlsError, TlsServer, rustls};
}

/// RDMA on this machine: its devices, and the work that they have done.
#[cfg(feature = "rdma")]
pub mod rdma {
    pub use farcall_rdma::{
        Completion, DeviceStats, MappedWords, Plaintext, Probe, RdmaConfig, Unavailable, probe, stats,
    };
}

/// The in-memory transport, the suite that every transport passes, and peers that a test plays frame by frame.
#[cfg(feature = "testing")]
pub mod testing {
    pub use farcall_core::testing::{End, Event, Peer, conformance, hello, request};
    pub use farcall_core::transport::memory;
}

/// The README and the guide, whose examples are compiled as tests.
#[cfg(all(doctest, feature = "tcp"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/GUIDE.md")]
struct Readme;
