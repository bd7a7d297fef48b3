mod ending;

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Poll, ready};
use std::time::Duration;

use farcall_core::class::{ByClass, TrafficClass};
use farcall_core::origin::Origin;
use farcall_core::transport::{
    BoxFuture, BusyPoll, Counters, Description, FrameSource, Identity, Link, LinkEnd, LinkHandler, Reason,
    Secret, Unavailable,
};
use farcall_core::turns::{Turn, Turns};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use self::ending::{FLUSH, FLUSH_AFTER_PEER};
use crate::config::{Completion, TcpConfig, mark};
use crate::read::{MAX_FRAME, ReadEnd, Reader};
use crate::socket::Socket;
use crate::stream::Stream;
use crate::tls::Session;
use crate::waits::{self, Delivering, Waits};
use crate::write::Writer;

/// How many reads are made before other tasks get their turn,
const READS: usize = 16;

/// and how many bytes they may bring: who takes these while they are in the processor's cache gives back buffers that are.
const TURN: u64 = 256 * 1024;

/// How much is written before other tasks get their turn, where the peer reads as fast. Bytes.
const SEND_TURN: u64 = 2 << 20;

/// After so many looks that found something the link's task sleeps once.
const LOOKS: usize = 64;

/// A connected socket or another stream of bytes as a link.
pub struct TcpLink {
    description: Description,
    socket: Socket,
    dscp: ByClass,
    reading: Mutex<Reading>,
    /// For callers that look.
    handler: OnceLock<Weak<dyn LinkHandler>>,
    out: Mutex<Out>,
    /// A write had to wait, or has failed: written under the lock of `out`, which the link's task has no other reason to take.
    stuck: AtomicBool,
    /// Wakes the link's task: there is something to wait for that it does not know of.
    attention: Notify,
    closing: AtomicBool,
    /// The last read has left a frame in part.
    amid_frame: AtomicBool,
    /// Nothing that was taken is sent any more.
    aborted: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
    copied: AtomicU64,
}

/// Only the description: what is read and written may be a secret.
impl fmt::Debug for TcpLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpLink").field("description", &self.description).finish_non_exhaustive()
    }
}

/// Ends the socket's connection when the link's task is gone. The runtime may drop the task while others keep the link: without
/// this the peer would learn of it only when they drop it, too.
struct ShutdownOnDrop(Arc<TcpLink>);

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        self.0.socket.stream.end_now();
    }
}

/// An event that the link's task has waited for.
#[derive(PartialEq)]
enum Event {
    Socket,
    Attention,
}

/// The way in: the link's task's, or that of a caller that looks.
struct Reading {
    reader: Reader,
    waits: Waits,
    /// The end of the link that a caller has met, for the link's task to report.
    end: Option<ReadEnd>,
    /// The task delivers no more: nobody does.
    over: bool,
}

impl Reading {
    fn new(waits: Waits) -> Self {
        Self { reader: Reader::new(), waits, end: None, over: false }
    }
}

struct Out {
    writer: Writer,
    /// The kernel takes no more now; the link's task waits until it does.
    blocked: bool,
    /// The kernel would take more, but it is the other tasks' turn.
    turn_is_over: bool,
    /// The memory that is kept by what the writer has while `blocked`, in bytes.
    kept: usize,
    failed: Option<String>,
}

impl TcpLink {
    /// Sets a connected stream up, encrypted if there is a session. Must be called within a tokio runtime.
    pub(crate) fn new(stream: Stream, config: &TcpConfig, tls: Option<Session>) -> io::Result<Arc<Self>> {
        if let Stream::Tcp(socket) = &stream {
            config.apply(socket)?;
        }
        // To look is to read past the runtime, and records are read with it.
        let looks = tls.is_none() && stream.can_look();
        let completion = if looks { config.completion } else { Completion::Event };
        let (local, peer) = stream.addresses();
        let description = Description {
            transport: stream.transport(),
            local,
            peer,
            device: String::new(),
            busy_polls: waits::can_look(completion),
        };
        Ok(Arc::new(Self {
            description,
            socket: Socket::new(stream, tls),
            dscp: config.dscp.clone(),
            reading: Mutex::new(Reading::new(Waits::new(completion))),
            handler: OnceLock::new(),
            out: Mutex::new(Out {
                writer: Writer::new(),
                blocked: false,
                turn_is_over: false,
                kept: 0,
                failed: None,
            }),
            stuck: AtomicBool::new(false),
            attention: Notify::new(),
            closing: AtomicBool::new(false),
            amid_frame: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            copied: AtomicU64::new(0),
        }))
    }

