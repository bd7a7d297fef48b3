//! Streams of generic traits, of other codecs, and among names that are in the way.

use farcall::{Blame, Bytes, Code, Executed, Result, Stream, Streaming, stream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{LogServer, Map, Torn, all, given, store};

#[farcall::service]
trait Feed<T>
where
    T: Serialize + DeserializeOwned + Send + 'static,
{
    fn all(&self) -> impl Stream<Item = Result<T>>;
    async fn count(&self, items: Streaming<T>) -> Result<u64>;
    async fn back(&self, items: Streaming<T>) -> Result<impl Stream<Item = Result<T>>>;
}

struct Copies<T>(T);

impl<T> Feed<T> for Copies<T>
where
    T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
{
    fn all(&self) -> impl Stream<Item = Result<T>> {
        stream::iter([Ok(self.0.clone()), Ok(self.0.clone())])
    }

    async fn count(&self, items: Streaming<T>) -> Result<u64> {
        let (items, error) = all(items).await;
        error.map_or(Ok(items.len() as u64), Err)
    }

    async fn back(&self, items: Streaming<T>) -> Result<impl Stream<Item = Result<T>>> {
        Ok(items)
    }
}

#[tokio::test]
async fn instances_of_a_generic_trait_stream() {
    let words = FeedClient::in_process("words", Copies("word".to_owned()));
    assert_eq!(all(words.all().await.unwrap()).await.0, ["word", "word"]);
    let two = || stream::iter(["a", "b"].map(String::from));
    assert_eq!(words.count(two()).await.unwrap(), 2);
    assert_eq!(all(words.back(two()).await.unwrap()).await.0, ["a", "b"]);

    let numbers = FeedClient::in_process("numbers", Copies(7_u8));
    assert_eq!(all(Feed::all(&numbers)).await.0, [7, 7]);
    assert_eq!(Feed::count(&numbers, given(stream::iter([1, 2, 3]))).await.unwrap(), 3);
}

/// The client's types are those of the aliases, whatever they are called.
#[tokio::test]
async fn items_of_aliases() {
    type Result<T> = std::result::Result<T, Torn>;
    type Pair<E, T> = std::result::Result<(T, T), E>;

    #[farcall::service]
    trait Aliases {
        fn one(&self) -> impl Stream<Item = Result<u8>>;
        fn pair(&self) -> impl Stream<Item = Pair<Torn, u8>>;
        async fn try_one(&self) -> Result<impl Stream<Item = Result<u8>>>;
    }

    struct Ones;

    impl Aliases for Ones {
        fn one(&self) -> impl Stream<Item = Result<u8>> {
            stream::iter([Ok(1), Err(Torn { at: 1 })])
        }

        fn pair(&self) -> impl Stream<Item = Pair<Torn, u8>> {
            stream::iter([Ok((1, 2)), Err(Torn { at: 2 })])
        }

        async fn try_one(&self) -> Result<impl Stream<Item = Result<u8>>> {
            Ok(self.one())
        }
    }

    let ones = AliasesClient::in_process(Ones);
    let mut one: Streaming<u8, Torn> = ones.one().await.unwrap();
    assert_eq!((one.message().await, one.message().await), (Ok(Some(1)), Err(Torn { at: 1 })));
    let mut pair: Streaming<(u8, u8), Torn> = ones.pair().await.unwrap();
    assert_eq!((pair.message().await, pair.message().await), (Ok(Some((1, 2))), Err(Torn { at: 2 })));
    let mut one: Streaming<u8, Torn> = ones.try_one().await.unwrap();
    assert_eq!(one.message().await, Ok(Some(1)));
}

/// The trait's own method can't refuse its stream, but the call that stands for it can fail.
#[tokio::test]
async fn a_refusal_is_the_first_item_where_a_stream_can_not_be_refused() {
    let server = FeedServer::named("words", Copies("word".to_owned()));
    let numbers = FeedClient::<u8>::named("numbers", farcall_core::in_process::in_process(server));
    let (items, error) = all(Feed::all(&numbers)).await;
    let error = error.unwrap();
    assert_eq!((items, error.code(), error.executed()), (vec![], Code::Unimplemented, Executed::No));
}

/// An item that the codec can't carry ends its stream, and says whose it is.
#[tokio::test]
async fn an_item_that_can_not_be_encoded_ends_its_stream() {
    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Holey {
        #[serde(skip_serializing_if = "Option::is_none")]
        hole: Option<u8>,
    }

    #[farcall::service]
    trait Holes {
        fn dig(&self) -> impl Stream<Item = Result<Holey>>;
        async fn fill(&self, holes: Streaming<Holey>) -> Result<u64>;
    }

    struct Digs;

    impl Holes for Digs {
        fn dig(&self) -> impl Stream<Item = Result<Holey>> {
            stream::iter([Ok(Holey { hole: Some(1) }), Ok(Holey::default())])
        }

        async fn fill(&self, holes: Streaming<Holey>) -> Result<u64> {
            let (holes, error) = all(holes).await;
            error.map_or(Ok(holes.len() as u64), Err)
        }
    }

    let holes = HolesClient::in_process(Digs);
    let (dug, error) = all(holes.dig().await.unwrap()).await;
    let error = error.unwrap();
    assert_eq!((dug.len(), error.blame(), error.executed()), (1, Blame::Application, Executed::Yes));
    assert!(error.message().starts_with("Holes/dig: an item of the stream can't be encoded: "), "{error}");

    let two = [Holey { hole: Some(1) }, Holey::default()];
    let error = holes.fill(stream::iter(two)).await.unwrap_err();
    assert_eq!((error.blame(), error.executed()), (Blame::Caller, Executed::Maybe));
    assert!(error.message().starts_with("Holes/fill: an item of the argument can't be encoded: "), "{error}");
}

/// A codec that carries one argument carries a stream besides.
#[tokio::test]
async fn items_of_other_codecs() {
    #[farcall::service(codec = farcall::Prost)]
    trait Words {
        fn split(&self, text: String) -> impl Stream<Item = Result<String>>;
        async fn join(&self, with: String, words: Streaming<String>) -> Result<String>;
        fn upper(&self, words: Streaming<String>) -> impl Stream<Item = Result<String>>;
    }

    #[farcall::service(codec = farcall::Raw)]
    trait Parts {
        async fn echo(&self, parts: Streaming<Bytes>) -> Result<impl Stream<Item = Result<Bytes>>>;
    }

    struct Both;

    impl Words for Both {
        fn split(&self, text: String) -> impl Stream<Item = Result<String>> {
            stream::iter(text.split(' ').map(|word| Ok(word.to_owned())).collect::<Vec<_>>())
        }

        async fn join(&self, with: String, words: Streaming<String>) -> Result<String> {
            let (words, error) = all(words).await;
            error.map_or(Ok(words.join(&with)), Err)
        }

        fn upper(&self, words: Streaming<String>) -> impl Stream<Item = Result<String>> {
            Map(words, |word: Result<String>| word.map(|word| word.to_uppercase()))
        }
    }

    impl Parts for Both {
        async fn echo(&self, parts: Streaming<Bytes>) -> Result<impl Stream<Item = Result<Bytes>>> {
            Ok(parts)
        }
    }

    let words = WordsClient::in_process(Both);
    assert_eq!(all(words.split("a b").await.unwrap()).await.0, ["a", "b"]);
    let two = || stream::iter(["a", "b"].map(String::from));
    assert_eq!(words.join("-", two()).await.unwrap(), "a-b");
    assert_eq!(all(words.upper(two()).await.unwrap()).await.0, ["A", "B"]);

    let parts = PartsClient::in_process(Both);
    let sent = [0, 1, 100_000, 1 << 20].map(|len| Bytes::from(vec![7; len]));
    assert_eq!(all(parts.echo(stream::iter(sent.clone())).await.unwrap()).await.0, sent);
}

#[test]
fn signatures_describe_the_streams() {
    use farcall_core::service::{Kind, Method, Service};

    let server = LogServer::new(store());
    let methods = &server.info().methods;
    let status = "Status { code: u8, blame: u8, executed: u8, message: string, details: bytes }";
    let error = format!("LogError[NoFile(string) | Call({status})]");
    let expected = [
        (Kind::ServerStreaming, "lines(prefix: string) -> stream<string | Status> | Status".to_owned()),
        (Kind::ServerStreaming, "tear(at: u64) -> stream<u64 | Torn { at: u64 }> | Torn { at: u64 }".into()),
        (
            Kind::ServerStreaming,
            format!("tail(file: string) -> stream<attachment | Torn {{ at: u64 }}> | {error}"),
        ),
        (Kind::ServerStreaming, "stored-numbers() -> stream<u64 | Status> | Status".into()),
        (Kind::ClientStreaming, format!("sum(start: u64, rows: stream<u64>) -> u64 | {error}")),
        (Kind::BidiStreaming, "double(rows: stream<u64>) -> stream<u64 | Status> | Status".into()),
        (
            Kind::BidiStreaming,
            // The stream comes last, wherever it stands among the arguments.
            format!("join(with: string, rows: stream<string>) -> stream<string | Status> | {error}"),
        ),
    ];
    for (method, expected) in methods.iter().zip(expected) {
        assert_eq!((method.kind, method.signature.clone()), expected);
    }
    let old = Method::unary("sum", format!("sum(rows: stream<u64>) -> u64 | {error}"));
    assert_eq!(methods[4].accepts, [old.fingerprint], "its first argument has a default");
}

/// Nothing that is generated depends on what is in scope, or is warned of.
mod hygiene {
    #![deny(warnings, missing_docs, missing_debug_implementations, unreachable_pub, unused_qualifications)]
    #![deny(clippy::all, clippy::pedantic)]
    #![expect(dead_code, reason = "they are here to be in the way")]

    struct Stream;
    struct Streaming;
    struct StreamCall;
    struct Items;
    struct Option;
    struct Some;
    struct None;
    struct Ok;
    struct Err;
    struct Send;

    type Result<T> = ::std::result::Result<T, farcall::Status>;

    mod core {}
    mod std {}

    /// Arguments with the names of generated variables.
    #[farcall::service]
    pub(super) trait Pipes {
        /// Takes everything.
        async fn sum(
            &self,
            arguments: u8,
            streams: farcall::Streaming<u8>,
            call: u8,
            request: u8,
        ) -> Result<u64>;
        /// A stream each way.
        fn back(
            &self,
            stream: farcall::Streaming<u8>,
            streams: u8,
            items: u8,
            served: u8,
        ) -> impl farcall::Stream<Item = Result<u8>>;
        /// A stream that may be refused.
        async fn tried(
            &self,
            cx: &farcall::Context,
            error: u8,
            method: u8,
            argument_0: farcall::Streaming<u8>,
            context: u8,
        ) -> Result<impl farcall::Stream<Item = Result<u8>>>;
    }

    /// An implementation.
    #[derive(Debug)]
    pub(super) struct Plain;

    impl Pipes for Plain {
        async fn sum(
            &self,
            arguments: u8,
            streams: farcall::Streaming<u8>,
            call: u8,
            request: u8,
        ) -> Result<u64> {
            let (items, _) = crate::all(streams).await;
            Result::Ok(items.into_iter().chain([arguments, call, request]).map(u64::from).sum())
        }

        fn back(
            &self,
            stream: farcall::Streaming<u8>,
            streams: u8,
            items: u8,
            served: u8,
        ) -> impl farcall::Stream<Item = Result<u8>> {
            crate::Map(stream, move |n: Result<u8>| n.map(|n| n + streams + items + served))
        }

        async fn tried(
            &self,
            _cx: &farcall::Context,
            error: u8,
            method: u8,
            argument_0: farcall::Streaming<u8>,
            context: u8,
        ) -> Result<impl farcall::Stream<Item = Result<u8>>> {
            Result::Ok(self.back(argument_0, error, method, context))
        }
    }
}

#[tokio::test]
async fn names_do_not_get_in_each_others_way() {
    let pipes = hygiene::PipesClient::in_process(hygiene::PipesClient::in_process(hygiene::Plain));
    let two = || stream::iter([1_u8, 2]);
    assert_eq!(pipes.sum(1, two(), 2, 3).await.unwrap(), 9);
    assert_eq!(all(pipes.back(two(), 1, 2, 3).await.unwrap()).await.0, [7, 8]);
    assert_eq!(all(pipes.tried(1, 2, two(), 3).await.unwrap()).await.0, [7, 8]);
}
