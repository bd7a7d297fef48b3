//! Typed calls over TCP, end to end.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use farcall::{
    Blame, Bytes, Channel, Code, Config, Context, Executed, Handle, Policy, Reason, Server, Status,
    TrafficClass,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

#[farcall::service(package = "test")]
trait Store {
    async fn put(&self, key: String, value: Bytes) -> farcall::Result<Bytes>;
    async fn get(&self, key: String, bytes: u32) -> farcall::Result<Option<Bytes>>;
    /// How long its caller still waits, in milliseconds.
    async fn patience(&self, cx: &Context) -> farcall::Result<Option<u64>>;
    async fn hang(&self) -> farcall::Result<()>;
}

#[farcall::service(package = "test")]
trait Relay {
    /// Returns the answer of `Store::patience` to a call made by the handler: plain, from a spawned task, from one that
    /// carries the context, and detached.
    async fn patience(&self, how: String) -> farcall::Result<Option<u64>>;
}

#[derive(Clone, Default)]
struct Shelf {
    /// Where the last value put began in memory.
    put_at: Arc<AtomicUsize>,
    started: Arc<Notify>,
    dropped: Arc<Notify>,
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Store for Shelf {
    async fn put(&self, key: String, value: Bytes) -> farcall::Result<Bytes> {
        assert_eq!(key, "key");
        self.put_at.store(value.as_ptr() as usize, Ordering::Relaxed);
        Ok(value)
    }

    async fn get(&self, key: String, bytes: u32) -> farcall::Result<Option<Bytes>> {
        Ok((key == "key").then(|| vec![7; bytes as usize].into()))
    }

    async fn patience(&self, cx: &Context) -> farcall::Result<Option<u64>> {
        Ok(cx.remaining().map(|d| d.as_millis() as u64))
    }

    async fn hang(&self) -> farcall::Result<()> {
        let _guard = NotifyOnDrop(self.dropped.clone());
        self.started.notify_one();
        pending().await
    }
}

struct Relayed(StoreClient);

impl Relay for Relayed {
    async fn patience(&self, how: String) -> farcall::Result<Option<u64>> {
        let call = self.0.patience();
        match how.as_str() {
            "plain" => call.await,
            "shorter" => call.timeout(Duration::from_secs(5)).await,
            "longer" => call.timeout(Duration::from_secs(5000)).await,
            "detached" => call.detached().await,
            "spawned" => tokio::spawn(call).await.unwrap(),
            "scoped" => {
                let cx = Context::current().unwrap();
                tokio::spawn(cx.scope(call)).await.unwrap()
            }
            _ => {
                let cx = Context::current().unwrap();
                tokio::spawn(async move { call.context(&cx).await }).await.unwrap()
            }
        }
    }
}

async fn serve(shelf: Shelf) -> (String, Handle) {
    let server = Server::builder().add(StoreServer::new(shelf)).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    let handle = server.handle();
    tokio::spawn(server.serve());
    (address, handle)
}

fn content(len: usize) -> Bytes {
    (0..len).map(|i| (i * 31) as u8).collect()
}

#[tokio::test]
async fn values_of_all_sizes_come_back() {
    let (address, _server) = serve(Shelf::default()).await;
    let store = StoreClient::new(Channel::connect(&address).await.unwrap());
    for len in [0, 1, 1000, 2048, 2049, 16_383, 16_384, 65_536, 131_000, 131_072, 200_000, 1 << 20, 9 << 20] {
        assert_eq!(store.put("key", content(len)).await.unwrap(), content(len), "{len} bytes");
    }
    assert_eq!(store.get("key", 5000).await.unwrap().unwrap(), vec![7; 5000]);
    assert_eq!(store.get("other", 5000).await.unwrap(), None);
}

#[tokio::test]
async fn a_large_value_is_not_copied_on_its_way_through() {
    let shelf = Shelf::default();
    let (address, server) = serve(shelf.clone()).await;
    let channel = Channel::connect(&address).await.unwrap();
    let store = StoreClient::new(&channel);
    const LEN: usize = 1 << 20;
    let value = content(LEN);
    let back = store.put("key", value.clone()).await.unwrap();
    assert_eq!(back, value);

    // The handler returned what it was given, and was given a view of what had been received: had there been a copy
    // in between, the server's answer would be at another place than what arrived.
    let at_handler = shelf.put_at.load(Ordering::Relaxed);
    assert_ne!(at_handler, value.as_ptr() as usize);
    // Both sides' counters: bytes copied from a receive buffer to where they belong. Only what was read together
    // with a header is: at most 4 KiB for each frame of 128 KiB.
    let most = (LEN / 16) as u64;
    let client = channel.connection().await.unwrap().traffic().stream;
    let server = server.connections()[0].traffic().stream;
    for (side, counters) in [("client", client), ("server", server)] {
        assert!(counters.bytes_received > LEN as u64, "{side}: {counters:?}");
        assert!(counters.bytes_copied < most, "{side}: {counters:?}");
    }
}

#[tokio::test]
async fn deadlines_are_inherited_where_they_should_be() {
    let (address, _store) = serve(Shelf::default()).await;
    let store = StoreClient::new(Channel::connect(&address).await.unwrap());
    let server = Server::builder()
        .add(RelayServer::new(Relayed(store.clone())))
        .add(StoreServer::new(Shelf::default()))
        .bind("127.0.0.1:0")
        .await
        .unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let channel = Channel::connect(&address).await.unwrap();
    // Two services on one channel.
    let relay = RelayClient::new(&channel);
    assert_eq!(StoreClient::new(&channel).patience().await.unwrap(), None);

    let minute = Duration::from_secs(60);
    for (how, within) in [
        ("plain", Some(6..=60)),
        ("shorter", Some(0..=5)),
        ("longer", Some(6..=60)),
        ("scoped", Some(6..=60)),
        ("given", Some(6..=60)),
        ("spawned", None),
        ("detached", None),
    ] {
        let left = relay.patience(how).timeout(minute).await.unwrap();
        match within {
            Some(seconds) => assert!(seconds.contains(&(left.unwrap() / 1000)), "{how}: {left:?}"),
            None => assert_eq!(left, None, "{how}"),
        }
    }
    assert!(Context::current().is_none());
}

#[tokio::test]
async fn a_dropped_call_drops_its_handler() {
    let shelf = Shelf::default();
    let (address, _server) = serve(shelf.clone()).await;
    let store = StoreClient::new(Channel::connect(&address).await.unwrap());
    let call = tokio::spawn({
        let store = store.clone();
        async move { store.hang().await }
    });
    shelf.started.notified().await;
    call.abort();
    shelf.dropped.notified().await;
}

#[tokio::test]
async fn a_deadline_passes_on_both_sides() {
    let shelf = Shelf::default();
    let (address, _server) = serve(shelf.clone()).await;
    let store = StoreClient::new(Channel::connect(&address).await.unwrap());
    let error = store.hang().timeout(Duration::from_millis(30)).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::DeadlineExceeded, Executed::Maybe));
    shelf.dropped.notified().await;
}

