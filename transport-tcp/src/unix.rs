//! Unix-domain sockets: their addresses and files.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};

use crate::config::BACKLOG;
use crate::stream::Stream;

/// A listening socket. It is closed after its file is gone: while it listens, no other server takes the file for a dead one's.
#[derive(Debug)]
pub(crate) struct Listening {
    _file: Option<SocketFile>,
    listener: UnixListener,
}

impl Listening {
    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        Ok(Stream::Unix(self.listener.accept().await?.0))
    }
}

/// A socket of the application's, which keeps its file.
impl From<UnixListener> for Listening {
    fn from(listener: UnixListener) -> Self {
        Self { _file: None, listener }
    }
}

/// Returns the path in `unix:PATH` or `unix://PATH`, with what follows it.
pub(crate) fn path(address: &str) -> Option<&str> {
    let path = address.strip_prefix("unix:")?;
    Some(path.strip_prefix("//").unwrap_or(path))
}

pub(crate) async fn connect(path: &str) -> io::Result<UnixStream> {
    UnixStream::connect(path).await
}

/// Listens on `PATH` or `PATH?mode=OCTAL`.
pub(crate) fn listen(address: &str) -> io::Result<Listening> {
    let (path, mode) = match address.split_once('?') {
        Some((path, settings)) => (Path::new(path), Some(mode(settings)?)),
        None => (Path::new(address), None),
    };
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    bind(&socket, path)?;
    let file = SocketFile::at(path)?;
    if let Some(mode) = mode {
        // Nobody can connect before it listens.
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    socket.listen(BACKLOG as i32)?;
    socket.set_nonblocking(true)?;
    Ok(Listening { _file: Some(file), listener: UnixListener::from_std(socket.into())? })
}

fn mode(settings: &str) -> io::Result<u32> {
    let mode = settings.strip_prefix("mode=").and_then(|mode| u32::from_str_radix(mode, 8).ok());
    let wrong = "what follows `?` must be permissions in octal, as in `?mode=660`";
    mode.filter(|mode| *mode <= 0o777).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, wrong))
}

/// Binds a socket to a path. Replaces the file of a socket on which nobody listens any more.
fn bind(socket: &Socket, path: &Path) -> io::Result<()> {
    let address = SockAddr::unix(path)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if !is_stale(path) {
                return Err(error);
            }
            fs::remove_file(path)?;
            socket.bind(&address)
        }
        bound => bound,
    }
}

/// Whether a path is the file of a socket on which nobody listens.
fn is_stale(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // One whose queue is full would keep this thread.
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)
    };
    is_socket && connect().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// The file of a listening socket, removed when this is dropped, unless another server has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn at(path: &Path) -> io::Result<Self> {
        let file = fs::symlink_metadata(path)?;
        // The process may change its directory.
        let path = std::path::absolute(path)?;
        Ok(Self { path, device: file.dev(), inode: file.ino() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_same = |file: fs::Metadata| (file.dev(), file.ino()) == (self.device, self.inode);
        if fs::symlink_metadata(&self.path).is_ok_and(is_same) {
            // If that fails, the next server replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}
