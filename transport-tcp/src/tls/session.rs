//! One end of a TLS session: bytes in the clear on one side, records on the other.

use std::io::{self, BufRead, IoSlice, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::{Buf, BufMut, BytesMut};
use farcall_core::buffer_pool;
use farcall_core::transport::{Identity, SHARED_BUFFER, Secret, Unavailable};
use rustls::Connection;
use rustls::crypto::CryptoProvider;

use super::identity::identity;
use super::refusals::Refusals;
use super::resumption::Resumption;
use super::secret::SessionSecret;
use super::{ALPN, explain, refused};
use crate::stream::Stream;

/// A TLS session over a socket. rustls encrypts and decrypts in memory; this moves the records.
///
/// The handshake happens while the link reads and writes. Until it is over, rustls keeps what is written.
#[derive(Debug)]
pub(crate) struct Session {
    state: Mutex<State>,
    /// Whether rustls has records for the socket. Written under the lock of `state`.
    unflushed: AtomicBool,
    /// Whether rustls has a part of a record. Written under the lock of `state`.
    amid_record: AtomicBool,
    /// The peer's identity, once the handshake is over. `None` within: it has presented no certificate.
    identity: OnceLock<Option<Arc<Identity>>>,
    provider: Arc<CryptoProvider>,
    resumption: Resumption,
    /// For servers: where handshakes that fail are logged.
    refusals: Option<Arc<Refusals>>,
    /// The secret for other links, once one has asked for it.
    secret: OnceLock<Result<Arc<dyn Secret>, Unavailable>>,
}

#[derive(Debug)]
struct State {
    connection: Connection,
    /// Records that were read from the socket.
    incoming: BytesMut,
    /// The record that rustls has a part of, if any.
    record: RecordProgress,
    /// Whether the socket had nothing more when these were read.
    is_drained: bool,
    /// Whether anything was ever read.
    has_begun: bool,
    is_established: bool,
}

impl Session {
    pub(super) fn new(
        connection: impl Into<Connection>,
        provider: Arc<CryptoProvider>,
        resumption: Resumption,
        refusals: Option<Arc<Refusals>>,
    ) -> Self {
        let mut connection = connection.into();
        // The link bounds what is written. Until the handshake is over that is a HELLO.
        connection.set_buffer_limit(None);
        Self {
            unflushed: AtomicBool::new(connection.wants_write()),
            amid_record: AtomicBool::new(false),
            identity: OnceLock::new(),
            provider,
            resumption,
            refusals,
            secret: OnceLock::new(),
            state: Mutex::new(State {
                connection,
                incoming: BytesMut::new(),
                record: RecordProgress::default(),
                is_drained: false,
                has_begun: false,
                is_established: false,
            }),
        }
    }

    /// Returns the peer's identity, if it has presented a certificate and the handshake is over.
    pub(crate) fn identity(&self) -> Option<Arc<Identity>> {
        self.identity.get()?.clone()
    }

    /// Returns the secret from which keys for other links are derived. The handshake must be over.
    pub(crate) fn secret(&self) -> Result<Arc<dyn Secret>, Unavailable> {
        let export = || {
            let secret = SessionSecret::export(&self.lock().connection, &self.provider)?;
            Ok(Arc::new(secret) as Arc<dyn Secret>)
        };
        self.secret.get_or_init(export).clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what is there in the clear, and decrypts more if there is nothing. Says whether there is nothing more now.
    pub(crate) fn read(
        &self,
        stream: &Stream,
        to: &mut impl BufMut,
        room: usize,
    ) -> (io::Result<usize>, bool) {
        let (mut state, mut has_received) = (self.lock(), false);
        loop {
            match state.take(to, room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                taken => return (taken, false),
            }
            if state.incoming.is_empty() {
                // Records may be empty, and come for ever. Other tasks have their turn after one read.
                let received = if has_received { Err(state.let_go()) } else { state.receive(stream) };
                if let Err(error) = received {
                    return (Err(error), true);
                }
                has_received = true;
            }
            let was_established = state.is_established;
            let decrypted = state.decrypt().and_then(|()| self.note_handshake(&mut state));
            self.unflushed.store(state.connection.wants_write(), Ordering::Release);
            self.amid_record.store(state.record.is_amid(), Ordering::Relaxed);
            if let Err(why) = decrypted {
                if let Some(refusals) = self.refusals.as_ref().filter(|_| !was_established) {
                    refusals.log(stream.addresses().1, &why);
                }
                return (Err(io::Error::new(io::ErrorKind::InvalidData, why)), true);
            }
        }
    }

    /// Checks what the handshake has agreed on, when it is over.
    fn note_handshake(&self, state: &mut State) -> Result<(), String> {
        if state.is_established || state.connection.is_handshaking() {
            return Ok(());
        }
        state.is_established = true;
        if state.connection.alpn_protocol() != Some(ALPN) {
            return Err(explain::NOT_FARCALL.to_owned());
        }
        self.resumption.check(&state.connection)?;
        let identity = state.connection.peer_certificates().and_then(identity).map(Arc::new);
        tracing::debug!(
            version = ?state.connection.protocol_version(),
            suite = ?state.connection.negotiated_cipher_suite().map(|suite| suite.suite()),
            handshake = ?state.connection.handshake_kind(),
            peer = identity.as_deref().map(Identity::name),
            "a TLS session was established"
        );
        // Set once: there is one handshake.
        let _ = self.identity.set(identity);
        Ok(())
    }

    /// Encrypts these pieces, and writes what the kernel takes. Returns how much was encrypted.
    pub(crate) fn write(&self, stream: &Stream, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.lock();
        self.send(&mut state, stream)?;
        let written = state.connection.writer().write_vectored(pieces)?;
        match self.send(&mut state, stream) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(written),
        }
    }

    /// Whether the handshake is going on, so that nothing that was written has left yet.
    pub(crate) fn is_establishing(&self) -> bool {
        self.lock().connection.is_handshaking()
    }

    /// Whether a record has arrived in part.
    pub(crate) fn is_amid_record(&self) -> bool {
        self.amid_record.load(Ordering::Relaxed)
    }

    /// Whether there are records for the socket.
    pub(crate) fn has_unflushed(&self) -> bool {
        self.unflushed.load(Ordering::Acquire)
    }

    /// Writes the records that were made before.
    pub(crate) fn flush(&self, stream: &Stream) -> io::Result<()> {
        self.send(&mut self.lock(), stream)
    }

    fn send(&self, state: &mut State, stream: &Stream) -> io::Result<()> {
        let mut sent = Ok(());
        while sent.is_ok() && state.connection.wants_write() {
            sent = state.connection.write_tls(&mut Direct(stream)).map(drop);
        }
        self.unflushed.store(state.connection.wants_write(), Ordering::Release);
        sent
    }

    /// Queues `close_notify`, without which the peer takes the end for a failure (RFC 8446, section 6.1).
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.connection.send_close_notify();
        self.unflushed.store(state.connection.wants_write(), Ordering::Release);
    }
}