#[tokio::test]
async fn a_lost_server_is_found_again() {
    let (address, server) = serve(Shelf::default()).await;
    let store = StoreClient::new(Channel::connect(&address).await.unwrap());
    store.get("key", 1).await.unwrap();
    server.drain(Duration::from_secs(10)).await;
    let error = store.get("key", 1).await.unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No), "{error}");

    let again = Server::builder().add(StoreServer::new(Shelf::default()));
    let again = again.bind(address.trim_start_matches("tcp://")).await.unwrap();
    tokio::spawn(again.serve());
    // The pause after a failed attempt is the only thing to wait for.
    let found = async {
        while store.get("key", 1).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), found).await.expect("the channel must connect again");
}

#[tokio::test]
async fn a_drain_loses_no_call() {
    let (address, server) = serve(Shelf::default()).await;
    let channel = Channel::connect(&address).await.unwrap();
    let refused = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (store, refused) = (StoreClient::new(&channel), refused.clone());
            tokio::spawn(async move {
                loop {
                    match store.put("key", content(300)).await {
                        Ok(value) => assert_eq!(value, content(300)),
                        Err(error) => {
                            // The server is gone: but no call may have been cut off by that.
                            assert_eq!(error.executed(), Executed::No, "{error}");
                            refused.fetch_add(1, Ordering::Relaxed);
                            return;
                        }
                    }
                }
            })
        })
        .collect();
    StoreClient::new(&channel).get("key", 1).await.unwrap();
    server.drain(Duration::from_secs(30)).await;
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(refused.load(Ordering::Relaxed), 16);
}

