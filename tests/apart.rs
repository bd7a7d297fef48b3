//! Long messages are decoded away from the threads that read connections: arguments, answers, errors and items, by every codec.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::Duration;

use farcall::{Channel, Code, Executed, Prost, Server, Status, Stream, Streaming, stream};
use prost::DecodeError;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType};
use serde::{Deserialize, Deserializer, Serialize};

/// The state of the decoder of [`Slow`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gate {
    Open,
    Shut,
    /// A decoder waits for it to open.
    WaitedFor,
}

static GATE: Mutex<Gate> = Mutex::new(Gate::Open);
static OPENED: Condvar = Condvar::new();

/// A test holds this while it uses the gate.
static TEST: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn set(gate: Gate) {
    *GATE.lock().unwrap_or_else(PoisonError::into_inner) = gate;
    OPENED.notify_all();
}

/// Waits while the gate is shut, with long bytes.
fn pass_gate(bytes: &[u8]) {
    let mut gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    if *gate == Gate::Open || bytes.len() < LONG as usize {
        return;
    }
    *gate = Gate::WaitedFor;
    let limit = Duration::from_secs(60);
    let (_gate, waited) = OPENED.wait_timeout_while(gate, limit, |gate| *gate != Gate::Open).unwrap();
    assert!(!waited.timed_out(), "nothing else ran while a message was decoded");
}

/// Bytes that take as long to decode as a test likes, by either codec.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Slow(Vec<u8>);

impl<'de> Deserialize<'de> for Slow {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(from)?;
        pass_gate(&bytes);
        Ok(Self(bytes))
    }
}

impl prost::Message for Slow {
    fn encode_raw(&self, to: &mut impl BufMut) {
        prost::encoding::bytes::encode(1, &self.0, to);
    }

