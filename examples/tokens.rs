//! Signed tokens: an issuer signs who a user is and until when, a client fetches tokens and renews them, a server checks the
//! signature and does not ask anybody.
//!
//! Run it with `cargo run --example tokens`.

#![expect(clippy::print_stdout, reason = "it is what the example does")]

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farcall::auth::{Token, Tokens, verify};
use farcall::{Channel, Context, Server, Status};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

#[farcall::service]
trait Desk {
    async fn whoami(&self, cx: &Context) -> farcall::Result<String>;
}

struct Office;

impl Desk for Office {
    async fn whoami(&self, cx: &Context) -> farcall::Result<String> {
        let user = cx.extension::<User>().ok_or_else(|| Status::internal("nothing checks tokens"))?;
        Ok(user.0.clone())
    }
}

/// The user that a token stands for.
#[derive(Clone)]
struct User(String);

/// The key that issuer and server share. A real one comes from a secret store, and is not in the code.
struct Key(Vec<u8>);

impl Key {
    fn mac(&self, signed: &str) -> Hmac<Sha256> {
        // HMAC takes keys of any length (RFC 2104).
        let mut mac = Hmac::new_from_slice(&self.0).expect("any length");
        mac.update(signed.as_bytes());
        mac
    }

    /// Returns `USER.EXPIRY.SIGNATURE`, with the expiry in seconds since 1970.
    fn sign(&self, user: &str, expiry: Duration) -> String {
        let signed = format!("{user}.{}", expiry.as_secs());
        let signature: String =
            self.mac(&signed).finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{signed}.{signature}")
    }

    fn check(&self, token: &str) -> Result<User, Status> {
        let wrong = || Status::unauthenticated("the token is not one of ours");
        let (signed, signature) = token.rsplit_once('.').ok_or_else(wrong)?;
        let signature = from_hex(signature).ok_or_else(wrong)?;
        // Takes as long for every wrong signature.
        self.mac(signed).verify_slice(&signature).map_err(|_| wrong())?;
        let (user, expiry) = signed.rsplit_once('.').ok_or_else(wrong)?;
        let expiry = Duration::from_secs(expiry.parse().map_err(|_| wrong())?);
        if now() > expiry {
            return Err(Status::unauthenticated("the token has expired"));
        }
        Ok(User(user.to_owned()))
    }
}

/// Returns the bytes of a text in hexadecimal, if it is one from the first character to the last.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect();
    let (pairs, rest) = digits.as_deref()?.as_chunks();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// The time since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// How long a token is valid.
const VALID: Duration = Duration::from_secs(600);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let key = Arc::new(Key(b"a key for this example only".to_vec()));

    let checked_by = key.clone();
    let check = verify(move |token| {
        let key = checked_by.clone();
        async move { key.check(&token) }
    });
    let server = Server::builder().add(DeskServer::new(Office)).intercept(check).bind("127.0.0.1:0").await?;
    let address = format!("farcall://{}", server.local_addr());
    tokio::spawn(server.serve());

    // A real client asks an issuer, here or elsewhere, by any protocol.
    let issuer = key.clone();
    let tokens = Tokens::new(move || {
        let key = issuer.clone();
        async move { Ok(Token::new(key.sign("ann", now() + VALID)).valid_for(VALID)) }
    });
    let channel = Channel::connect(&address).await?;
    let desk = DeskClient::new(channel.intercept(tokens.interceptor()));
    println!("with a token: {}", desk.whoami().await?);

    let nobody = DeskClient::new(&channel);
    println!("without one: {}", nobody.whoami().await.expect_err("no token"));
    let valid = key.sign("ann", now() + VALID);
    for (what, token) in [
        ("a forged one", "eve.9999999999.00".to_owned()),
        ("one of another user", valid.replace("ann", "eve")),
        ("one that goes on", format!("{valid}zz")),
        ("one that has expired", key.sign("ann", now() - VALID)),
    ] {
        let refused = nobody.whoami().metadata("authorization", format!("Bearer {token}")).await;
        println!("with {what}: {}", refused.expect_err(what));
    }
    Ok(())
}