/// Resolves when a long answer has begun to leave: when more has than a HELLO.
async fn answering(server: &Handle) {
    while server.connections().first().is_none_or(|c| c.traffic().stream.bytes_sent < 100_000) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_drain_delivers_a_long_answer() {
    const LEN: u32 = 60 << 20;
    let (address, server) = serve(Shelf::default()).await;
    let store = StoreClient::new(Channel::connect(&address).await.unwrap());
    let answer = tokio::spawn(async move { store.get("key", LEN).await });
    answering(&server).await;
    server.drain(Duration::from_secs(60)).await;
    assert_eq!(answer.await.unwrap().unwrap().unwrap().len(), LEN as usize);
    assert!(server.connections().is_empty());
}

/// Both ends are gone with their runtimes, and the answer is there all the same.
#[test]
fn answers_of_a_drained_server_survive_it() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (here, there) = (runtime(), runtime());
    let (address, server) = there.block_on(serve(Shelf::default()));
    let store = StoreClient::new(here.block_on(Channel::connect(&address)).unwrap());
    let answer = here.spawn(async move { store.get("key", 30 << 20).await });
    here.block_on(answering(&server));
    there.block_on(server.drain(Duration::from_secs(60)));
    drop(there);
    assert_eq!(here.block_on(answer).unwrap().unwrap().unwrap().len(), 30 << 20);
}

#[tokio::test]
async fn the_transport_says_what_it_is_and_why() {
    let (address, _server) = serve(Shelf::default()).await;
    let channel = Channel::connect(&address).await.unwrap();
    let transport = channel.transport().await.unwrap();
    assert_eq!(transport.name, "tcp");
    let why = transport.why_not_rdma.unwrap();
    #[cfg(feature = "rdma")]
    assert_eq!((why.reason, why.at_peer), (Reason::Disabled, false));
    #[cfg(not(feature = "rdma"))]
    assert_eq!(why.reason, Reason::UnsupportedPlatform);
}

#[tokio::test]
async fn a_server_that_requires_rdma_and_can_not_have_it_says_so_at_once() {
    let mut config = Config::default();
    config.transport = Some(Policy::Rdma);
    let server = Server::builder().add(StoreServer::new(Shelf::default())).config(config);
    // On a machine with a device it can.
    if let Err(error) = server.bind("127.0.0.1:0").await {
        assert!(error.to_string().contains("required and can't be had"), "{error}");
    }
}

#[tokio::test]
async fn of_several_servers_one_that_does_not_answer_is_passed_over() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, _server) = serve(Shelf::default()).await;
    let good = address.trim_start_matches("tcp://");
    let both = format!("tcp://{},{good}?liveness.connect_ms=300", silent.local_addr().unwrap());
    let store = StoreClient::new(Channel::connect(&both).await.unwrap());
    assert_eq!(store.get("key", 2).await.unwrap().unwrap(), vec![7; 2]);
}

async fn peer(channel: &Channel) -> String {
    channel.connection().await.unwrap().peer().unwrap().to_string()
}

#[tokio::test]
async fn of_several_servers_all_classes_go_to_the_same() {
    let servers = [serve(Shelf::default()).await, serve(Shelf::default()).await];
    let [one, other] = servers.each_ref().map(|(address, _)| address.trim_start_matches("tcp://"));
    let channel = Channel::connect_lazy(&format!("tcp://{one},{other}")).unwrap();
    for class in [TrafficClass::Bulk, TrafficClass::Normal, TrafficClass::Urgent] {
        assert_eq!(peer(&channel.class(class)).await, one);
    }
}

