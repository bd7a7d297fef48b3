//! The end of a link: what was taken leaves, and the peer reads it.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use farcall_core::transport::LinkHandler;
use farcall_core::turns::Turns;

use super::TcpLink;
use crate::stream::Stream;

/// How long a closed link goes on sending what it had taken to a peer that reads slowly.
pub(super) const FLUSH: Duration = Duration::from_secs(10);

/// How long it does so where the peer has ended the link. Nobody waits for more than the end.
pub(super) const FLUSH_AFTER_PEER: Duration = Duration::from_secs(1);

/// How long a closed link waits for the peer to close too, as it does when it has read everything. Without it the last
/// frames could be lost: a socket that is closed with unread data resets the connection, and forgets what it had still
/// to send.
const LINGER: Duration = Duration::from_secs(5);

/// The most that a closed link reads of what was on its way when it closed. A peer that has sent so much since the end is not going
/// to stop. Bytes.
const MOST_DISCARDED: usize = 64 << 20;

/// How much of it is read at once. Bytes.
const PIECE: usize = 16 << 10;

/// How much of it is read before other tasks have their turn. Bytes.
const DISCARDED_AT_ONCE: usize = 64 << 10;

impl TcpLink {
    /// Goes on with a handshake until it is over or has failed. Nothing that was taken leaves before that.
    async fn establish(&self) {
        let Some(tls) = self.socket.tls() else { return };
        // The peer's bytes are of no use any more.
        let mut unread = Vec::with_capacity(PIECE);
        while tls.is_establishing() {
            let read = self.socket.read(&mut unread, PIECE).0;
            let flushed = self.socket.flush();
            unread.clear();
            let is_over = |result: io::Result<usize>| match result {
                Ok(n) => n == 0,
                Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            };
            if is_over(read) || is_over(flushed.map(|()| 1)) {
                return;
            }
            let stream = &self.socket.stream;
            let ready = poll_fn(|cx| match stream.poll_write_ready(cx) {
                Poll::Ready(ready) if self.socket.has_unflushed() => Poll::Ready(ready),
                _ => stream.poll_read_ready(cx),
            });
            if ready.await.is_err() {
                return;
            }
        }
    }

    /// Sends what was taken, says that no more comes, and lets the peer read it. `handler` may have a last frame for which
    /// there was no room before. `flush` bounds the sending.
    pub(super) async fn finish(&self, mut handler: Option<&dyn LinkHandler>, flush: Duration) {
        if self.aborted.load(Ordering::Acquire) {
            return;
        }
        let flushed = async {
            let mut ended = false;
            self.establish().await;
            loop {
                let written = {
                    let mut out = self.out();
                    out.blocked = false;
                    let written = self.write(&mut out);
                    if out.failed.is_some() {
                        return;
                    }
                    written
                };
                if written {
                    match handler.take() {
                        Some(handler) => handler.writable(),
                        None if ended => return,
                        None => {
                            self.socket.end();
                            ended = true;
                        }
                    }
                    continue;
                }
                if self.socket.stream.writable().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(flush, flushed).await;
        let lingered = async {
            // An error means that the peer is gone: then there is nobody to tell.
            let _ = self.socket.stream.end().await;
            discard(&self.socket.stream, &self.turns()).await;
        };
        let _ = tokio::time::timeout(LINGER, lingered).await;
    }
}

/// Reads until the peer closes, or has sent so much that it does not heed the end. Other tasks have their turn in between:
/// a peer that sends without a pause must not keep the thread.
async fn discard(stream: &Stream, turns: &Turns) {
    let mut left = MOST_DISCARDED;
    while left > 0 && stream.readable().await.is_ok() {
        let _turn = turns.next().await;
        match discard_turn(stream) {
            Ok(n) => left = left.saturating_sub(n),
            Err(_) => return,
        }
    }
}

/// Reads what there is, up to a turn's share. Returns how much that was, in bytes, or an error when nothing more comes.
fn discard_turn(stream: &Stream) -> io::Result<usize> {
    let mut unread = [0; PIECE];
    let mut discarded = 0;
    while discarded < DISCARDED_AT_ONCE {
        match stream.read(&mut &mut unread[..], PIECE).0 {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => discarded += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
    }
    Ok(discarded)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::pin::pin;

    use farcall_core::origin::Origin;
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn a_peer_that_sends_on_does_not_keep_the_thread_nor_the_link() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let mut peer = peer.into_std().unwrap();
        let stream = Stream::Tcp(socket);
        let turns = Turns::of_runtime(Origin::NONE);
        let mut discard = pin!(discard(&stream, &turns));
        let (mut turns, mut written) = (0, 0);
        loop {
            while let Ok(n) = peer.write(&[0; 64 << 10]) {
                written += n;
            }
            turns += 1;
            if poll_fn(|cx| Poll::Ready(discard.as_mut().poll(cx).is_ready())).await {
                break;
            }
            assert!(written < 2 * MOST_DISCARDED, "it reads on after {written} bytes");
            tokio::task::yield_now().await;
        }
        // The last read of a turn may bring more than its share.
        assert!(turns >= MOST_DISCARDED / DISCARDED_AT_ONCE / 2, "it was all read in {turns} turns");
    }
}
