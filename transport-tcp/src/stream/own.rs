//! A stream of the application's, asked like a socket: what can't be done now is refused, and readiness is waited for.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use bytes::BufMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::task::coop;

/// Anything that tokio reads from and writes to.
trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Duplex for S {}

/// A stream that is no socket of the system.
pub(crate) struct Own {
    /// `None` when it has ended.
    stream: Mutex<Option<Pin<Box<dyn Duplex>>>>,
    readable: Arc<Readiness>,
    writable: Arc<Readiness>,
    unflushed: AtomicBool,
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own")
    }
}

/// Whether one direction of a stream is worth a try. The stream wakes this where it would wake a task.
#[derive(Debug)]
struct Readiness {
    is_ready: AtomicBool,
    /// The task that waits for it.
    task: Mutex<Option<Waker>>,
}

impl Readiness {
    fn new() -> Arc<Self> {
        Arc::new(Self { is_ready: AtomicBool::new(true), task: Mutex::default() })
    }

    fn task(&self) -> MutexGuard<'_, Option<Waker>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries something now. `Pending` is an error: the stream wakes this when it is worth another try.
    fn attempt<R>(
        self: &Arc<Self>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<R>>,
    ) -> io::Result<R> {
        // Before the try: the stream may wake it meanwhile.
        self.is_ready.store(false, Ordering::Release);
        let waker = Waker::from(self.clone());
        match poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => {
                self.is_ready.store(true, Ordering::Release);
                result
            }
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Waits until it is worth a try. Uses the task's budget, as tokio's sockets do: a stream that is always worth a try, or that
    /// refuses for lack of budget, then lets other tasks have their turn.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let budget = ready!(coop::poll_proceed(cx));
        let old = self.task().replace(cx.waker().clone());
        drop(old);
        if self.is_ready.load(Ordering::Acquire) {
            budget.made_progress();
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Wake for Readiness {
    fn wake(self: Arc<Self>) {
        self.is_ready.store(true, Ordering::Release);
        let task = self.task().take();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl Own {
    pub(super) fn new<S: AsyncRead + AsyncWrite + Send + 'static>(stream: Option<S>) -> Self {
        let stream = stream.map(|stream| Box::pin(stream) as Pin<Box<dyn Duplex>>);
        Self {
            stream: Mutex::new(stream),
            readable: Readiness::new(),
            writable: Readiness::new(),
            unflushed: AtomicBool::new(false),
        }
    }

    fn stream(&self) -> MutexGuard<'_, Option<Pin<Box<dyn Duplex>>>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the stream in one direction.
    fn attempt<R>(
        &self,
        direction: &Arc<Readiness>,
        poll: impl FnOnce(Pin<&mut dyn Duplex>, &mut Context<'_>) -> Poll<io::Result<R>>,
    ) -> io::Result<R> {
        let mut stream = self.stream();
        let Some(stream) = stream.as_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
        direction.attempt(|cx| poll(stream.as_mut(), cx))
    }

    pub(super) fn read(&self, to: &mut impl BufMut) -> io::Result<usize> {
        self.attempt(&self.readable, |mut stream, cx| pin!(stream.read_buf(to)).poll(cx))
    }

    pub(super) fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = self.attempt(&self.writable, |stream, cx| stream.poll_write_vectored(cx, pieces))?;
        if written == 0 && pieces.iter().any(|piece| !piece.is_empty()) {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.unflushed.store(true, Ordering::Release);
        Ok(written)
    }

    pub(super) fn has_unflushed(&self) -> bool {
        self.unflushed.load(Ordering::Acquire)
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        self.attempt(&self.writable, |stream, cx| stream.poll_flush(cx))?;
        self.unflushed.store(false, Ordering::Release);
        Ok(())
    }

    pub(super) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.readable.poll(cx).map(Ok)
    }

    pub(super) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writable.poll(cx).map(Ok)
    }

    pub(super) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.stream().as_mut() {
            Some(stream) => stream.as_mut().poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    /// Drops the stream, which tells the peer.
    pub(super) fn end(&self) {
        let stream = self.stream().take();
        drop(stream);
        // A task that waits meets the end.
        self.readable.clone().wake();
        self.writable.clone().wake();
    }
}