    /// Returns the turns in the current runtime of what is done for the peer's host.
    fn turns(&self) -> Turns {
        Turns::of_runtime(Origin::of(self.description.peer.map(|peer| peer.ip())))
    }

    fn reading(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what was taken. `false`: not all of it, for now or for ever.
    fn write(&self, out: &mut Out) -> bool {
        while !out.writer.is_empty() || self.socket.has_unflushed() {
            let written = match out.writer.is_empty() {
                false => out.writer.write_to(&self.socket),
                true => self.socket.flush().map(|()| 0),
            };
            match written {
                Ok(n) => {
                    self.sent.fetch_add(n as u64, Ordering::Relaxed);
                }
                Err(e) => {
                    if e.kind() == io::ErrorKind::WouldBlock {
                        out.blocked = true;
                    } else {
                        out.failed = Some(format!("writing failed: {e}"));
                    }
                    self.stuck.store(true, Ordering::Release);
                    return false;
                }
            }
        }
        true
    }

    /// The link's task: reads, and writes when a write had to wait.
    async fn run(self: Arc<Self>, handler: Arc<dyn LinkHandler>, _shutdown: ShutdownOnDrop) {
        let mut attention = pin!(self.attention.notified());
        let turns = self.turns();
        // A turn ends before the task waits.
        let mut turn = None;
        let mut peer_has_ended = false;
        let end = loop {
            if let Some(pause) = handler.pause() {
                turn = None;
                self.wait_for_memory(pause, attention.as_mut(), &*handler, &turns).await;
            }
            let more = match self.read(&*handler) {
                Ok(more) => more,
                Err(ReadEnd::Eof) => {
                    peer_has_ended = true;
                    break LinkEnd::orderly();
                }
                Err(ReadEnd::Refused) => break LinkEnd::failed("the peer broke the protocol"),
                Err(ReadEnd::Failed(why)) => break LinkEnd::failed(why),
                Err(ReadEnd::Malformed(why)) => break LinkEnd::malformed(why),
            };
            if self.socket.has_unflushed() && !self.is_stuck() {
                // Reading may have made something to be sent: the next message of the handshake.
                let mut out = self.out();
                self.write(&mut out);
            }
            if self.is_stuck()
                && let Some(failed) = self.out().failed.take()
            {
                break LinkEnd::failed(failed);
            }
            if self.closing.load(Ordering::Acquire) {
                break LinkEnd::orderly();
            }
            turn = None;
            if more || self.is_send_turn_over() {
                // A peer that sends without a pause stops neither writing nor closing.
                turn = self.wait_for_turn(&turns, attention.as_mut()).await;
            } else {
                if self.is_amid_frame() {
                    handler.amid_frame();
                }
                if self.wait(attention.as_mut()).await == Event::Attention {
                    attention.set(self.attention.notified());
                } else if self.description.busy_polls {
                    self.reading().waits.slept();
                }
            }
            self.write_on(&*handler);
        };
        drop(turn);
        self.stop_reading(&*handler);
        if self.closing.load(Ordering::Acquire) {
            // The side that closed it knows. To it, the end of the link means that all has left.
            self.finish(Some(&*handler), FLUSH).await;
            handler.closed(end);
        } else {
            handler.closed(end);
            self.finish(None, if peer_has_ended { FLUSH_AFTER_PEER } else { FLUSH }).await;
        }
    }

    /// Ends reading. Others may keep the link for long, but not its buffers.
    fn stop_reading(&self, handler: &dyn LinkHandler) {
        let mut reading = self.reading();
        reading.over = true;
        reading.reader.free();
        Self::count_memory(&mut reading.reader, handler);
    }

    /// Waits until there is something to read, or room to write for who needs it, or attention is called for.
    async fn wait(&self, mut attention: Pin<&mut Notified<'_>>) -> Event {
        let blocked = self.is_stuck() && self.out().blocked;
        poll_fn(|cx| {
            // An error is met again by who reads or writes.
            if self.socket.stream.poll_read_ready(cx).is_ready()
                || blocked && self.socket.stream.poll_write_ready(cx).is_ready()
            {
                return Poll::Ready(Event::Socket);
            }
            attention.as_mut().poll(cx).map(|()| Event::Attention)
        })
        .await
    }

    /// Waits for the link's turn, or until it is closed: a closed one must not keep its memory while its host has many other turns.
    async fn wait_for_turn<'a>(
        &'a self,
        turns: &Turns,
        mut attention: Pin<&mut Notified<'a>>,
    ) -> Option<Turn> {
        let mut turn = pin!(turns.next());
        poll_fn(|cx| {
            // Once in each poll: it gives way by being pending once.
            if let Poll::Ready(turn) = turn.as_mut().poll(cx) {
                return Poll::Ready(Some(turn));
            }
            while !self.closing.load(Ordering::Acquire) {
                ready!(attention.as_mut().poll(cx));
                attention.set(self.attention.notified());
            }
            Poll::Ready(None)
        })
        .await
    }

