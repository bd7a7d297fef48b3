//! Interceptors and layers: what is done to many calls alike, on either side.
//!
//! An interceptor is an async function that gets the [`Request`] and what comes [`Next`]. It may change metadata, shorten the
//! time, refuse the call, and look at the [`Response`]; it sees streams begin and [end](Response::on_end), but not what calls
//! say: arguments and results are encoded above it. It goes around
//!
//! - a client: [`Channel::intercept`](crate::Channel::intercept) gives another channel, whose clients are of the same types, also in process;
//! - a service: `.add(KvServer::new(store).intercept(check))`, with [`ServiceExt`];
//! - a server: [`ServerBuilder::intercept`](crate::ServerBuilder::intercept), for all of its services.
//!
//! ```
//! use farcall::middleware::{Next, Request, Response, ServiceExt};
//! use farcall::{Code, Context, Status};
//!
//! #[derive(Clone)]
//! struct User(String);
//!
//! #[farcall::service]
//! trait Desk {
//!     async fn whoami(&self, cx: &Context) -> farcall::Result<String>;
//! }
//!
//! struct Office;
//!
//! impl Desk for Office {
//!     async fn whoami(&self, cx: &Context) -> farcall::Result<String> {
//!         Ok(cx.extension::<User>().map_or("nobody", |user| &user.0).to_owned())
//!     }
//! }
//!
//! async fn check_token(mut request: Request, next: Next) -> farcall::Result<Response> {
//!     let user = match request.metadata().get("token") {
//!         Some("let me in") => User("ann".into()),
//!         _ => return Err(Status::new(Code::Unauthenticated, "who are you?")),
//!     };
//!     request.extensions_mut().insert(user);
//!     next.run(request).await
//! }
//!
//! async fn with_token(mut request: Request, next: Next) -> farcall::Result<Response> {
//!     request.metadata_mut().insert("token", "let me in")?;
//!     next.run(request).await
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let channel = farcall::in_process(DeskServer::new(Office).intercept(check_token));
//! assert_eq!(DeskClient::new(channel.intercept(with_token)).whoami().await?, "ann");
//! assert_eq!(DeskClient::new(channel).whoami().await.unwrap_err().code(), Code::Unauthenticated);
//! # Ok::<(), Status>(()) }).unwrap();
//! ```
//!
//! The interceptor that is added last runs first on the way in and last on the way back. On a server, a panic in an interceptor ends
//! its call, like a panic of a handler. Calls without interceptors pay nothing; with some, each call costs an allocation or two.
//!
//! With the feature `tower`, layers of that crate go where interceptors do, by methods called `layer`; inside they have a
//! [`Next`], which is a `tower::Service`, as a channel is. For the order of a `tower::ServiceBuilder`, give the builder itself.

#[cfg(feature = "tower")]
pub use farcall_core::middleware::Middleware;
pub use farcall_core::middleware::{
    Compressed, Extensions, Layered, Next, Request, Response, ServiceExt, Spawned, StreamEnd, authorize,
};
pub use farcall_core::service::Kind;