#[tokio::test]
async fn of_several_servers_a_class_goes_to_another_if_it_must() {
    let servers = [serve(Shelf::default()).await, serve(Shelf::default()).await];
    let [one, other] = servers.each_ref().map(|(address, _)| address.trim_start_matches("tcp://").to_owned());
    // The first is reached once.
    let door = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let channel = Channel::connect_lazy(&format!("tcp://{},{other}", door.local_addr().unwrap())).unwrap();
    tokio::spawn(async move {
        let (mut near, _) = door.accept().await.unwrap();
        drop(door);
        let mut far = TcpStream::connect(one).await.unwrap();
        // However it ends.
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    });
    assert_ne!(peer(&channel).await, other);
    assert_eq!(peer(&channel.class(TrafficClass::Urgent)).await, other);
}

/// A stranger at the port is told apart, and so is a stranger's port.
#[tokio::test]
async fn strangers_are_told_apart() {
    let (address, _server) = serve(Shelf::default()).await;
    let host = address.trim_start_matches("tcp://");
    let mut stranger = TcpStream::connect(host).await.unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // The server ends it.
    let _ = stranger.read_to_end(&mut answer).await;

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let _ = socket.read_to_end(&mut Vec::new()).await;
    });
    let error = Channel::connect(&address).await.unwrap_err();
    assert!(
        error.message().contains("does not speak farcall") && error.message().contains("HTTP/1.1"),
        "{error}"
    );
    assert_eq!(error.blame(), Blame::Peer);
}

#[tokio::test]
async fn a_server_that_closes_and_one_that_is_gone_are_told_apart() {
    let shelf = Shelf::default();
    let (address, server) = serve(shelf.clone()).await;
    // Between client and server, to be cut without a word.
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let there = format!("tcp://{}", between.local_addr().unwrap());
    let host = address.trim_start_matches("tcp://").to_owned();
    let wire = tokio::spawn(async move {
        let (mut near, _) = between.accept().await.unwrap();
        let mut far = TcpStream::connect(host).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    });
    let channel = Channel::connect(&there).await.unwrap();
    let hanging = tokio::spawn(StoreClient::new(channel).hang().into_future());
    shelf.started.notified().await;
    wire.abort();
    let gone = hanging.await.unwrap().unwrap_err();
    assert_eq!((gone.code(), gone.blame()), (Code::Unavailable, Blame::Peer), "{gone}");

    let channel = Channel::connect(&address).await.unwrap();
    let hanging = tokio::spawn(StoreClient::new(channel).hang().into_future());
    shelf.started.notified().await;
    server.close();
    let closed = hanging.await.unwrap().unwrap_err();
    assert_eq!((closed.code(), closed.blame()), (Code::Unavailable, Blame::Environment), "{closed}");
    // It names the server, and not the client as the server knows it.
    let words = closed.message();
    assert!(words.contains("closed by the peer, which says: the server was closed"), "{closed}");
    assert_eq!(words.matches("connection with ").count(), 1, "{closed}");
}

#[tokio::test]
async fn hostile_bytes_harm_nobody_else() {
    let (address, _server) = serve(Shelf::default()).await;
    let host = address.trim_start_matches("tcp://").to_owned();
    let store = StoreClient::new(Channel::connect(&address).await.unwrap());
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut byte = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 56) as u8
    };
    for round in 0..200 {
        let mut bytes: Vec<u8> = Vec::new();
        if round % 4 != 0 {
            bytes.extend_from_slice(b"farcall\n");
        }
        if round % 4 >= 2 {
            // A header of a HELLO that promises more than comes, or very much.
            bytes.extend_from_slice(&[0x40, 0, 0, 0]);
            bytes.extend_from_slice(&[byte(), byte(), byte() * u8::from(round % 8 == 2), 0]);
            bytes.extend_from_slice(&[0; 24]);
        }
        bytes.extend((0..usize::from(byte()) * 8).map(|_| byte()));
        let mut socket = TcpStream::connect(&host).await.unwrap();
        // The server may close before it has read all.
        let _ = socket.write_all(&bytes).await;
        let _ = socket.shutdown().await;
        let _ = socket.read_to_end(&mut Vec::new()).await;
        if round % 20 == 0 {
            assert_eq!(store.put("key", content(100)).await.unwrap(), content(100));
        }
    }
    assert_eq!(store.put("key", content(100)).await.unwrap(), content(100));
}

