//! The context of a call that a handler answers, which the handler's own calls inherit.

mod current;
mod draining;
mod ended;
mod grant;
mod shared;
mod signal;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use self::current::Current;
pub use self::current::Scope;
pub(crate) use self::draining::{ConnectionContext, Drain};
pub(crate) use self::ended::{Parent, parent_ended};
pub(crate) use self::grant::{current_turn, open_grant};
pub(crate) use self::shared::{SetForAnswer, Shared};
use self::signal::Signal;
use crate::access::Accesses;
use crate::compress::{Choice, Compression};
use crate::extensions::Extensions;
use crate::metadata::{AnswerMetadata, Metadata};
use crate::status::{Blame, Status};
use crate::transport::Identity;

/// One call, seen from its handler: its deadline, caller, attempt number, metadata and reply metadata.
///
/// While a handler is polled, its context is *current*: calls that it makes inherit the deadline, and are dropped with
/// it. A task that the handler spawns has no current context. [`scope`](Self::scope) gives it one, and
/// [`Call::context`](crate::client::Call::context) gives one to a single call.
///
/// A context is cheap to clone. Its clones share what is set for the answer.
///
/// ```
/// use std::time::Duration;
/// # mod farcall { pub use farcall_core::context::Context; }
/// use farcall::Context;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let cx = Context::background().with_timeout(Duration::from_secs(5));
/// let task = tokio::spawn(cx.scope(async {
///     // A call made here has five seconds at most.
///     Context::current().and_then(|cx| cx.remaining())
/// }));
/// assert!(task.await.unwrap().unwrap() <= Duration::from_secs(5));
/// assert!(Context::current().is_none());
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Context {
    call: About,
    /// State that the calls of the connection share. `None` outside of calls, and until the context is [given](Self::given) to
    /// a handler.
    connection: Option<Arc<ConnectionContext>>,
    /// State that clones share. It is allocated when first needed, because most calls never use it.
    shared: Option<Arc<Shared>>,
}

/// The part of a context that every call has.
#[derive(Clone, Copy, Debug)]
struct About {
    /// The number of the call on its connection; 0 outside of calls.
    number: u64,
    deadline: Option<Instant>,
    attempt: u8,
    peer: Option<SocketAddr>,
    /// Whether this is the context of a [`Scope`], whose work may outlive the handler.
    scoped: bool,
}

impl Context {
    /// Returns a context without deadline and peer, for code outside of handlers.
    pub fn background() -> Self {
        Self::new(0, None, 1, None, None)
    }

    pub(crate) fn new(
        number: u64,
        deadline: Option<Instant>,
        attempt: u8,
        peer: Option<SocketAddr>,
        shared: Option<Arc<Shared>>,
    ) -> Self {
        Self { call: About { number, deadline, attempt, peer, scoped: false }, connection: None, shared }
    }