impl State {
    /// Takes bytes that were decrypted.
    fn take(&mut self, to: &mut impl BufMut, room: usize) -> io::Result<usize> {
        let mut reader = self.connection.reader();
        let chunk = match reader.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let why = if self.is_established { explain::CUT_OFF } else { explain::GAVE_UP };
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            chunk => chunk?,
        };
        let n = chunk.len().min(room);
        to.put_slice(&chunk[..n]);
        reader.consume(n);
        Ok(n)
    }

    /// Reads records from the socket. Reads nothing where the socket has ended.
    fn receive(&mut self, stream: &Stream) -> io::Result<()> {
        if self.is_drained {
            return Err(self.let_go());
        }
        if !self.incoming.try_reclaim(SHARED_BUFFER) {
            self.incoming = buffer_pool::take(SHARED_BUFFER)?;
        }
        // A distinct type gives this path its own copy of `read`. So the one in the clear stays inlined, which is 0.6 % of a lone call.
        let mut incoming = &mut self.incoming;
        let mut buffer = (&mut incoming).limit(SHARED_BUFFER);
        let (read, is_drained) = stream.read(&mut buffer, SHARED_BUFFER);
        match read {
            Ok(n) => self.is_drained = is_drained && n > 0,
            Err(error) => {
                self.let_go();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Gives the buffer back, because there is nothing to read for now: a silent connection keeps none.
    fn let_go(&mut self) -> io::Error {
        self.is_drained = false;
        buffer_pool::give(std::mem::take(&mut self.incoming), SHARED_BUFFER);
        io::ErrorKind::WouldBlock.into()
    }

    /// Decrypts some of the records. There may be an alert to be sent after an error.
    ///
    /// # Errors
    ///
    /// The reason why the session can't go on.
    fn decrypt(&mut self) -> Result<(), String> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let foreign = if is_first { explain::not_tls(&self.incoming) } else { None };
        // Where the socket has ended there are none, and rustls takes note of the end.
        let mut records = &self.incoming[..];
        let read = self.connection.read_tls(&mut records);
        let read =
            read.map_err(|error| format!("TLS: a handshake message of the peer is too long: {error}"))?;
        self.record.note(&self.incoming[..read]);
        self.incoming.advance(read);
        let processed = self.connection.process_new_packets();
        processed
            .map(drop)
            .map_err(|error| foreign.unwrap_or_else(|| explain::in_words(&error, refused::take().as_deref())))
    }
}

/// How much of a record has come: five bytes, of which the last two say how many follow (RFC 8446, section 5.1).
#[derive(Debug, Default)]
struct RecordProgress {
    header: [u8; 5],
    /// How much of the header has come.
    seen: usize,
    /// How much is missing after the header.
    missing: usize,
}

impl RecordProgress {
    fn note(&mut self, mut bytes: &[u8]) {
        while let Some(&first) = bytes.first() {
            let mut noted = self.missing.min(bytes.len());
            self.missing -= noted;
            if noted == 0 {
                (self.header[self.seen], noted) = (first, 1);
                self.seen = (self.seen + 1) % self.header.len();
                if self.seen == 0 {
                    self.missing = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
                }
            }
            bytes.advance(noted);
        }
    }

    fn is_amid(&self) -> bool {
        self.seen + self.missing > 0
    }
}

/// The socket as a blocking writer would have it.
struct Direct<'a>(&'a Stream);

impl Write for Direct<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(all(test, feature = "tls-ring"))]
#[expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]
mod tests;