    fn merge_field(
        &mut self,
        _: u32,
        kind: WireType,
        from: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        prost::encoding::bytes::merge(kind, &mut self.0, from, context)?;
        pass_gate(&self.0);
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        prost::encoding::bytes::encoded_len(1, &self.0)
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

impl From<Status> for Slow {
    fn from(status: Status) -> Self {
        Self(status.message().into())
    }
}

const LONG: u64 = 300 << 10;

/// A message that takes long to decode.
fn long() -> Slow {
    Slow(vec![7; LONG as usize])
}

#[farcall::service]
trait Store {
    async fn put(&self, value: Slow) -> farcall::Result<u64>;
    async fn get(&self) -> farcall::Result<Slow>;
    async fn refuse(&self) -> Result<(), Slow>;
    async fn put_all(&self, values: Streaming<Slow>) -> farcall::Result<u64>;
    fn get_all(&self) -> impl Stream<Item = farcall::Result<Slow>>;
    async fn ping(&self) -> farcall::Result<()>;
}

#[farcall::service(codec = Prost)]
trait Pages {
    async fn put(&self, value: Slow) -> farcall::Result<u64>;
    async fn get(&self) -> farcall::Result<Slow>;
    async fn put_all(&self, values: Streaming<Slow>) -> farcall::Result<u64>;
    fn get_all(&self) -> impl Stream<Item = farcall::Result<Slow>>;
}

struct Shelf;

async fn total(mut values: Streaming<Slow>) -> farcall::Result<u64> {
    let mut total = 0;
    while let Some(value) = values.message().await? {
        total += value.0.len() as u64;
    }
    Ok(total)
}

impl Store for Shelf {
    async fn put(&self, value: Slow) -> farcall::Result<u64> {
        Ok(value.0.len() as u64)
    }

    async fn get(&self) -> farcall::Result<Slow> {
        Ok(long())
    }

    async fn refuse(&self) -> Result<(), Slow> {
        Err(long())
    }

    async fn put_all(&self, values: Streaming<Slow>) -> farcall::Result<u64> {
        total(values).await
    }

    fn get_all(&self) -> impl Stream<Item = farcall::Result<Slow>> {
        stream::iter([Ok(long()), Ok(Slow(vec![1])), Ok(long())])
    }

    async fn ping(&self) -> farcall::Result<()> {
        Ok(())
    }
}

impl Pages for Shelf {
    async fn put(&self, value: Slow) -> farcall::Result<u64> {
        Ok(value.0.len() as u64)
    }

    async fn get(&self) -> farcall::Result<Slow> {
        Ok(long())
    }

    async fn put_all(&self, values: Streaming<Slow>) -> farcall::Result<u64> {
        total(values).await
    }

    fn get_all(&self) -> impl Stream<Item = farcall::Result<Slow>> {
        stream::iter([Ok(long()), Ok(Slow(vec![1])), Ok(long())])
    }
}

/// Clients of both services, by one connection, and the right to use the gate.
struct Rig {
    store: StoreClient,
    pages: PagesClient,
    _test: tokio::sync::MutexGuard<'static, ()>,
}

impl Rig {
    async fn new() -> Self {
        let test = TEST.lock().await;
        set(Gate::Open);
        let server = Server::builder().add(StoreServer::new(Shelf)).add(PagesServer::new(Shelf));
        let server = server.bind("127.0.0.1:0").await.unwrap();
        let address = format!("tcp://{}", server.local_addr());
        tokio::spawn(server.serve());
        let channel = Channel::connect(&address).await.unwrap();
        Self { store: StoreClient::new(&channel), pages: PagesClient::new(&channel), _test: test }
    }

    /// Makes a call with a long message. Others go on while that is decoded: by the connection that it came by, and on the only
    /// thread of the runtime.
    async fn others_go_on_during<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> T {
        set(Gate::Shut);
        let call = tokio::spawn(call);
        while *GATE.lock().unwrap() != Gate::WaitedFor {
            self.store.ping().await.unwrap();
        }
        self.store.ping().await.unwrap();
        assert!(!call.is_finished());
        set(Gate::Open);
        call.await.unwrap()
    }
}

async fn read_all(items: Streaming<Slow>) -> Vec<Slow> {
    let (mut items, mut all) = (items, Vec::new());
    while let Some(item) = items.message().await.unwrap() {
        all.push(item);
    }
    all
}

#[tokio::test]
async fn other_calls_go_on_while_long_arguments_are_decoded() {
    let rig = Rig::new().await;
    let (store, pages) = (rig.store.clone(), rig.pages.clone());
    assert_eq!(rig.others_go_on_during(async move { store.put(long()).await }).await.unwrap(), LONG);
    assert_eq!(rig.others_go_on_during(async move { pages.put(long()).await }).await.unwrap(), LONG);
}

#[tokio::test]
async fn other_calls_go_on_while_long_answers_are_decoded() {
    let rig = Rig::new().await;
    let (store, pages) = (rig.store.clone(), rig.pages.clone());
    assert_eq!(rig.others_go_on_during(async move { store.get().await }).await.unwrap(), long());
    assert_eq!(rig.others_go_on_during(async move { pages.get().await }).await.unwrap(), long());

    // However the answer is asked for, and if it is an error.
    let store = rig.store.clone();
    let answer = rig.others_go_on_during(async move { store.get().with_response().await }).await;
    assert_eq!(answer.unwrap().value, long());
    let store = rig.store.clone();
    let (answer, parts) = rig.others_go_on_during(async move { store.get().with_parts().await }).await;
    assert_eq!((answer.unwrap(), parts.attempts), (long(), 1));
    let store = rig.store.clone();
    let error = rig.others_go_on_during(async move { store.refuse().await }).await;
    assert_eq!(error.unwrap_err(), long());
    let store = rig.store.clone();
    let answer = rig.others_go_on_during(async move { Store::get(&store).await }).await;
    assert_eq!(answer.unwrap(), long());
}

#[tokio::test]
async fn other_calls_go_on_while_long_items_are_decoded() {
    let rig = Rig::new().await;
    let expected = vec![long(), Slow(vec![1]), long()];
    let (store, pages) = (rig.store.clone(), rig.pages.clone());
    let read = rig.others_go_on_during(async move { read_all(store.get_all().await.unwrap()).await }).await;
    assert_eq!(read, expected);
    let read = rig.others_go_on_during(async move { read_all(pages.get_all().await.unwrap()).await }).await;
    assert_eq!(read, expected);

    let (store, pages) = (rig.store.clone(), rig.pages.clone());
    let items = || stream::iter([Slow(vec![1]), long(), Slow(vec![1])]);
    let put = rig.others_go_on_during(async move { store.put_all(items()).await }).await;
    assert_eq!(put.unwrap(), LONG + 2);
    let put = rig.others_go_on_during(async move { pages.put_all(items()).await }).await;
    assert_eq!(put.unwrap(), LONG + 2);
}

#[tokio::test]
async fn a_deadline_ends_a_call_whose_answer_is_being_decoded() {
    let rig = Rig::new().await;
    rig.store.ping().await.unwrap();
    set(Gate::Shut);
    let error = rig.store.get().timeout(Duration::from_secs(2)).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::DeadlineExceeded, Executed::Maybe), "{error}");
    assert!(error.message().contains("still being decoded"), "{error}");

    // An item, too.
    let mut items = rig.store.get_all().timeout(Duration::from_secs(2)).await.unwrap();
    let error = items.message().await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    assert_eq!(items.message().await.unwrap(), None);
    set(Gate::Open);
    assert_eq!(rig.store.get().await.unwrap(), long());
}

/// A clock that is paused goes on when the runtime has nothing to do, which decoding is not.
#[tokio::test(start_paused = true)]
async fn no_paused_time_passes_while_a_message_is_decoded() {
    let _test = TEST.lock().await;
    set(Gate::Open);
    let store = StoreClient::in_process(Shelf);
    for _ in 0..20 {
        assert_eq!(store.put(long()).timeout(Duration::from_secs(1)).await.unwrap(), LONG);
        assert_eq!(store.get().timeout(Duration::from_secs(1)).await.unwrap(), long());
    }
}

#[test]
fn without_a_runtime_a_long_item_is_decoded_where_it_is_read() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (rig, items) = runtime.block_on(async {
        let rig = Rig::new().await;
        let items = rig.store.get_all().await.unwrap();
        (rig, items)
    });
    let read = block_on(read_all(items));
    assert_eq!(read.len(), 3);
    drop(rig);
}

/// Polls a future on this thread, which is none of a runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
