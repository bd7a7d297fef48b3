//! Tokens of channels and calls, and what servers make of them.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farcall::auth::{Token, Tokens, verify};
use farcall::middleware::ServiceExt;
use farcall::{Channel, Code, Context, Executed, Status};

#[derive(Clone)]
struct User(String);

#[farcall::service]
trait Desk {
    async fn whoami(&self, cx: &Context) -> farcall::Result<String>;
}

#[derive(Clone, Default)]
struct Office {
    runs: Arc<AtomicU32>,
}

impl Desk for Office {
    async fn whoami(&self, cx: &Context) -> farcall::Result<String> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        assert_eq!(cx.metadata().get("authorization"), None, "a handler sees no token");
        Ok(cx.extension::<User>().unwrap().0.clone())
    }
}

/// A server that takes the tokens from `least` on, and names the user after them.
fn channel(office: &Office, least: &Arc<AtomicU32>) -> Channel {
    let least = least.clone();
    let check = verify(move |token| {
        let least = least.load(Ordering::Relaxed);
        async move {
            match token.parse::<u32>() {
                Ok(number) if number >= least => Ok(User(token)),
                Ok(_) => Err(Status::unauthenticated("it is too old")),
                Err(_) => Err(Status::permission_denied("not this one")),
            }
        }
    });
    farcall::in_process(DeskServer::new(office.clone()).intercept(check))
}

/// Tokens with the numbers 0, 1, 2, as they are fetched.
fn numbered() -> Tokens {
    let next = AtomicU32::new(0);
    Tokens::new(move || {
        let token = Token::new(next.fetch_add(1, Ordering::Relaxed).to_string());
        async { Ok(token) }
    })
}

#[tokio::test]
async fn calls_have_the_channels_token_or_their_own() {
    let (office, least) = (Office::default(), Arc::default());
    let channel = channel(&office, &least);
    let desk = DeskClient::new(channel.intercept(numbered().interceptor()));
    assert_eq!(desk.whoami().await.unwrap(), "0");
    assert_eq!(desk.whoami().await.unwrap(), "0");
    assert_eq!(desk.whoami().metadata("authorization", "Bearer 77").await.unwrap(), "77");
    let runs = office.runs.load(Ordering::Relaxed);
    let nobody = DeskClient::new(&channel);
    for (value, code) in [
        (None, Code::Unauthenticated),
        (Some("Basic 77"), Code::Unauthenticated),
        (Some("Bearer x"), Code::PermissionDenied),
    ] {
        let call = nobody.whoami();
        let call = value.map_or_else(|| nobody.whoami(), |value| call.metadata("authorization", value));
        let refused = call.await.unwrap_err();
        assert_eq!((refused.code(), refused.executed()), (code, Executed::No), "{refused}");
    }
    assert_eq!(office.runs.load(Ordering::Relaxed), runs);
}

#[tokio::test]
async fn a_token_that_is_refused_is_replaced_and_the_call_made_again() {
    let (office, least) = (Office::default(), Arc::<AtomicU32>::default());
    let desk = DeskClient::new(channel(&office, &least).intercept(numbered().interceptor()));
    assert_eq!(desk.whoami().await.unwrap(), "0");
    least.store(1, Ordering::Relaxed);
    assert_eq!(desk.whoami().await.unwrap(), "1");
    // A new token that is refused, too, is not tried again and again.
    least.store(100, Ordering::Relaxed);
    let refused = desk.whoami().await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unauthenticated, "it is too old"));
    assert_eq!(office.runs.load(Ordering::Relaxed), 2);
    least.store(0, Ordering::Relaxed);
    assert_eq!(desk.whoami().await.unwrap(), "2");
}

/// Tokens whose `fetch` takes 100 ms and is counted. `valid` says which of them succeed. They are good for 10 s.
fn slow(valid: fn(u32) -> bool) -> (Tokens, Arc<AtomicU32>) {
    let fetched = Arc::new(AtomicU32::new(0));
    let count = fetched.clone();
    let tokens = Tokens::new(move || {
        let number = count.fetch_add(1, Ordering::Relaxed);
        async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let token = Token::new(number.to_string()).valid_for(Duration::from_secs(10));
            if valid(number) { Ok(token) } else { Err(Status::unavailable("the issuer is away")) }
        }
    });
    (tokens, fetched)
}

#[tokio::test(start_paused = true)]
async fn a_fetch_goes_on_when_the_calls_that_wait_for_it_are_given_up() {
    let (office, least) = (Office::default(), Arc::default());
    let (tokens, fetched) = slow(|_| true);
    let desk = DeskClient::new(channel(&office, &least).intercept(tokens.interceptor()));
    for _ in 0..5 {
        let late = desk.whoami().timeout(Duration::from_millis(10)).await.unwrap_err();
        assert_eq!((late.code(), late.executed()), (Code::DeadlineExceeded, Executed::No));
    }
    assert_eq!(desk.whoami().timeout(Duration::from_millis(90)).await.unwrap(), "0");
    assert_eq!(fetched.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_hangs_or_panics_does_not_hold_the_next_one_up() {
    let (office, least) = (Office::default(), Arc::default());
    let fetched = AtomicU32::new(0);
    let tokens = Tokens::new(move || {
        let number = fetched.fetch_add(1, Ordering::Relaxed);
        async move {
            match number {
                0 => std::future::pending().await,
                1..=2 => panic!("as it was told to"),
                _ => Ok(Token::new(number.to_string())),
            }
        }
    });
    let desk = DeskClient::new(channel(&office, &least).intercept(tokens.interceptor()));
    let late = desk.whoami().timeout(Duration::from_secs(10)).await.unwrap_err();
    assert_eq!((late.code(), late.executed()), (Code::DeadlineExceeded, Executed::No));
    let hung = desk.whoami().await.unwrap_err();
    assert_eq!((hung.code(), hung.executed()), (Code::Unavailable, Executed::No), "{hung}");
    let panicked = desk.whoami().await.unwrap_err();
    assert_eq!((panicked.code(), panicked.executed()), (Code::Internal, Executed::No), "{panicked}");
    assert_eq!(desk.whoami().await.unwrap(), "3");
}

#[tokio::test(start_paused = true)]
async fn an_issuer_that_is_away_is_asked_once_a_second() {
    let (office, least) = (Office::default(), Arc::default());
    let (tokens, fetched) = slow(|number| number == 0);
    let desk = DeskClient::new(channel(&office, &least).intercept(tokens.interceptor()));
    desk.whoami().await.unwrap();
    tokio::time::sleep(Duration::from_secs(8)).await;
    for _ in 0..150 {
        assert_eq!(desk.whoami().await.unwrap(), "0");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(fetched.load(Ordering::Relaxed), 1 + 2);
}

#[tokio::test]
async fn a_token_that_can_not_be_fetched_fails_the_call_before_it_is_sent() {
    let (office, least) = (Office::default(), Arc::default());
    let tokens = Tokens::new(|| async { Err(Status::unavailable("the issuer is away")) });
    let desk = DeskClient::new(channel(&office, &least).intercept(tokens.interceptor()));
    let error = desk.whoami().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No), "{error}");
    assert!(error.message().contains("the issuer is away"), "{error}");
    let unfit = Tokens::new(|| async { Ok(Token::new("two\nlines")) });
    let desk = DeskClient::new(channel(&office, &least).intercept(unfit.interceptor()));
    let error = desk.whoami().await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Internal, Executed::No));
    assert!(!error.to_string().contains("lines"), "{error}");
    assert_eq!(office.runs.load(Ordering::Relaxed), 0);
}
