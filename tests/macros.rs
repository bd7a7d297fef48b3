//! Tests of the code that `#[farcall::service]` makes of a trait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farcall::{Blame, Bytes, Code, Context, Executed, Result, Status};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum KvError {
    TooLong { limit: u32 },
    Call(Status),
}

impl From<Status> for KvError {
    fn from(status: Status) -> Self {
        Self::Call(status)
    }
}

/// A key-value store.
#[farcall::service(package = "shop.v1")]
trait Kv {
    /// Looks a key up.
    #[rpc(idempotent)]
    async fn get(&self, key: String) -> std::result::Result<Option<Bytes>, KvError>;

    /// Stores a value, and says how long the caller waits for it.
    async fn put(&self, cx: &Context, key: String, value: Bytes) -> Result<Option<Duration>>;

    #[rpc(name = "scan-keys")]
    async fn scan(
        &self,
        prefix: Vec<u8>,
        range: (u32, u32),
        #[rpc(default)] limit: Option<u32>,
    ) -> Result<Vec<String>>;

    /// Has a body, which implementations need not repeat.
    async fn double(&self, n: u64) -> Result<u64> {
        if n == 0 {
            return Err(Status::new(Code::InvalidArgument, "zero"));
        }
        Ok(2 * n)
    }
}

#[derive(Default)]
struct Store {
    puts: AtomicU32,
}

impl Kv for Store {
    async fn get(&self, key: String) -> std::result::Result<Option<Bytes>, KvError> {
        match key.as_str() {
            "long" => Err(KvError::TooLong { limit: 3 }),
            "status" => Err(Status::new(Code::NotFound, "no such table").into()),
            "none" => Ok(None),
            key => Ok(Some(Bytes::from(key.to_uppercase()))),
        }
    }

    async fn put(&self, cx: &Context, _key: String, _value: Bytes) -> Result<Option<Duration>> {
        self.puts.fetch_add(1, Ordering::Relaxed);
        Ok(cx.remaining())
    }

    async fn scan(&self, prefix: Vec<u8>, range: (u32, u32), limit: Option<u32>) -> Result<Vec<String>> {
        let invalid = |e| Status::new(Code::InvalidArgument, format!("the prefix is not text: {e}"));
        let prefix = String::from_utf8(prefix).map_err(invalid)?;
        let keys = (range.0..range.1).map(|i| format!("{prefix}{i}"));
        Ok(keys.take(limit.map_or(usize::MAX, |l| l as usize)).collect())
    }
}

/// Code that does not know whether the store is here or elsewhere.
async fn first_key(kv: &impl Kv) -> Result<String> {
    let keys = kv.scan(b"k".to_vec(), (5, 9), Some(1)).await?;
    Ok(keys[0].clone())
}

