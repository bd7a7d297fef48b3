//! Datagrams whose mark is set and seen: the byte of an IP packet with its DSCP and its ECN bits.

use std::io;
use std::net::{IpAddr, SocketAddr};

#[cfg(target_os = "linux")]
pub(super) use linux::Marked;

/// A datagram as it arrived.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) length: usize,
    pub(super) from: SocketAddr,
    pub(super) mark: u8,
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io::{IoSlice, IoSliceMut};
    use std::os::fd::AsRawFd;

    use nix::cmsg_space;
    use nix::errno::Errno;
    use nix::sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt, sockopt,
    };
    use rustix::net::sockopt::{
        Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
    };
    use tokio::io::Interest;
    use tokio::net::UdpSocket;

    use super::{Arrived, IpAddr, SocketAddr, io};

    /// A socket of datagrams that no machine on the way may cut into fragments.
    #[derive(Debug)]
    pub(in super::super) struct Marked(UdpSocket);

    impl Marked {
        /// Binds a socket to a free port of an address of this machine, for datagrams of a peer.
        pub(in super::super) async fn bind(address: IpAddr, peer: SocketAddr) -> io::Result<Self> {
            let mut own = SocketAddr::new(address, 0);
            // A link-local address needs the scope, which is this machine's interface. The peer's address has it, too.
            if let (SocketAddr::V6(own), SocketAddr::V6(peer)) = (&mut own, peer) {
                own.set_scope_id(peer.scope_id());
            }
            let socket = UdpSocket::bind(own).await?;
            // PROBE: packets as long as the interface takes are sent, whatever the kernel has learned of the way.
            if address.is_ipv4() {
                setsockopt(&socket, sockopt::IpRecvTos, &true)?;
                set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
            } else {
                setsockopt(&socket, sockopt::Ipv6RecvTClass, &true)?;
                set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
            }
            Ok(Self(socket))
        }

        pub(in super::super) fn port(&self) -> io::Result<u16> {
            Ok(self.0.local_addr()?.port())
        }

        /// Sends a datagram with a mark. Returns `false` if it is longer than the network interface takes.
        pub(in super::super) async fn send(&self, data: &[u8], to: SocketAddr, mark: u8) -> io::Result<bool> {
            let class = i32::from(mark);
            let mark = match to {
                SocketAddr::V4(_) => ControlMessage::Ipv4Tos(&mark),
                SocketAddr::V6(_) => ControlMessage::Ipv6TClass(&class),
            };
            let to = SockaddrStorage::from(to);
            let send = || {
                let data = [IoSlice::new(data)];
                match sendmsg(self.0.as_raw_fd(), &data, &[mark], MsgFlags::empty(), Some(&to)) {
                    Ok(_) => Ok(true),
                    Err(Errno::EMSGSIZE) => Ok(false),
                    Err(error) => Err(error.into()),
                }
            };
            self.0.async_io(Interest::WRITABLE, send).await
        }

        /// Waits for a datagram, of which it keeps as much as fits into the buffer.
        pub(in super::super) async fn receive(&self, buffer: &mut [u8]) -> io::Result<Arrived> {
            let receive = || {
                let mut data = [IoSliceMut::new(buffer)];
                let mut space = cmsg_space!(i32);
                let arrived = recvmsg::<SockaddrStorage>(
                    self.0.as_raw_fd(),
                    &mut data,
                    Some(&mut space),
                    MsgFlags::empty(),
                )?;
                let mark = arrived.cmsgs()?.find_map(|message| match message {
                    ControlMessageOwned::Ipv4Tos(mark) => Some(mark),
                    ControlMessageOwned::Ipv6TClass(class) => u8::try_from(class).ok(),
                    _ => None,
                });
                let from = arrived.address.and_then(|address| {
                    let v4 = address.as_sockaddr_in().map(|address| (*address).into());
                    v4.or_else(|| address.as_sockaddr_in6().map(|address| (*address).into()))
                });
                match (from, mark) {
                    (Some(from), Some(mark)) => Ok(Arrived { length: arrived.bytes, from, mark }),
                    _ => Err(io::Error::other("the kernel does not tell a datagram's address and mark")),
                }
            };
            self.0.async_io(Interest::READABLE, receive).await
        }
    }
}

/// No such socket: other systems tell of marks by other calls, and have no RDMA.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(super) struct Marked(std::convert::Infallible);

#[cfg(not(target_os = "linux"))]
impl Marked {
    pub(super) async fn bind(_: IpAddr, _: SocketAddr) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn port(&self) -> io::Result<u16> {
        match self.0 {}
    }

    pub(super) async fn send(&self, _: &[u8], _: SocketAddr, _: u8) -> io::Result<bool> {
        match self.0 {}
    }

    pub(super) async fn receive(&self, _: &mut [u8]) -> io::Result<Arrived> {
        match self.0 {}
    }
}
