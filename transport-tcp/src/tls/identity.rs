//! The identity in a certificate that rustls has verified.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use farcall_core::transport::Identity;
use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// Returns the identity of the peer with these certificates, its own first. `None` if there are none.
pub(super) fn identity(chain: &[CertificateDer<'_>]) -> Option<Identity> {
    let mut identity = Identity::new(chain.iter().map(|one| Bytes::copy_from_slice(one)).collect());
    // rustls has parsed it. A form that only this parser does not know has no names here.
    if let Ok(certificate) = Certificate::from_der(chain.first()?) {
        add_names(&certificate, &mut identity);
    }
    Some(identity)
}

/// Returns the time since 1970 until which a certificate is valid. `None` if only rustls can read it.
pub(super) fn not_after(certificate: &CertificateDer<'_>) -> Option<Duration> {
    let certificate = Certificate::from_der(certificate).ok()?;
    Some(certificate.tbs_certificate().validity().not_after.to_unix_duration())
}

fn add_names(certificate: &Certificate, identity: &mut Identity) {
    let content = certificate.tbs_certificate();
    identity.subject = content.subject().to_string();
    let Ok(Some((_, names))) = content.get_extension::<SubjectAltName>() else { return };
    for name in names.0 {
        match name {
            GeneralName::DnsName(name) => identity.dns_names.push(name.to_string()),
            GeneralName::UniformResourceIdentifier(uri) => identity.uris.push(uri.to_string()),
            GeneralName::IpAddress(address) => identity.ip_addresses.extend(ip_address(address.as_bytes())),
            _ => {}
        }
    }
}

/// Four or sixteen bytes, as RFC 5280, section 4.2.1.6 has them.
fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}