#[tokio::test]
async fn calls_reach_the_implementation_and_its_answers_the_caller() {
    let kv = KvClient::in_process(Store::default());
    assert_eq!(kv.get("key").await.unwrap().unwrap(), "KEY");
    assert_eq!(kv.get("none").await, Ok(None));
    assert_eq!(kv.get(String::from("long")).await, Err(KvError::TooLong { limit: 3 }));
    assert_eq!(kv.scan(*b"k", (1, 3), None).await.unwrap(), ["k1", "k2"]);
    assert_eq!(kv.double(21).await.unwrap(), 42);
    assert_eq!(kv.double(0).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_call_can_be_spawned_and_joined_as_it_is() {
    let kv = KvClient::in_process(Store::default());
    let spawned = tokio::spawn(kv.double(4).timeout(Duration::from_secs(60)));
    let (one, two) = tokio::join!(kv.double(1), kv.double(2));
    assert_eq!((spawned.await.unwrap().unwrap(), one.unwrap(), two.unwrap()), (8, 2, 4));
}

#[tokio::test]
async fn an_error_type_that_holds_a_status_brings_it_unchanged() {
    let kv = KvClient::in_process(Store::default());
    let Err(KvError::Call(status)) = kv.get("status").await else { panic!("no status") };
    assert_eq!(status, Status::new(Code::NotFound, "no such table"));
}

#[tokio::test]
async fn the_context_is_the_calls() {
    let kv = KvClient::in_process(Store::default());
    assert_eq!(kv.put("k", "v").await.unwrap(), None);
    let waits = kv.put("k", "v").timeout(Duration::from_secs(60)).await.unwrap().unwrap();
    assert!(waits <= Duration::from_secs(60));

    // As an implementation of the trait, the client takes the context as an argument.
    let cx = Context::background().with_timeout(Duration::from_secs(30));
    let waits = Kv::put(&kv, &cx, "k".into(), "v".into()).await.unwrap().unwrap();
    assert!(waits <= Duration::from_secs(30));
}

#[tokio::test]
async fn a_client_is_an_implementation() {
    assert_eq!(first_key(&Store::default()).await.unwrap(), "k5");
    let kv = KvClient::in_process(Store::default());
    assert_eq!(first_key(&kv).await.unwrap(), "k5");
    // A proxy: a client served again.
    let twice = KvClient::in_process(kv);
    assert_eq!(first_key(&twice).await.unwrap(), "k5");
}

#[tokio::test]
async fn the_application_shares_an_implementation_with_the_server() {
    let store = Arc::new(Store::default());
    let server = KvServer::from_arc(store.clone());
    assert_eq!(format!("{server:?}"), "KvServer { service: \"shop.v1.Kv\", .. }");
    let kv = KvClient::new(farcall_core::in_process::in_process(server.clone()));
    kv.put("k", "v").await.unwrap();
    assert_eq!(store.puts.load(Ordering::Relaxed), 1);
}

/// Handlers that answer with the status of a call that they made must not have the caller's side repeat the call.
#[tokio::test]
async fn a_status_that_a_handler_passes_on_says_that_the_handler_ran() {
    #[farcall::service]
    trait Front {
        async fn ask(&self) -> Result<()>;
    }

    struct Passes(Arc<AtomicU32>);

    impl Front for Passes {
        async fn ask(&self) -> Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let elsewhere = Status::new(Code::Unavailable, "the store is away");
            Err(elsewhere.with_executed(Executed::No).with_blame(Blame::Environment))
        }
    }

    let asked = Arc::new(AtomicU32::new(0));
    let front = FrontClient::in_process(Passes(asked.clone()));
    let status = front.ask().await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::Unavailable, Executed::Yes));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[farcall::service]
trait Cache<K, V, const SIZE: usize>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    async fn fill(&self, key: K) -> Result<Vec<(K, V)>>;
    async fn size(&self) -> Result<usize>;
    /// Returns the caller's name for itself.
    async fn caller(&self, cx: &Context, key: K) -> Result<(K, Option<String>)>;
}

struct Filled<V>(V);

impl<K, V, const SIZE: usize> Cache<K, V, SIZE> for Filled<V>
where
    K: Serialize + DeserializeOwned + Send + Clone + 'static,
    V: Serialize + DeserializeOwned + Send + Sync + Clone + 'static,
{
    async fn fill(&self, key: K) -> Result<Vec<(K, V)>> {
        Ok(vec![(key, self.0.clone()); SIZE])
    }

    async fn size(&self) -> Result<usize> {
        Ok(SIZE)
    }

    async fn caller(&self, cx: &Context, key: K) -> Result<(K, Option<String>)> {
        cx.reply_trailers(|trailers| trailers.insert("size", SIZE.to_string()))?;
        Ok((key, cx.metadata().get("user").map(str::to_owned)))
    }
}

#[tokio::test]
async fn instances_of_a_generic_trait_have_names_of_their_own() {
    use farcall_core::service::Service;

    let numbers = CacheServer::<_, String, u64, 2>::named("cache.numbers", Filled(7_u64));
    let flags = CacheServer::<_, u8, bool, 3>::named("cache.flags", Filled(true));
    assert_eq!((&*numbers.info().name, &*flags.info().name), ("cache.numbers", "cache.flags"));
    assert_ne!(numbers.info().methods[0].fingerprint, flags.info().methods[0].fingerprint);

    let caller = farcall_core::in_process::in_process_with(
        vec![Arc::new(numbers), Arc::new(flags)],
        farcall::Limits::default(),
    );
    let numbers = CacheClient::<String, u64, 2>::named("cache.numbers", caller.clone());
    let flags = CacheClient::<u8, bool, 3>::named(String::from("cache.flags"), caller);
    assert_eq!(numbers.fill("k".to_owned()).await.unwrap(), [("k".to_owned(), 7), ("k".to_owned(), 7)]);
    assert_eq!(flags.fill(1).await.unwrap(), [(1, true); 3]);
    assert_eq!(flags.size().await.unwrap(), 3);
    let response = flags.caller(5).metadata("user", "ann").with_response().await.unwrap();
    assert_eq!((response.value, response.trailers.get("size")), ((5, Some("ann".to_owned())), Some("3")));

    let alone = CacheClient::<u8, u8, 1>::in_process("cache.alone", Filled(1_u8));
    assert_eq!(alone.fill(9).await.unwrap(), [(9, 1)]);
}

