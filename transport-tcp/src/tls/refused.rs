//! The name of a certificate that was refused.
//!
//! rustls says why it refuses a certificate, and not which one. It asks the verifier within the call that returns the refusal, so the
//! verifier leaves the name to the thread that has made this call.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::identity::named;

thread_local! {
    static REFUSED: Cell<Option<String>> = const { Cell::new(None) };
}

/// Takes the name of the certificate that this thread has just refused. `None`: the verifier is the application's own.
pub(super) fn take() -> Option<String> {
    REFUSED.take()
}

/// A verifier that decides as this one does, and leaves the name of a certificate that it refuses.
#[derive(Debug)]
pub(super) struct Naming<V: ?Sized>(pub(super) Arc<V>);

fn leave_name<T>(certificate: &CertificateDer<'_>, verified: Result<T, Error>) -> Result<T, Error> {
    verified.inspect_err(|_| REFUSED.set(Some(named(certificate))))
}

/// The methods of a verifier that those of servers and of clients have alike.
macro_rules! verify_as_before {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            own: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            leave_name(own, self.0.verify_tls12_signature(message, own, signed))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            own: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            leave_name(own, self.0.verify_tls13_signature(message, own, signed))
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.supported_verify_schemes()
        }

        fn requires_raw_public_keys(&self) -> bool {
            self.0.requires_raw_public_keys()
        }
    };
}

impl<V: ServerCertVerifier + ?Sized> ServerCertVerifier for Naming<V> {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        leave_name(own, self.0.verify_server_cert(own, intermediates, server_name, ocsp_response, now))
    }

    verify_as_before!();

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        self.0.root_hint_subjects()
    }
}

impl<V: ClientCertVerifier + ?Sized> ClientCertVerifier for Naming<V> {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        leave_name(own, self.0.verify_client_cert(own, intermediates, now))
    }

    verify_as_before!();
}
