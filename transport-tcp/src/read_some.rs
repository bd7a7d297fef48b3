//! One read from a socket, told in time that there is no more.

use std::io;

use bytes::BufMut;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Reads once, and says whether there is nothing more to read now.
pub(crate) fn read_some(
    socket: &TcpStream,
    buffer: &mut impl BufMut,
    room: usize,
) -> (io::Result<usize>, bool) {
    let mut read = Err(io::ErrorKind::WouldBlock.into());
    let result = socket.try_io(Interest::READABLE, || {
        read = socket.try_read_buf(buffer);
        match read {
            // Reading on would only say that there is nothing, at the cost of a system call. Said so from in here, it counts
            // unless the runtime has heard of more since before the read.
            Ok(n) if n < room => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    });
    (read, result.is_err())
}