#[tokio::test]
async fn services_with_other_codecs() {
    #[farcall::service(codec = farcall::Prost)]
    trait Upper {
        async fn upper(&self, text: String) -> Result<String>;
        async fn nothing(&self) -> Result<()>;
    }

    /// Messages within its messages count as 1024 bytes.
    #[farcall::service(name = "Upper", codec = farcall::Prost<1024>)]
    trait Large {
        async fn upper(&self, text: String) -> Result<String>;
    }

    #[farcall::service(codec = farcall::Raw)]
    trait Echo {
        async fn echo(&self, bytes: Bytes) -> Result<Bytes>;
        async fn refuse(&self, bytes: Bytes) -> Result<()>;
    }

    struct Both;

    impl Upper for Both {
        async fn upper(&self, text: String) -> Result<String> {
            Ok(text.to_uppercase())
        }

        async fn nothing(&self) -> Result<()> {
            Ok(())
        }
    }

    impl Echo for Both {
        async fn echo(&self, bytes: Bytes) -> Result<Bytes> {
            Ok(bytes)
        }

        async fn refuse(&self, bytes: Bytes) -> Result<()> {
            Err(Status::new(Code::OutOfRange, "no").with_details(bytes))
        }
    }

    let large = LargeClient::new(farcall::in_process(UpperServer::new(Both)));
    assert_eq!(large.upper("peers need not agree".to_owned()).await.unwrap(), "PEERS NEED NOT AGREE");
    let upper = UpperClient::in_process(Both);
    assert_eq!(upper.upper("text").await.unwrap(), "TEXT");
    upper.nothing().await.unwrap();

    let echo = EchoClient::in_process(Both);
    let long = Bytes::from(vec![3; 100_000]);
    assert_eq!(echo.echo(long.clone()).await.unwrap(), long);
    let status = echo.refuse("details").await.unwrap_err();
    assert_eq!(status, Status::new(Code::OutOfRange, "no").with_details("details".into()));
}

#[test]
fn signatures_describe_the_methods() {
    use farcall_core::service::Service;

    let server = KvServer::new(Store::default());
    let info = server.info();
    assert_eq!((&*info.name, &*info.codec), ("shop.v1.Kv", "postcard"));
    let status = "Status { code: u8, blame: u8, executed: u8, message: string, details: bytes }";
    let idempotent: Vec<_> = info.methods.iter().map(|m| m.idempotent).collect();
    assert_eq!(idempotent, [true, false, false, false]);
    let signatures: Vec<_> = info.methods.iter().map(|m| m.signature.clone()).collect();
    assert_eq!(
        signatures,
        [
            format!(
                "get(key: string) -> option<attachment> | KvError[TooLong {{ limit: u32 }} | Call({status})]"
            ),
            "put(key: string, value: attachment) -> option<Duration { secs: u64, nanos: u32 }> | Status"
                .into(),
            "scan-keys(prefix: [u8], range: [u32; 2], limit: option<u32>) -> [string] | Status".into(),
            "double(n: u64) -> u64 | Status".into(),
        ]
    );
    let old =
        farcall_core::service::Method::unary("scan-keys", signatures[2].replace(", limit: option<u32>", ""));
    assert_eq!(info.methods[2].accepts, [old.fingerprint]);
    assert!(info.methods[2].understands(old.fingerprint));
    assert!(!info.methods[1].understands(old.fingerprint));
}

