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

/// The most characters of a name that messages have.
const SHOWN: usize = 100;

/// Returns the names of a certificate and of its issuer, for people. Anyone may have made it, so the names are quoted.
pub(super) fn named(certificate: &CertificateDer<'_>) -> String {
    let Ok(certificate) = Certificate::from_der(certificate) else { return "which can't be read".into() };
    let content = certificate.tbs_certificate();
    let [subject, issuer] = [content.subject(), content.issuer()].map(|name| {
        let shown: String = name.to_string().escape_debug().take(SHOWN).collect();
        if shown.is_empty() { "without a name".to_owned() } else { format!("\"{shown}\"") }
    });
    format!("{subject}, signed in the name of {issuer}")
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

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn signed(name: Option<&str>) -> CertificateDer<'static> {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(name) = name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().into()
    }

    #[test]
    fn names_that_strangers_choose_are_short_and_move_no_cursor() {
        assert_eq!(named(&signed(Some("db1"))), "\"CN=db1\", signed in the name of \"CN=db1\"");
        assert_eq!(named(&signed(None)), "without a name, signed in the name of without a name");
        let hostile = named(&signed(Some(&format!("\u{1b}[2J\r\n{}", "\u{7f}".repeat(5000)))));
        assert!(hostile.len() < 300 && hostile.chars().all(|c| !c.is_control()), "{hostile:?}");
        assert_eq!(named(&CertificateDer::from(vec![1, 2, 3])), "which can't be read");
    }
}