    /// Waits until there is memory for what arrives. Goes on writing meanwhile.
    async fn wait_for_memory<'a>(
        &'a self,
        mut pause: BoxFuture<()>,
        mut attention: Pin<&mut Notified<'a>>,
        handler: &dyn LinkHandler,
        turns: &Turns,
    ) {
        // Before the first wait, too: the task may have been told of the closing already, and is told once.
        while !self.closing.load(Ordering::Acquire) {
            let blocked = self.is_stuck() && self.out().blocked;
            let event = poll_fn(|cx| {
                if pause.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                if blocked && self.socket.stream.poll_write_ready(cx).is_ready() {
                    return Poll::Ready(Some(Event::Socket));
                }
                attention.as_mut().poll(cx).map(|()| Some(Event::Attention))
            });
            match event.await {
                None => return,
                Some(Event::Attention) => attention.set(self.attention.notified()),
                Some(Event::Socket) => {}
            }
            let is_over = self.is_send_turn_over();
            let _turn = if is_over { self.wait_for_turn(turns, attention.as_mut()).await } else { None };
            self.write_on(handler);
        }
    }

    /// Whether writing goes on after the other tasks' turn.
    fn is_send_turn_over(&self) -> bool {
        self.is_stuck() && std::mem::take(&mut self.out().turn_is_over)
    }

    fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Acquire)
    }

    /// Goes on with a write that had to wait.
    fn write_on(&self, handler: &dyn LinkHandler) {
        if !self.is_stuck() {
            return;
        }
        let mut out = self.out();
        if !std::mem::take(&mut out.blocked) {
            return;
        }
        out.turn_is_over = false;
        self.stuck.store(out.failed.is_some(), Ordering::Release);
        let written = self.write(&mut out);
        drop(out);
        if written {
            handler.writable();
        }
    }

    /// Reads what there is, and looks for what comes next where that pays.
    fn read(&self, handler: &dyn LinkHandler) -> Result<bool, ReadEnd> {
        // Waits for a caller that looks, at most.
        let Reading { reader, waits, end, .. } = &mut *self.reading();
        if let Some(end) = end.take() {
            return Err(end);
        }
        if !self.description.busy_polls {
            return self.read_batch(reader, handler);
        }
        let _delivering = Delivering::begin();
        let mut sent = self.sent.load(Ordering::Relaxed);
        let more = self.read_batch(reader, handler)?;
        for _ in 0..LOOKS {
            let before = std::mem::replace(&mut sent, self.sent.load(Ordering::Relaxed));
            let looks = waits.answered(reader.take_frames(), sent != before) && !more;
            if !looks || self.is_stuck() || self.closing.load(Ordering::Acquire) {
                return Ok(more);
            }
            if !waits.look(|room| reader.look(&self.socket.stream, room, handler))? {
                return Ok(false);
            }
            self.end_batch(reader, handler);
        }
        Ok(false)
    }

    fn read_batch(&self, reader: &mut Reader, handler: &dyn LinkHandler) -> Result<bool, ReadEnd> {
        let enough = reader.bytes_read + TURN;
        reader.begin_turn();
        let mut result = reader.read(&self.socket, handler);
        for _ in 1..READS {
            if !matches!(result, Ok(true)) || reader.bytes_read >= enough || reader.has_left_frames() {
                break;
            }
            Self::count_memory(reader, handler);
            if handler.pause().is_some() {
                break;
            }
            result = reader.read(&self.socket, handler);
            if reader.is_turn_over() {
                break;
            }
        }
        self.end_batch(reader, handler);
        result
    }

    fn count_memory(reader: &mut Reader, handler: &dyn LinkHandler) {
        if let Some(bytes) = reader.changed_memory() {
            handler.holds(bytes);
        }
    }

    fn end_batch(&self, reader: &mut Reader, handler: &dyn LinkHandler) {
        Self::count_memory(reader, handler);
        self.received.store(reader.bytes_read, Ordering::Relaxed);
        self.copied.store(reader.bytes_copied, Ordering::Relaxed);
        let is_amid = reader.is_amid_frame() || self.socket.tls().is_some_and(Session::is_amid_record);
        self.amid_frame.store(is_amid, Ordering::Relaxed);
        handler.batch_end();
    }
}