/// The context has no name of its own: another argument may be called `cx`.
#[tokio::test]
async fn the_context_and_an_argument_of_its_usual_name() {
    // As in a crate that knows farcall under another name.
    #[farcall::service(crate = "farcall_core")]
    trait Named {
        async fn attempt(&self, context: &Context, cx: String) -> Result<(String, u8)>;
    }

    struct Answers;

    impl Named for Answers {
        async fn attempt(&self, context: &Context, cx: String) -> Result<(String, u8)> {
            Ok((cx, context.attempt()))
        }
    }

    let named = NamedClient::in_process(Answers);
    assert_eq!(named.attempt("a").await.unwrap(), ("a".to_owned(), 1));
    let cx = Context::background();
    assert_eq!(Named::attempt(&named, &cx, "b".into()).await.unwrap(), ("b".to_owned(), 1));
}

/// Bytes that are no call of the method are refused without running the handler.
#[tokio::test]
async fn malformed_arguments_are_refused_by_name() {
    use farcall_core::payload::Payload;
    use farcall_core::service::{IncomingCall, Reply, Service};

    let server = KvServer::new(Store::default());
    let refused = async |method: usize, body: &'static [u8]| {
        let payload = Payload::from_body(Bytes::from_static(body));
        let request = IncomingCall { context: Context::background(), payload, streams: None };
        let Reply::Status(status) = server.call(method, request).await else {
            panic!("{method} was answered")
        };
        assert_eq!(
            (status.code(), status.blame(), status.executed()),
            (Code::Internal, Blame::Peer, Executed::No)
        );
        status.message().to_owned()
    };
    assert_eq!(
        refused(0, &[5, b'k']).await,
        "the argument `key` can't be decoded: the message ends inside a value; do both sides have the \
         same types?"
    );
    assert!(refused(1, &[1, b'k', 7]).await.starts_with("the argument `value` can't be decoded: "));
    assert!(refused(2, &[0, 1]).await.starts_with("the argument `range` can't be decoded: "));
    // The last argument has a default for those who do not send it, not for those who send it wrongly.
    assert!(refused(2, &[0, 1, 2, 7]).await.contains("the argument `limit` can't be decoded"));
    assert!(
        refused(3, &[1, 2]).await.contains("more than the arguments: the message has 1 bytes after its end")
    );
}

#[tokio::test]
async fn a_call_that_can_not_be_decoded_is_named_once() {
    #[derive(Debug, Deserialize)]
    struct Odd(#[expect(dead_code, reason = "it is never made")] bool);

    impl Serialize for Odd {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
            serializer.serialize_u8(7)
        }
    }

    #[farcall::service]
    trait Odds {
        async fn put(&self, odd: Odd) -> Result<()>;
        async fn get(&self) -> Result<Odd>;
    }

    struct Answers;

    impl Odds for Answers {
        async fn put(&self, _: Odd) -> Result<()> {
            Ok(())
        }

        async fn get(&self) -> Result<Odd> {
            Ok(Odd(true))
        }
    }

    let odds = OddsClient::in_process(Answers);
    let why = "can't be decoded: a bool is neither 0 nor 1; do both sides have the same types?";
    let status = odds.put(Odd(true)).await.unwrap_err();
    assert_eq!(status.message(), format!("Odds/put: the argument `odd` {why}"));
    let status = odds.get().await.unwrap_err();
    assert_eq!(status.message(), format!("Odds/get: the result {why}"));
}

/// A value that the codec can't carry fails the call, here or there, and nothing else.
#[tokio::test]
async fn a_value_that_can_not_be_encoded_is_refused_where_it_is() {
    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Holey {
        #[serde(skip_serializing_if = "Option::is_none")]
        hole: Option<u8>,
    }

    #[farcall::service]
    trait Holes {
        async fn put(&self, holey: Holey) -> Result<Option<u8>>;
        async fn get(&self) -> Result<Holey>;
    }

    struct Digs;

    impl Holes for Digs {
        async fn put(&self, holey: Holey) -> Result<Option<u8>> {
            Ok(holey.hole)
        }

        async fn get(&self) -> Result<Holey> {
            Ok(Holey::default())
        }
    }

    let holes = HolesClient::in_process(Digs);
    let status = holes.put(Holey::default()).await.unwrap_err();
    assert_eq!((status.blame(), status.executed()), (Blame::Caller, Executed::No), "{status}");
    assert!(status.message().starts_with("Holes/put: the argument `holey` can't be encoded: "), "{status}");
    let status = holes.get().await.unwrap_err();
    assert_eq!((status.blame(), status.executed()), (Blame::Application, Executed::Yes), "{status}");
    assert!(status.message().starts_with("Holes/get: the result can't be encoded: "), "{status}");
    assert_eq!(holes.put(Holey { hole: Some(1) }).await.unwrap(), Some(1));
}