    /// Returns this context with a deadline `timeout` from now, unless it has an earlier one.
    #[must_use = "the context stays as it is; use the one that is returned"]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        let deadline = earlier(self.call.deadline, Instant::now().checked_add(timeout));
        Self { call: About { deadline, ..self.call }, ..self.clone() }
    }

    /// Returns the accesses to memory of the caller.
    pub(crate) fn accesses(&self) -> Weak<Accesses> {
        self.connection.as_ref().map_or_else(Weak::new, |connection| connection.accesses.clone())
    }

    /// Returns the time at which the caller stops waiting. The handler is dropped then.
    pub fn deadline(&self) -> Option<Instant> {
        self.call.deadline
    }

    /// Returns how long the caller still waits. `None` means for ever.
    pub fn remaining(&self) -> Option<Duration> {
        self.call.deadline.map(|d| d.saturating_duration_since(Instant::now()))
    }

    /// Returns 1 for the first attempt of a call, and more if the caller repeated it.
    pub fn attempt(&self) -> u8 {
        self.call.attempt
    }

    /// Returns the caller's address. `None` in process.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.call.peer
    }

    /// Returns who the caller is: by its certificate on an encrypted connection, or by its process on a Unix-domain socket.
    ///
    /// ```
    /// # use farcall_core::context::Context;
    /// # use farcall_core::status::{Result, Status};
    /// fn only_shop(cx: &Context) -> Result<()> {
    ///     match cx.identity().and_then(|identity| identity.spiffe_id()) {
    ///         Some("spiffe://example.org/shop") => Ok(()),
    ///         other => Err(Status::permission_denied(format!("{other:?} is not the shop"))),
    ///     }
    /// }
    /// assert!(only_shop(&Context::background()).is_err());
    /// ```
    pub fn identity(&self) -> Option<&Identity> {
        self.connection.as_ref()?.identity.get().map(|identity| &**identity)
    }

    /// Returns the metadata that the caller has sent beside the arguments.
    pub fn metadata(&self) -> &Metadata {
        static NONE: Metadata = Metadata::new();
        self.shared.as_ref().map_or(&NONE, |shared| &shared.metadata)
    }

    /// Edits the initial metadata, which are sent before the result. Returns what `edit` returns. `edit` must not use
    /// this context. An error answer carries these metadata, too, unless the handler panics or its time is over.
    ///
    /// If the answer is a stream, metadata set before the end of its first poll are sent before the first item. The
    /// stream itself can set them. Metadata that are set later are sent with the end.
    ///
    /// A key or value that is no valid metadata is a [`MetadataError`](crate::metadata::MetadataError). A handler whose error type
    /// is not `From` it returns it by `.map_err(Status::from)?`.
    ///
    /// Metadata have no effect once the handler is done, or in a context of no call. If they exceed the client's
    /// `limits.max_metadata`, RESOURCE_EXHAUSTED replaces the answer.
    ///
    /// ```
    /// # use farcall_core::context::Context;
    /// # use farcall_core::metadata::MetadataError;
    /// # fn handler(cx: &Context) -> Result<(), MetadataError> {
    /// cx.reply_metadata(|metadata| metadata.insert("served-by", "node-7"))?;
    /// cx.reply_trailers(|trailers| trailers.insert("rows-read", "5000"))?;
    /// # Ok(())
    /// # }
    /// # handler(&Context::background()).unwrap();
    /// ```
    pub fn reply_metadata<R>(&self, edit: impl FnOnce(&mut Metadata) -> R) -> R {
        self.edit_answer(|answer| edit(&mut answer.initial))
    }

    /// Edits the trailing metadata, which are sent after the result.
    pub fn reply_trailers<R>(&self, edit: impl FnOnce(&mut Metadata) -> R) -> R {
        self.edit_answer(|answer| edit(&mut answer.trailing))
    }

    fn edit_answer<R>(&self, edit: impl FnOnce(&mut AnswerMetadata) -> R) -> R {
        let mut answer = self.shared.as_ref().map(|shared| shared.answer());
        match answer.as_deref_mut().and_then(Option::as_mut) {
            Some(answer) => edit(answer),
            None => {
                tracing::debug!("metadata were set for an answer that has been made, or for that of no call");
                edit(&mut AnswerMetadata::default())
            }
        }
    }

    /// Sets how the answer is compressed, overriding the server's settings. See [`Compression`] for answers that are
    /// sent plain nevertheless. This has no effect in a context of no call.
    ///
    /// If the answer is a stream, this applies to the items that are taken from it from now on. To choose for each
    /// item, call it where the stream makes the item: in a `map`, or before a `send` of `generate`. A task that feeds a
    /// channel is too early, because it runs ahead of the items that are taken.
    ///
    /// ```
    /// # use farcall_core::compress::Compression;
    /// # use farcall_core::context::Context;
    /// # fn handler(cx: &Context) -> farcall_core::status::Result<()> {
    /// if cx.compression() != Compression::None {
    ///     cx.compress(cx.compression())?; // as the arguments came
    /// }
    /// # Ok(())
    /// # }
    /// # handler(&Context::background()).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// FAILED_PRECONDITION, if this server was built without that compression.
    pub fn compress(&self, by: Compression) -> Result<(), Status> {
        by.check().map_err(|status| status.with_blame(Blame::Application))?;
        if let Some(shared) = &self.shared {
            shared.choice.set(by);
        }
        Ok(())
    }

    /// Returns how the arguments were compressed on their way.
    pub fn compression(&self) -> Compression {
        self.shared.as_ref().map_or(Compression::None, |shared| shared.compression)
    }

    /// Copies the compression that was chosen in another context, if one was.
    pub(crate) fn choose_as(&self, other: &Self) {
        if let (Some(shared), Some(by)) = (&self.shared, other.choice()) {
            shared.choice.set(by);
        }
    }

    /// Returns the compression that was chosen for the answer, if any.
    pub(crate) fn choice(&self) -> Option<Compression> {
        self.shared.as_ref()?.choice.get()
    }

    /// Returns the value of this type that the server's middleware has added for the handler; see
    /// [`Request::extensions_mut`](crate::middleware::Request::extensions_mut).
    ///
    /// ```
    /// # use farcall_core::context::Context;
    /// #[derive(Clone)]
    /// struct User(String);
    ///
    /// # fn handler(cx: &Context) {
    /// let user = cx.extension::<User>().map(|user| user.0.as_str());
    /// # assert_eq!(user, None);
    /// # }
    /// # handler(&Context::background());
    /// ```
    pub fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<&T> {
        self.shared.as_ref()?.extensions.get()
    }

    pub(crate) fn extensions(&self) -> Extensions {
        self.shared.as_ref().map_or_else(Extensions::default, |shared| shared.extensions.clone())
    }

    /// Returns this context for a handler behind middleware, with the metadata, extensions and deadline that the
    /// middleware left. Reply metadata that are set already go with the handler's answer.
    pub(crate) fn behind(
        &self,
        metadata: Metadata,
        extensions: Extensions,
        deadline: Option<Instant>,
    ) -> Self {
        let set = self.take_answer();
        let answer = Mutex::new(Some(set));
        let (compression, choice) = (self.compression(), Choice::new(self.choice()));
        let ended = Signal::default();
        let shared = Shared { metadata, answer, extensions, compression, choice, ended };
        let (call, connection) = (About { deadline, ..self.call }, self.connection.clone());
        Self { call, connection, shared: Some(Arc::new(shared)) }
    }

    /// Takes the reply metadata that were set until now.
    pub(crate) fn take_answer(&self) -> AnswerMetadata {
        let mut answer = self.shared.as_ref().map(|shared| shared.answer());
        answer.as_deref_mut().and_then(Option::as_mut).map(std::mem::take).unwrap_or_default()
    }

    /// Takes what the handler of this context has set for its answer, if anything. Later settings have no effect.
    pub(crate) fn answered(&self) -> Option<Box<SetForAnswer>> {
        self.shared.as_ref()?.answered()
    }
}

/// Returns the earlier of two deadlines, or the shorter of two times. `None` is later than any.
pub(crate) fn earlier<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
