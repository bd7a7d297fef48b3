//! The stand-in for Unix-domain sockets where the system has none.

use std::io;

use crate::stream::Stream;

/// It has no values.
#[derive(Debug)]
pub(crate) enum Listening {}

impl Listening {
    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        match *self {}
    }
}

pub(crate) fn path(address: &str) -> Option<&str> {
    address.strip_prefix("unix:")
}

pub(crate) async fn connect(_: &str) -> io::Result<tokio::net::TcpStream> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn listen(_: &str) -> io::Result<Listening> {
    Err(io::ErrorKind::Unsupported.into())
}