/// Nothing that is generated depends on what is in scope, or is warned of.
mod hygiene {
    #![deny(warnings, missing_docs, missing_debug_implementations, unreachable_pub, unused_qualifications)]
    #![deny(clippy::all, clippy::pedantic)]
    #![expect(dead_code, reason = "they are here to be in the way")]
    #![expect(
        clippy::wrong_self_convention,
        clippy::too_many_arguments,
        reason = "of the trait's own making"
    )]

    struct Ok;
    struct Err;
    struct Some;
    struct Box;
    struct Arc;
    struct Send;
    struct Sync;
    struct Into;
    struct Future;
    struct String;
    struct Call;
    struct Context;
    struct Vec;

    type Result<T> = ::std::result::Result<T, farcall::Status>;

    mod core {}
    mod std {}

    /// A trait with the name of one of ours, and arguments with the names of generated variables.
    #[farcall::service]
    pub(super) trait Service {
        /// Takes everything.
        async fn sum(
            &self,
            self_: u8,
            args: u8,
            arguments: u8,
            argument_0: u8,
            request: u8,
            service: u8,
            info: u8,
            method: u8,
            incoming: u8,
            outcome: u8,
            value: u8,
            reply: u8,
            cx: u8,
            f: u8,
            r#type: u8,
        ) -> Result<u8>;
        /// Named like what is generated, or called by it.
        async fn call(&self) -> Result<u8>;
        /// A name of a method that the client has, too.
        async fn info(&self) -> Result<u8>;
        /// A name of a method that every type has.
        async fn clone(&self) -> Result<u8>;
        /// A name of a constructor of the client.
        async fn named(&self) -> Result<u8>;
        /// A name of a method of futures.
        async fn into_future(&self) -> Result<u8>;
        /// A name that is a keyword.
        async fn r#move(&self) -> Result<u8>;
    }

    /// An implementation.
    #[derive(Debug)]
    pub(super) struct One;

    impl Service for One {
        async fn sum(
            &self,
            self_: u8,
            args: u8,
            arguments: u8,
            argument_0: u8,
            request: u8,
            service: u8,
            info: u8,
            method: u8,
            incoming: u8,
            outcome: u8,
            value: u8,
            reply: u8,
            cx: u8,
            f: u8,
            r#type: u8,
        ) -> Result<u8> {
            let first = self_ + args + arguments + argument_0 + request + service + info + method;
            Result::Ok(first + incoming + outcome + value + reply + cx + f + r#type)
        }

        async fn call(&self) -> Result<u8> {
            Result::Ok(1)
        }

        async fn info(&self) -> Result<u8> {
            Result::Ok(2)
        }

        async fn clone(&self) -> Result<u8> {
            Result::Ok(3)
        }

        async fn named(&self) -> Result<u8> {
            Result::Ok(4)
        }

        async fn into_future(&self) -> Result<u8> {
            Result::Ok(5)
        }

        async fn r#move(&self) -> Result<u8> {
            Result::Ok(6)
        }
    }
}

#[tokio::test]
async fn names_do_not_get_in_each_others_way() {
    let client = hygiene::ServiceClient::in_process(hygiene::One);
    assert_eq!(client.sum(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2).await.unwrap(), 16);
    assert_eq!(client.call().await.unwrap(), 1);
    assert_eq!(client.info().await.unwrap(), 2);
    assert_eq!(client.clone().await.unwrap(), 3);
    assert_eq!(client.named().await.unwrap(), 4);
    assert_eq!(client.into_future().await.unwrap(), 5);
    assert_eq!(client.r#move().await.unwrap(), 6);
}