impl Link for TcpLink {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_frame(&self) -> usize {
        MAX_FRAME
    }

    fn start(self: Arc<Self>, handler: Arc<dyn LinkHandler>) {
        let _ = self.handler.set(Arc::downgrade(&handler));
        // Made here: a runtime may drop the task before it polls it.
        let shutdown = ShutdownOnDrop(self.clone());
        tokio::spawn(self.run(handler, shutdown));
    }

    fn mark(&self, class: TrafficClass) {
        let Stream::Tcp(socket) = &self.socket.stream else { return };
        if let Err(error) = mark(socket, self.dscp.of(class)) {
            let peer = self.description.peer;
            tracing::warn!(?peer, %class, %error, "packets can't be marked with the DSCP of tcp.dscp");
        }
    }

    fn send(&self, source: &mut dyn FrameSource) {
        let mut out = self.out();
        let enough = self.sent.load(Ordering::Relaxed) + SEND_TURN;
        loop {
            if out.blocked || out.failed.is_some() {
                return;
            }
            if self.sent.load(Ordering::Relaxed) >= enough {
                (out.blocked, out.turn_is_over, out.kept) = (true, true, 0);
                self.stuck.store(true, Ordering::Release);
                self.attention.notify_one();
                return;
            }
            let held = source.held();
            let more = out.writer.take(source);
            if out.writer.is_empty() {
                return;
            }
            if !self.write(&mut out) {
                // The writer was empty before.
                out.kept = held.saturating_sub(source.held());
                // The task waits for the right thing only if it is told.
                self.attention.notify_one();
                return;
            }
            if !more {
                return;
            }
        }
    }

    fn busy_poll(&self, _: Duration) -> BusyPoll {
        let Some(handler) = self.handler.get().and_then(Weak::upgrade) else { return BusyPoll::Sleep };
        let Ok(mut reading) = self.reading.try_lock() else { return BusyPoll::Sleep };
        let Reading { reader, waits, end, over } = &mut *reading;
        if *over || end.is_some() || !waits.asked() {
            return BusyPoll::Sleep;
        }
        match waits.look(|room| reader.look(&self.socket.stream, room, &*handler)) {
            Ok(true) => self.end_batch(reader, &*handler),
            Ok(false) => return BusyPoll::Sleep,
            Err(error) => {
                *end = Some(error);
                self.attention.notify_one();
            }
        }
        BusyPoll::Found
    }

    fn unsent(&self) -> usize {
        match self.is_stuck() {
            false => 0,
            true => self.out().kept,
        }
    }

    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.attention.notify_one();
    }

    fn is_encrypted(&self) -> bool {
        self.socket.tls().is_some()
    }

    fn secret(&self) -> Result<Arc<dyn Secret>, Unavailable> {
        let plain = || Err(Unavailable::new(Reason::Other, "the connection is not encrypted"));
        self.socket.tls().map_or_else(plain, Session::secret)
    }

    fn identity(&self) -> Option<Arc<Identity>> {
        match self.socket.tls() {
            Some(tls) => tls.identity(),
            None => self.socket.stream.identity(),
        }
    }

    fn is_amid_frame(&self) -> bool {
        self.amid_frame.load(Ordering::Relaxed)
    }

    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.close();
    }

    fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        counters.bytes_sent = self.sent.load(Ordering::Relaxed);
        counters.bytes_received = self.received.load(Ordering::Relaxed);
        counters.bytes_copied = self.copied.load(Ordering::Relaxed);
        counters
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
