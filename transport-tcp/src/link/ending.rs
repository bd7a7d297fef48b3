//! The end of a link: what was taken leaves, and the peer reads it.

use std::io;
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farcall_core::transport::LinkHandler;
use socket2::SockRef;
use tokio::io::Interest;

use super::TcpLink;
use crate::read::MAX_FRAME;

/// How long a closed link goes on sending what it had taken to a peer that reads slowly.
const FLUSH: Duration = Duration::from_secs(10);

/// How long a closed link waits for the peer to close too, as it does when it has read everything. Without it the last
/// frames could be lost: a socket that is closed with unread data resets the connection, and forgets what it had still
/// to send.
const LINGER: Duration = Duration::from_secs(5);

impl TcpLink {
    /// Goes on with a handshake until it is over or has failed. Nothing that was taken leaves before that.
    async fn establish(&self) {
        let Some(tls) = self.socket.tls() else { return };
        // What the peer says is of no use any more.
        let mut unread = Vec::with_capacity(MAX_FRAME);
        while tls.is_establishing() {
            let read = self.socket.read(&mut unread, MAX_FRAME).0;
            let flushed = self.socket.flush();
            unread.clear();
            let is_over = |result: io::Result<usize>| match result {
                Ok(n) => n == 0,
                Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            };
            if is_over(read) || is_over(flushed.map(|()| 1)) {
                return;
            }
            let ready = match self.socket.has_unflushed() {
                true => self.socket.tcp.ready(Interest::READABLE | Interest::WRITABLE).await,
                false => self.socket.tcp.ready(Interest::READABLE).await,
            };
            if ready.is_err() {
                return;
            }
        }
    }

    /// Sends what was taken, says that no more comes, and lets the peer read it. `handler` may have a last frame for which
    /// there was no room before.
    pub(super) async fn finish(&self, mut handler: Option<&dyn LinkHandler>) {
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
                if self.socket.tcp.writable().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(FLUSH, flushed).await;
        // An error means that the peer is gone: then there is nobody to tell.
        let _ = SockRef::from(&self.socket.tcp).shutdown(Shutdown::Write);
        let read_to_end = async {
            let mut rest = vec![0; 4096];
            while self.socket.tcp.readable().await.is_ok() {
                match self.socket.tcp.try_read(&mut rest) {
                    Ok(0) => return,
                    Err(e) if e.kind() != io::ErrorKind::WouldBlock => return,
                    _ => {}
                }
            }
        };
        let _ = tokio::time::timeout(LINGER, read_to_end).await;
    }
}