#[tokio::test]
async fn wrong_addresses_and_settings_are_errors_at_once() {
    for address in ["localhost:7400", "farcall://localhost", "tcp://localhost:1?nonsense=1"] {
        let error = Channel::connect(address).await.unwrap_err();
        assert_eq!((error.code(), error.blame()), (Code::InvalidArgument, Blame::Caller), "{error}");
    }
    for address in ["127.0.0.1", "farcall://127.0.0.1:0"] {
        let error = Server::builder().bind(address).await.unwrap_err().to_string();
        assert!(error.contains("write HOST:PORT, as in"), "{error}");
    }
    let twice = Server::builder().add(StoreServer::new(Shelf::default()));
    let twice = twice.add(StoreServer::new(Shelf::default())).bind("127.0.0.1:0").await;
    assert!(twice.unwrap_err().to_string().contains("`test.Store`"));
}

#[tokio::test]
async fn a_test_needs_no_network() {
    let store = StoreClient::in_process(Shelf::default());
    assert_eq!(store.get("key", 3).await.unwrap().unwrap(), vec![7; 3]);
    let refused: Result<Bytes, Status> = store.put("key", content(70 << 20)).await;
    assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
}

#[test]
fn outside_of_a_runtime_there_are_errors_and_no_panics() {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn at_once<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("it waits for a runtime that is not there"),
        }
    }

    let error = at_once(Channel::connect("tcp://127.0.0.1:1")).unwrap_err();
    assert!(error.message().contains("outside of a tokio runtime"), "{error}");
    let channel = Channel::connect_lazy("tcp://127.0.0.1:1").unwrap();
    let error = at_once(channel.connection()).unwrap_err();
    assert_eq!((error.code(), error.executed()), (Code::Unavailable, Executed::No));
    let error = at_once(Server::builder().bind("127.0.0.1:0")).unwrap_err();
    assert!(error.to_string().contains("within a tokio runtime"), "{error}");
}

#[tokio::test]
async fn a_server_tells_what_it_holds_for_whom() {
    let config = Config::from_toml("limits.memory = 100_000_000").unwrap();
    let shelf = Shelf::default();
    let started = shelf.started.clone();
    let server =
        Server::builder().add(StoreServer::new(shelf)).config(config).bind("127.0.0.1:0").await.unwrap();
    let handle = server.handle();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    assert_eq!((handle.stats().connections, handle.stats().memory_used), (0, 0));

    let store = StoreClient::new(Channel::connect(&address).await.unwrap());
    let call = tokio::spawn(async move { store.hang().await });
    started.notified().await;
    let stats = loop {
        // The handler is counted when its first poll has left it unfinished.
        tokio::task::yield_now().await;
        let stats = handle.stats();
        if stats.peers[0].arguments > 0 {
            break stats;
        }
    };
    assert_eq!((stats.connections, stats.peers.len()), (1, 1));
    let peer = &stats.peers[0];
    assert_eq!((peer.address, peer.connections), (Some([127, 0, 0, 1].into()), 1));
    assert!(peer.sessions > 0 && peer.total() <= stats.memory_used, "{stats:?}");
    assert!(stats.memory_used <= stats.memory_peak && stats.memory_peak < stats.memory_limit, "{stats:?}");
    assert_eq!(stats.memory_limit, 100_000_000);
    call.abort();
    while !handle.stats().peers.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(handle.stats().memory_used, 0);
}
