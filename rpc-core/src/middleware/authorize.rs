//! Authorisation of callers by who they are.

use std::sync::Arc;

use super::{Next, Request, Response};
use crate::refusal::refusal;
use crate::status::{Code, Status};
use crate::transport::{BoxFuture, Identity};

/// Returns an interceptor for servers that passes on the calls that `allows` permits, by the caller's identity and the path of
/// the method, as in `shop.v1.Kv/get`. The identity is that of a certificate, or of a process that calls by a Unix-domain socket.
/// Calls without an identity end UNAUTHENTICATED, others PERMISSION_DENIED, both not executed.
///
/// ```
/// # mod farcall { pub use farcall_core::middleware; }
/// use farcall::middleware::authorize;
///
/// let rules = authorize(|who, path| match path {
///     "shop.v1.Kv/put" => who.spiffe_id() == Some("spiffe://example.org/writer"),
///     _ => true,
/// });
/// # fn is_interceptor<F, R>(_: F)
/// # where F: Fn(farcall::middleware::Request, farcall::middleware::Next) -> R {}
/// # is_interceptor(rules);
/// // Server::builder().add(..).intercept(rules)
/// ```
pub fn authorize<F>(
    allows: F,
) -> impl Fn(Request, Next) -> BoxFuture<Result<Response, Status>> + Send + Sync + 'static
where
    F: Fn(&Identity, &str) -> bool + Send + Sync + 'static,
{
    let allows = Arc::new(allows);
    move |request, next| {
        let allows = allows.clone();
        Box::pin(async move {
            let path = request.path();
            let identity = request.context().and_then(|context| context.identity());
            let (code, message) = match identity {
                Some(identity) if allows(identity, &path) => return next.run(request).await,
                Some(identity) => {
                    (Code::PermissionDenied, format!("{} may not call {path}", identity.name()))
                }
                None => (Code::Unauthenticated, format!("{path} needs a caller with a certificate (TLS)")),
            };
            Err(refusal(code, message))
        })
    }
}
