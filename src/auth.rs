//! Tokens: credentials that go with each call, in the metadata `authorization: Bearer TOKEN` (RFC 6750).
//!
//! A client has [`Tokens`], which are fetched when they are needed and again before they expire. A server [verifies](verify) each
//! call's token, and handlers see what the verifier has found. Tokens are secrets: use TLS, or a network that nobody else
//! reads. The example `tokens` signs tokens and checks them.
//!
//! ```
//! use std::time::Duration;
//! use farcall::auth::{Token, Tokens, verify};
//! use farcall::{Context, Status};
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
//! # use farcall::middleware::ServiceExt;
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! // The server: what a token stands for.
//! let check = verify(|token| async move {
//!     match &*token {
//!         "ann's" => Ok(User("ann".into())),
//!         _ => Err(Status::unauthenticated("nobody has this token")),
//!     }
//! });
//! let channel = farcall::in_process(DeskServer::new(Office).intercept(check));
//!
//! // The client: where tokens come from.
//! let tokens = Tokens::new(|| async { Ok(Token::new("ann's").valid_for(Duration::from_secs(3600))) });
//! let desk = DeskClient::new(channel.intercept(tokens.interceptor()));
//! assert_eq!(desk.whoami().await?, "ann");
//! # Ok::<(), Status>(()) }).unwrap();
//! ```
//!
//! A single call has its own token by `.metadata("authorization", "Bearer ..")`, which goes before the channel's.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farcall_core::middleware::{Next, Request, Response};
use farcall_core::status::{Code, Executed, Status};
use farcall_core::transport::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;

/// The metadata key of tokens.
const KEY: &str = "authorization";

/// The prefix of a token in the metadata value.
const SCHEME: &str = "Bearer ";

/// The share of a token's time after which it is fetched again, ahead of its end.
const FRESH: f64 = 0.8;

/// The pause between two attempts to replace a token that has not expired.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest time that a fetch may take. The next call that needs a token begins another one then.
const LONGEST_FETCH: Duration = Duration::from_secs(30);

/// How often a call waits for a token whose fetch ends without a result.
const ATTEMPTS: usize = 2;

/// A credential, and how long it may be used. `Debug` does not show it.
#[derive(Clone)]
pub struct Token {
    text: Arc<str>,
    valid_for: Option<Duration>,
}

impl Token {
    /// Returns a token that does not expire. Its text must be what metadata can have: visible ASCII.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into(), valid_for: None }
    }

    /// Limits the token's time. It counts from when the token was fetched.
    #[must_use]
    pub fn valid_for(mut self, time: Duration) -> Self {
        self.valid_for = Some(time);
        self
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("valid_for", &self.valid_for).finish_non_exhaustive()
    }
}

/// The tokens of a channel. Cheap to clone; clones share them.
///
/// The first call fetches a token, and further calls wait for that. When four fifths of a token's time are over, the next one is
/// fetched in the background; if that fails, again after a second. A server that refuses a token with UNAUTHENTICATED has another
/// one fetched at once, and a call without streams is then made once more.
///
/// `fetch` runs in a task of its own. It goes on when the calls that wait for it are given up, for 30 seconds at most.
#[derive(Clone)]
pub struct Tokens(Arc<Shared>);

struct Shared {
    fetch: Box<dyn Fn() -> BoxFuture<Result<Token, Status>> + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<Fetched>,
    /// The fetch that is under way. There is one at a time, in a task: calls that are given up do not end it.
    fetching: Option<Fetching>,
    /// The time before which a token that still counts is not fetched again, because that has failed.
    not_before: Option<Instant>,
}

struct Fetched {
    token: Token,
    at: Instant,
}

/// The result of a fetch. Closed when its task has ended, also by a panic.
type Fetching = watch::Receiver<Option<Result<Token, Status>>>;

