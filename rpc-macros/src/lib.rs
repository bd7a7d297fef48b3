//! The `#[service]` attribute of farcall. Applications use it as `#[farcall::service]`.
//!
//! The trait is parsed (`parse`), turned into a model of the service (`model`) while everything that is wrong with it
//! is collected (`check`), and the model is written out (`expand`). The generated code is thin: what does not depend on
//! the trait is in farcall-core's `__private` module, the only thing that generated code refers to.

mod check;
mod expand;
mod model;
mod parse;

use proc_macro::TokenStream;

/// Makes a typed server and client of a trait.
///
/// ```ignore
/// #[farcall::service(package = "shop.v1")]
/// pub trait Kv {
///     /// Looks a key up.
///     async fn get(&self, key: String) -> Result<Option<Bytes>, KvError>;
///     async fn put(&self, cx: &Context, key: String, value: Bytes) -> farcall::Result<()>;
///     /// Streams what changes.
///     fn watch(&self, prefix: String) -> impl Stream<Item = farcall::Result<Event>>;
///     /// Takes a stream of rows.
///     async fn load(&self, rows: Streaming<Row>) -> farcall::Result<u64>;
/// }
/// ```
///
/// # What it makes
///
/// - **The trait** itself, with the supertraits `Send + Sync + 'static` and methods whose futures are `Send`:
///   `fn get(&self, key: String) -> impl Future<Output = ..> + Send`. Implementations write `async fn get(..)`.
///   Methods may have a body, which is then the default. Streams are `Send`, too.
/// - **`KvServer<S>`**, made of an implementation with `new` or `from_arc`, to be added to a server.
/// - **`KvClient`**, made with `KvClient::new(channel)`. Its methods return a `Call`, or a `StreamCall` if there is a
///   stream: a future that takes options (`.timeout(..)`) before it is awaited, spawned or joined. The client implements `Kv`
///   too, so that code which is generic over `Kv` runs with an implementation in the same process or far away. Such code
///   takes `impl Kv`, has a type parameter, or takes a [`DynKv`](#one-type-for-all-implementations).
///   `KvClient::in_process(implementation)` calls an implementation without a network but through the whole protocol, for tests.
///
/// # Methods
///
/// `async`, with `&self`, then optionally `cx: &Context` (the call's deadline, attempt and caller), then any number of
/// arguments by value; they return `farcall::Result<T>`, or `Result<T, E>` with an error type of the application.
/// Arguments, `T` and `E` are what the codec carries: with the default, everything that derives serde's `Serialize` and
/// `Deserialize`. `E` also implements `From<farcall::Status>`, because any call can fail for reasons of farcall's own.
///
/// The client takes arguments of the types `String`, `Bytes` and `Vec<u8>` as `impl Into<..>`, so that `kv.get("key")`
/// works. `cx` is not among its arguments: the context of the handler that makes the call is inherited by itself.
///
/// - `#[rpc(name = "..")]` on a method or an argument is its name on the wire, if that is not its name in Rust.
/// - `#[rpc(default)]` on one or more of the last arguments: callers that were built before the argument existed are
///   still understood; the argument is then `Default::default()`.
/// - `#[rpc(idempotent)]` on a method that does no harm if it is executed more than once: channels may make a call again that has failed,
///   as their [`Retry`](https://docs.rs/farcall/latest/farcall/struct.Retry.html) says.
/// - `#[rpc(class = Bulk)]`, or `Urgent` or `Normal`: calls of the method go by the connection of this
///   [`TrafficClass`](https://docs.rs/farcall/latest/farcall/enum.TrafficClass.html), instead of the client's. For methods that move
///   much, which other calls of the same client should not wait behind. `class` of a single call counts more.
/// - `#[rpc(spawn)]` on a method whose handler computes: it begins in a task of its own, and does not hold up the connection that
///   its call came by.
///
/// # One type for all implementations
///
/// `Kv` makes no trait objects: the futures of its methods have no common size. `#[farcall::service(dyn)]` also makes the type
/// `DynKv`, of which `DynKv::new(store)` makes one of any `Kv`, its client included. A `DynKv` is a `Kv`, too. Each call of one
/// allocates a box.
///
/// ```ignore
/// #[farcall::service(dyn)]
/// trait Kv {
///     async fn get(&self, key: String) -> farcall::Result<u64>;
/// }
///
/// struct Fixed(u64);
///
/// impl Kv for Fixed {
///     async fn get(&self, _key: String) -> farcall::Result<u64> {
///         Ok(self.0)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> farcall::Result<()> {
/// let stores: Vec<DynKv> = vec![DynKv::new(Fixed(1)), DynKv::new(KvClient::in_process(Fixed(2)))];
/// assert_eq!(stores[0].get("key".into()).await?, 1);
/// assert_eq!(KvClient::in_process(stores[1].clone()).get("key").await?, 2);
/// # Ok(())
/// # }
/// ```
///
/// # Streams
///
/// | the trait's method | awaiting the client's gives |
/// |---|---|
/// | `fn watch(&self, ..) -> impl Stream<Item = Result<T, E>>;` | `Result<Streaming<T, E>, E>`, as soon as the stream begins |
/// | `async fn watch(&self, ..) -> Result<impl Stream<Item = Result<T, E1>>, E2>;` | `Result<Streaming<T, E1>, E2>`: the stream, or why it was refused |
/// | `async fn load(&self, rows: Streaming<R>, ..) -> Result<T, E>;` | `Result<T, E>` |
/// | `rows: Streaming<R>` in one of the first two | as there |
///
/// Implementations say `impl Stream`, too; the stream may borrow `&self` and `cx`. Where a type with a name is needed, trait and
/// implementations say `Streaming<T, E>` instead, which `Streaming::new` makes of any stream that borrows nothing. An item is a `Result`, for every stream can be
/// cut short: an `Err` is the last item. It may be an alias; one that is called `Result` has the `Ok` type as its first argument.
///
/// One argument may be a stream, `Streaming<R>`, beside others; the client takes any `impl Stream<Item = R> + Send +
/// 'static` for it. The implementation reads it with `rows.message().await?` or as a `Stream`, and may answer before it has
/// ended, which stops the client. Errors of it are a `farcall::Status`, and mean that the client has failed or is gone.
///
/// As an implementation of the trait, the client takes and gives the trait's own types. A `Streaming<R>` that it is given
/// and that fails cancels the call, so that a proxy does not take a short stream for a whole one. A stream that may not be
/// refused (the first form) begins with its first poll, and gives as its first item why it was refused nevertheless.
///
/// # Options
///
/// - `package = "shop.v1"`: what comes before the service's name on the wire.
/// - `name = "Kv"`: the service's name on the wire, if that is not the trait's.
/// - `codec = farcall::Prost`: the codec of all methods, a type; `farcall::Postcard` unless given. The module
///   `farcall::codec` compares those there are and shows how to write another.
/// - `crate = "path"`: where farcall is, if not at `::farcall`.
///
/// # Generic traits
///
/// The trait may be generic over types and constants. Each instance then is a service with a wire name of its own,
/// which is given where server and client are made:
///
/// ```ignore
/// #[farcall::service]
/// pub trait Cache<K, V>
/// where
///     K: Serialize + DeserializeOwned + Send + 'static,
///     V: Serialize + DeserializeOwned + Send + 'static,
/// {
///     async fn fill(&self, key: K, value: V) -> farcall::Result<()>;
/// }
///
/// let server = Server::builder().add(CacheServer::named("cache.users", Users::default()));
/// let client = CacheClient::<u64, User>::named("cache.users", &channel);
/// let alone = CacheClient::<u64, User>::in_process("cache.users", Users::default());
/// ```
///
/// A type parameter that travels needs what the codec asks of a type (`Serialize + DeserializeOwned` with the default,
/// `prost::Message + Default` with `Prost`), and `Send + 'static`, because the futures of the methods hold it. `package` and
/// `name` are not given, since the instances would share them. A generic *method* is refused: the other side could not
/// know which instances there are.
#[proc_macro_attribute]
pub fn service(options: TokenStream, item: TokenStream) -> TokenStream {
    let expanded = parse::options(options.into())
        .and_then(|options| check::service(options, parse::item(item.into())?))
        .map(|service| expand::service(&service));
    expanded.unwrap_or_else(|e| e.into_compile_error()).into()
}
