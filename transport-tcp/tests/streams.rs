//! Links by Unix-domain sockets and by streams of the application's.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use farcall_core::testing::conformance;
use farcall_core::transport::Link;
use farcall_tcp::{Acceptor, Listener, TcpConfig, TcpLink, connect, connect_by};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(10);

/// A folder for sockets, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("farcall-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> String {
        format!("unix:{}/s", self.0.display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn bind(listener: impl Into<Listener>) -> io::Result<Acceptor> {
    Acceptor::bind(listener, TcpConfig::default()).await
}

async fn dial(target: &str) -> Arc<TcpLink> {
    connect(target, &TcpConfig::default(), PATIENCE).await.unwrap()
}

async fn unix_pair() -> conformance::Pair {
    let folder = Folder::new();
    let acceptor = bind(folder.socket()).await.unwrap();
    let (near, far) = (dial(&folder.socket()).await, acceptor.accept().await);
    (near, far)
}

#[tokio::test]
async fn unix_sockets_conform() {
    conformance::check(unix_pair).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unix_sockets_conform_on_two_threads() {
    conformance::check(unix_pair).await;
}

/// A stream that keeps what is written until it is flushed, and takes and brings few bytes at a time.
struct Reluctant<S> {
    inner: S,
    kept: Vec<u8>,
}

impl<S: AsyncWrite + Unpin> Reluctant<S> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.kept.is_empty() {
            match Pin::new(&mut self.inner).poll_write(cx, &self.kept) {
                Poll::Ready(Ok(n)) => drop(self.kept.drain(..n)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Reluctant<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut few = [0; 1000];
        let mut few = ReadBuf::new(&mut few[..to.remaining().min(1000)]);
        let read = Pin::new(&mut self.inner).poll_read(cx, &mut few);
        to.put_slice(few.filled());
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Reluctant<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.kept.len() > 5000 {
            std::task::ready!(self.poll_send(cx))?;
        }
        let n = bytes.len().min(777);
        self.kept.extend_from_slice(&bytes[..n]);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_send(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

async fn over<S: AsyncRead + AsyncWrite + Send + 'static>(stream: S) -> Arc<dyn Link> {
    connect_by(async { Ok(stream) }, "the peer", &TcpConfig::default(), PATIENCE).await.unwrap()
}

async fn over_pair<S: AsyncRead + AsyncWrite + Send + 'static>((near, far): (S, S)) -> conformance::Pair {
    (over(near).await, over(far).await)
}

/// How much a stream holds, in bytes: more than all that is written at once, less than a frame, and less than a header.
const SIZES: [usize; 3] = [8 << 20, 5000, 20];

#[tokio::test]
async fn streams_of_the_application_conform() {
    for size in SIZES {
        conformance::check(|| async move { over_pair(tokio::io::duplex(size)).await }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_the_application_conform_on_two_threads() {
    conformance::check(async || over_pair(tokio::io::duplex(5000)).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_keep_what_is_written_conform() {
    let reluctant = |inner| Reluctant { inner, kept: Vec::new() };
    conformance::check(async || {
        let (near, far) = tokio::io::duplex(5000);
        over_pair((reluctant(near), reluctant(far))).await
    })
    .await;
}

/// A stream with nothing to read that asks to be polled again at once.
struct Restless;

impl AsyncRead for Restless {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl AsyncWrite for Restless {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_stream_that_is_always_worth_a_try_does_not_keep_the_thread() {
    let link = over(Restless).await;
    let end = farcall_core::testing::End::start(link);
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    end.link().abort();
}

#[tokio::test]
async fn listeners_and_connections_of_the_application_are_served() {
    let folder = Folder::new();
    let path = folder.0.join("own");
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap().to_string();
    let acceptor = bind(tcp).await.unwrap();
    assert_eq!(acceptor.local_addr().unwrap().to_string(), address);
    let (_near, far) = (dial(&address).await, acceptor.accept().await);
    assert!(far.description().peer.is_some());
    let acceptor = bind(UnixListener::bind(&path).unwrap()).await.unwrap();
    let (_near, far) = (dial(&format!("unix:{}", path.display())).await, acceptor.accept().await);
    assert_eq!(far.description().transport, "unix");
    drop(acceptor);
    assert!(path.exists(), "the application has made it");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, incoming) = mpsc::unbounded_channel();
    let acceptor = bind(Listener::incoming(Received(incoming))).await.unwrap();
    let _near = TcpStream::connect(address).await.unwrap();
    sender.send(Err(io::ErrorKind::ConnectionReset.into())).unwrap();
    sender.send(Ok(listener.accept().await.unwrap().0)).unwrap();
    let far = acceptor.accept().await;
    let description = far.description();
    assert!(description.transport == "tcp" && description.peer.is_some(), "{description:?}");
    drop(sender);
    let over = tokio::time::timeout(Duration::ZERO, acceptor.accept()).await;
    assert!(over.is_err(), "no more come");
}

/// The items of a tokio channel, as a stream.
struct Received<T>(mpsc::UnboundedReceiver<T>);

impl<T> farcall_core::stream::Stream for Received<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(cx)
    }
}

#[tokio::test]
async fn files_that_dead_servers_left_are_replaced_and_no_others() {
    let folder = Folder::new();
    let (address, path) = (folder.socket(), folder.0.join("s"));
    let first = bind(&address).await.unwrap();
    let error = bind(&address).await.unwrap_err();
    assert!(error.to_string().contains(&address) && error.kind() == io::ErrorKind::AddrInUse, "{error}");
    drop(dial(&address).await);
    drop(first);
    assert!(!path.exists());

    // As after kill -9: the listener is gone, and the file is not.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let second = bind(&address).await.unwrap();
    drop(dial(&address).await);
    std::fs::remove_file(&path).unwrap();
    let third = bind(&address).await.unwrap();
    drop(second);
    assert!(path.exists(), "the file of another server is left");
    drop(third);

    std::fs::write(&path, "data").unwrap();
    assert_eq!(bind(&address).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
}

#[tokio::test]
async fn the_permissions_of_a_socket_can_be_set() {
    let folder = Folder::new();
    for mode in [0o600, 0o660, 0o666] {
        let acceptor = bind(format!("{}?mode={mode:o}", folder.socket())).await.unwrap();
        let file = std::fs::metadata(folder.0.join("s")).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, mode);
        drop(acceptor);
    }
    for wrong in ["mode=999", "mode=7777", "mode=", "user=root", ""] {
        let error = bind(format!("{}?{wrong}", folder.socket())).await.unwrap_err();
        assert!(error.to_string().contains("permissions in octal"), "{error}");
    }
}

#[tokio::test]
async fn each_end_of_a_unix_socket_knows_the_others_process() {
    let (near, far) = unix_pair().await;
    let own = std::fs::metadata("/proc/self").map(|file| std::os::unix::fs::MetadataExt::uid(&file));
    for link in [near, far] {
        let identity = link.identity().unwrap();
        let process = identity.process.unwrap();
        assert_eq!(identity.name(), format!("uid={}", process.uid));
        if let Ok(own) = own {
            assert_eq!((process.uid, process.pid), (own, Some(std::process::id() as i32)));
        }
        assert!(identity.certificates.is_empty() && !link.is_encrypted());
    }
}

#[tokio::test]
async fn a_socket_that_nobody_listens_on_is_named() {
    let folder = Folder::new();
    let error = connect(&folder.socket(), &TcpConfig::default(), PATIENCE).await.unwrap_err();
    assert!(error.message().contains(&folder.socket()), "{error}");
    assert_eq!(error.executed(), farcall_core::status::Executed::No);
}

#[tokio::test]
async fn a_dialler_that_fails_or_says_nothing_is_told_with_its_target() {
    let config = TcpConfig::default();
    let refused = async { Err::<TcpStream, _>(io::Error::other("the tunnel is closed")) };
    let error = connect_by(refused, "db1:7400", &config, PATIENCE).await.unwrap_err();
    assert_eq!(error.message(), "can't connect to db1:7400: the tunnel is closed");
    let silent = std::future::pending::<io::Result<TcpStream>>();
    let error = connect_by(silent, "db1:7400", &config, Duration::from_millis(1)).await.unwrap_err();
    assert!(error.message().contains("db1:7400: no answer within 1ms"), "{error}");
}
