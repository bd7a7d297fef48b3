//! The identity of an authenticated peer.

use std::net::IpAddr;

use bytes::Bytes;

/// The identity of a peer: from the certificate that it has proved to be its own, which a CA that this side trusts has signed, or
/// from the kernel, for the process at the other end of a Unix-domain socket.
///
/// Compare names that a CA gives out with care, such as a URI or a DNS name. `subject` is for people: CAs differ in what they
/// write there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// The subject of the certificate, as in `CN=node7,O=Example` (RFC 4514).
    pub subject: String,
    /// The DNS names among its alternative names.
    pub dns_names: Vec<String>,
    /// The URIs among its alternative names.
    pub uris: Vec<String>,
    /// The addresses among its alternative names.
    pub ip_addresses: Vec<IpAddr>,
    /// The certificates that the peer has presented, its own first, in DER. Empty for a process.
    pub certificates: Vec<Bytes>,
    /// The process at the other end of a Unix-domain socket. `None` for a certificate.
    pub process: Option<PeerProcess>,
}

/// A process of this machine, as the kernel names it (unix(7), `SO_PEERCRED`), at the time when it connected or began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// Its number, where the system tells it. It may have ended, and another have its number.
    pub pid: Option<i32>,
}

impl Identity {
    /// Returns an identity without names.
    pub fn new(certificates: Vec<Bytes>) -> Self {
        Self { certificates, ..Self::default() }
    }

    /// Returns the identity of a process. Its subject is `uid=` and the number of its user.
    pub fn of_process(process: PeerProcess) -> Self {
        Self { subject: format!("uid={}", process.uid), process: Some(process), ..Self::default() }
    }

    /// Returns the memory that it takes, in bytes. The connection has the certificates, too.
    pub(crate) fn memory(&self) -> usize {
        let names = self.dns_names.iter().chain(&self.uris).chain([&self.subject]);
        let names: usize = names.map(|name| size_of::<String>() + name.len()).sum();
        names + 2 * self.certificates.iter().map(Bytes::len).sum::<usize>()
    }

    /// Returns a name for messages: the SPIFFE ID, else the first DNS name, else the subject.
    pub fn name(&self) -> &str {
        self.spiffe_id().or_else(|| self.dns_names.first().map(String::as_str)).unwrap_or(&self.subject)
    }

    /// Returns the SPIFFE ID, as in `spiffe://example.org/ns/shop/sa/kv`: the only URI, if it is one. A certificate with
    /// several URIs has none ([X.509-SVID](https://spiffe.io/docs/latest/spiffe-specs/x509-svid/), section 2).
    pub fn spiffe_id(&self) -> Option<&str> {
        match &self.uris[..] {
            [only] if only.starts_with("spiffe://") => Some(only),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_uri_is_the_spiffe_id() {
        let with = |uris: &[&str]| Identity {
            uris: uris.iter().map(|uri| (*uri).to_owned()).collect(),
            ..Identity::default()
        };
        assert_eq!(with(&["spiffe://a/b"]).spiffe_id(), Some("spiffe://a/b"));
        assert_eq!(with(&["https://a/b"]).spiffe_id(), None);
        assert_eq!(with(&["spiffe://a/b", "spiffe://a/c"]).spiffe_id(), None);
        assert_eq!(with(&[]).spiffe_id(), None);
    }
}