impl Fetched {
    /// Returns which share of its time is over.
    fn age(&self) -> f64 {
        let valid_for = self.token.valid_for.map(|time| time.as_secs_f64());
        valid_for.map_or(0.0, |time| self.at.elapsed().as_secs_f64() / time.max(f64::MIN_POSITIVE))
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

impl Tokens {
    /// Returns tokens that `fetch` gets. Its error is the error of the calls that wait for the token, not executed.
    pub fn new<F, R>(fetch: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<Token, Status>> + Send + 'static,
    {
        let fetch = Box::new(move || Box::pin(fetch()) as BoxFuture<_>);
        Self(Arc::new(Shared { fetch, state: Mutex::default() }))
    }

    /// Returns an interceptor for channels, which gives each call the token that counts then.
    pub fn interceptor(
        &self,
    ) -> impl Fn(Request, Next) -> BoxFuture<Result<Response, Status>> + Send + Sync + 'static {
        let tokens = self.clone();
        move |request, next| {
            let tokens = tokens.clone();
            Box::pin(async move { tokens.run(request, next).await })
        }
    }

    async fn run(&self, mut request: Request, next: Next) -> Result<Response, Status> {
        if request.metadata().get(KEY).is_some() {
            return next.run(request).await;
        }
        let (token, is_new) = self.get().await?;
        let again = request.try_clone();
        put(&mut request, &token)?;
        let refused = match next.run(request).await {
            Err(status) if status.code() == Code::Unauthenticated => status,
            answer => return answer,
        };
        self.forget(&token);
        match again {
            Some(mut again) if !is_new && refused.executed() == Executed::No => {
                put(&mut again, &self.get().await?.0)?;
                next.run(again).await
            }
            _ => Err(refused),
        }
    }

    /// Returns a token, and whether it was fetched for this.
    async fn get(&self) -> Result<(Token, bool), Status> {
        for _ in 0..ATTEMPTS {
            let mut fetching = {
                let mut state = self.state();
                if let Some(token) = state.token() {
                    if state.is_due() {
                        self.fetch(&mut state);
                    }
                    return Ok((token, false));
                }
                state.fetching().unwrap_or_else(|| self.fetch(&mut state))
            };
            if let Ok(fetched) = fetching.wait_for(Option::is_some).await
                && let Some(fetched) = fetched.clone()
            {
                return Ok((fetched.map_err(|status| status.with_executed(Executed::No))?, true));
            }
            // The task has ended without a result: its runtime has, or `fetch` has panicked.
        }
        Err(Status::internal("the function that fetches tokens has panicked").with_executed(Executed::No))
    }

    /// Begins to fetch a token.
    fn fetch(&self, state: &mut State) -> Fetching {
        let (tell, fetching) = watch::channel(None);
        let this = self.clone();
        tokio::spawn(async move {
            let fetched = tokio::time::timeout(LONGEST_FETCH, (this.0.fetch)()).await;
            let fetched = fetched.unwrap_or_else(|_| {
                Err(Status::unavailable(format!("no token was fetched within {LONGEST_FETCH:?}")))
            });
            this.state().note(&fetched);
            tell.send_replace(Some(fetched));
        });
        state.fetching = Some(fetching.clone());
        fetching
    }

    /// Forgets a token that was refused, unless there is another by now.
    fn forget(&self, refused: &Token) {
        let current = &mut self.state().current;
        if current.as_ref().is_some_and(|fetched| Arc::ptr_eq(&fetched.token.text, &refused.text)) {
            *current = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the token, if it has not expired.
    fn token(&self) -> Option<Token> {
        let fetched = self.current.as_ref().filter(|fetched| fetched.age() < 1.0)?;
        Some(fetched.token.clone())
    }

    /// Returns the fetch that is under way.
    fn fetching(&self) -> Option<Fetching> {
        // An error if it is closed.
        self.fetching.clone().filter(|fetching| fetching.has_changed().is_ok())
    }

    /// Takes what was fetched.
    fn note(&mut self, fetched: &Result<Token, Status>) {
        self.fetching = None;
        match fetched {
            Ok(token) => {
                self.current = Some(Fetched { token: token.clone(), at: Instant::now() });
                self.not_before = None;
            }
            Err(status) => {
                if self.current.is_some() {
                    tracing::warn!(%status, "a token can't be fetched; the one before is used until it expires");
                }
                self.not_before = Some(Instant::now() + PAUSE);
            }
        }
    }

    /// Whether the token should be fetched again, while it still counts.
    fn is_due(&self) -> bool {
        self.fetching().is_none()
            && self.current.as_ref().is_some_and(|fetched| fetched.age() >= FRESH)
            && self.not_before.is_none_or(|time| time <= Instant::now())
    }
}

fn put(request: &mut Request, token: &Token) -> Result<(), Status> {
    let value = format!("{SCHEME}{}", token.text);
    // The error's text might have the token.
    let unfit =
        |_| Status::internal("the token can't be sent: it must be visible ASCII").with_executed(Executed::No);
    request.metadata_mut().insert(KEY, value).map_err(unfit)
}

/// Returns an interceptor for servers that passes on the calls whose token `verifier` accepts. Handlers find what it returns by
/// `cx.extension()`; they do not see the token. A call without a token ends UNAUTHENTICATED; another error is the verifier's. No
/// handler runs in either case.
pub fn verify<F, R, T>(
    verifier: F,
) -> impl Fn(Request, Next) -> BoxFuture<Result<Response, Status>> + Send + Sync + 'static
where
    F: Fn(String) -> R + Send + Sync + 'static,
    R: Future<Output = Result<T, Status>> + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    let verifier = Arc::new(verifier);
    move |mut request, next| {
        let verifier = verifier.clone();
        Box::pin(async move {
            let token = request.metadata().get(KEY).and_then(|value| value.strip_prefix(SCHEME));
            let Some(token) = token.map(str::to_owned) else {
                let status = Status::unauthenticated(format!("{} needs a token", request.path()));
                return Err(status.with_executed(Executed::No));
            };
            let found = verifier(token).await.map_err(|status| status.with_executed(Executed::No))?;
            request.metadata_mut().remove(KEY);
            request.extensions_mut().insert(found);
            next.run(request).await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Tokens that are numbered as they are fetched, each for ten seconds, and take a second to fetch.
    fn numbered() -> (Tokens, Arc<AtomicU32>) {
        let fetched = Arc::new(AtomicU32::new(0));
        let count = fetched.clone();
        let tokens = Tokens::new(move || {
            let n = count.fetch_add(1, Ordering::Relaxed);
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(Token::new(n.to_string()).valid_for(Duration::from_secs(10)))
            }
        });
        (tokens, fetched)
    }

    async fn text(tokens: &Tokens) -> String {
        tokens.get().await.unwrap().0.text.to_string()
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_fetched_once_for_all_and_renewed_ahead() {
        let (tokens, fetched) = numbered();
        let (one, two) = tokio::join!(text(&tokens), text(&tokens));
        assert_eq!((&*one, &*two, fetched.load(Ordering::Relaxed)), ("0", "0", 1));
        tokio::time::sleep(Duration::from_secs(8)).await;
        // Nobody waits for the next one.
        let before = Instant::now();
        assert_eq!(text(&tokens).await, "0");
        assert_eq!(text(&tokens).await, "0");
        assert_eq!(before.elapsed(), Duration::ZERO);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(text(&tokens).await, "1");
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!((&*text(&tokens).await, fetched.load(Ordering::Relaxed)), ("2", 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_was_refused_is_fetched_again() {
        let (tokens, _) = numbered();
        let (old, is_new) = tokens.get().await.unwrap();
        assert!(is_new);
        tokens.forget(&old);
        assert_eq!(text(&tokens).await, "1");
        // A late refusal of the old one does not take the new one away.
        tokens.forget(&old);
        assert_eq!(text(&tokens).await, "1");
    }

    #[test]
    fn a_fetch_ends_with_its_runtime() {
        let fetched = AtomicU32::new(0);
        let tokens = Tokens::new(move || {
            let number = fetched.fetch_add(1, Ordering::Relaxed);
            async move {
                match number {
                    0 => std::future::pending().await,
                    _ => Ok(Token::new(number.to_string())),
                }
            }
        });
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let first = runtime();
        first.block_on(async {
            tokio::time::timeout(Duration::from_millis(1), tokens.get()).await.unwrap_err();
        });
        drop(first);
        assert_eq!(runtime().block_on(text(&tokens)), "1");
    }

    #[test]
    fn a_token_is_not_shown() {
        assert!(!format!("{:?}", Token::new("secret")).contains("secret"));
    }
}
