//! Failures of TLS in words: which side refused what, and what to do.

use farcall_core::explain::{Explanation, sentence};
use farcall_core::status::Blame;
use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible, PeerMisbehaved};

/// The session was established, and cut off without `close_notify`.
pub(super) const CUT_OFF: &str = "TLS: the connection was cut off";

/// The peer ended the connection during the handshake, without an alert.
pub(super) const GAVE_UP: &str =
    "TLS: the peer ended the connection during the handshake, and did not say why";

/// The peer has agreed to another protocol, or to none.
pub(super) const NOT_FARCALL: &str = "TLS: the peer does not speak farcall: it has not agreed to the ALPN protocol `farcall/1`; is the port right?";

/// Describes a peer whose first bytes are no TLS record. `None` if they may be one (RFC 8446, section 5.1).
pub(super) fn not_tls(begin: &[u8]) -> Option<String> {
    let first = *begin.first()?;
    let is_record = (20..=23).contains(&first);
    let seen = begin[..begin.len().min(8)].escape_ascii();
    (!is_record).then(|| {
        format!(
            "the peer does not speak TLS: its first bytes are `{seen}`; a farcall peer without TLS needs a [tls] section, \
             and a client an address with `+tls`"
        )
    })
}

/// Describes a failure of the handshake or of a session. `refused`: the name of the certificate that this side has refused, if it is
/// known.
pub(super) fn in_words(error: &Error, refused: Option<&str>) -> String {
    match error {
        Error::InvalidCertificate(why) => {
            let which = refused.map(|name| format!(" ({name})")).unwrap_or_default();
            format!("TLS: this side refused the peer's certificate{which}: {}", certificate(why))
        }
        Error::NoCertificatesPresented => {
            "TLS: this side refused the peer, which has presented no certificate: set tls.cert and tls.key there".into()
        }
        Error::AlertReceived(alert) => refused_by_peer(*alert),
        Error::NoApplicationProtocol
        | Error::PeerMisbehaved(PeerMisbehaved::SelectedUnofferedApplicationProtocol) => NOT_FARCALL.into(),
        Error::PeerMisbehaved(PeerMisbehaved::AttemptedDowngradeToTls12WhenTls13IsSupported) => {
            "TLS: the handshake was changed on its way: the peer has TLS 1.3, and was not told that this side has it".into()
        }
        Error::PeerIncompatible(PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig)
        | Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled)
        | Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic) => {
            "TLS: both sides have no version in common; farcall speaks TLS 1.3 and 1.2".into()
        }
        Error::DecryptError => "TLS: a record was changed on its way, or its peer is broken: it can't be decrypted".into(),
        other => format!("TLS: {other}"),
    }
}

fn certificate(why: &CertificateError) -> String {
    use CertificateError as E;
    match why {
        E::Expired => "it has expired".into(),
        E::ExpiredContext { time, not_after } => {
            let days = time.as_secs().saturating_sub(not_after.as_secs()) / 86_400;
            format!("it expired {days} days ago, or a clock is wrong")
        }
        E::NotValidYet | E::NotValidYetContext { .. } => "it is not valid yet, or a clock is wrong".into(),
        E::UnknownIssuer => "it was not signed by any CA in tls.ca".into(),
        E::BadSignature => "its signature is wrong: it was changed, or a CA in tls.ca has the signer's name and another key".into(),
        E::NotValidForName => "it is for another name; set tls.server_name if that is right".into(),
        E::NotValidForNameContext { expected, presented } => {
            format!(
                "it is for {}, and not for {}; connect to that name, or set tls.server_name",
                if presented.is_empty() { "no name".into() } else { presented.join(", ") },
                expected.to_str()
            )
        }
        E::Revoked => "it was revoked, says a list in tls.crl".into(),
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "it was not made for this purpose; its extended key usage must allow client or server authentication".into()
        }
        E::ApplicationVerificationFailure => "the application's verifier refused it".into(),
        other => other.to_string(),
    }
}

/// An alert by which a peer ends a handshake (RFC 8446, section 6.2).
struct Refusal {
    alert: AlertDescription,
    /// The name that the RFC gives it.
    name: &'static str,
    why: &'static str,
    remedy: &'static str,
}

const fn refusal(
    alert: AlertDescription,
    name: &'static str,
    why: &'static str,
    remedy: &'static str,
) -> Refusal {
    Refusal { alert, name, why, remedy }
}

const NOT_ACCEPTED: &str = "this side's certificate is not what it accepts: a wrong name, purpose or form";
const ACCEPTED: &str = "compare tls.cert of this side with what the peer asks for; its log says more";
const NO_CIPHER: &str = "both sides have no cipher suite in common";
const CHANGED: &str = "what it received was changed on its way";

/// The alerts that tell a person something: one table for messages and for `farcall explain`.
#[rustfmt::skip]
const REFUSALS: &[Refusal] = &[
    refusal(AlertDescription::CertificateRequired, "certificate_required", "it wants a certificate", "set tls.cert and tls.key on this side"),
    refusal(AlertDescription::UnknownCA, "unknown_ca", "this side's certificate was not signed by any CA that it trusts (its tls.ca)",
        "add the signer to tls.ca there, or use a certificate of a CA that is in it"),
    refusal(AlertDescription::CertificateExpired, "certificate_expired", "this side's certificate has expired, or a clock is wrong",
        "renew the certificate in tls.cert, and compare the clocks"),
    refusal(AlertDescription::CertificateRevoked, "certificate_revoked", "this side's certificate was revoked", "use another one in tls.cert"),
    refusal(AlertDescription::BadCertificate, "bad_certificate", NOT_ACCEPTED, ACCEPTED),
    refusal(AlertDescription::UnsupportedCertificate, "unsupported_certificate", NOT_ACCEPTED, ACCEPTED),
    refusal(AlertDescription::CertificateUnknown, "certificate_unknown", NOT_ACCEPTED, ACCEPTED),
    refusal(AlertDescription::AccessDenied, "access_denied", "it denied access", "see the rules and the log there"),
    refusal(AlertDescription::NoApplicationProtocol, "no_application_protocol", "it does not speak farcall (ALPN `farcall/1`)",
        "see whether the port is right"),
    refusal(AlertDescription::ProtocolVersion, "protocol_version", "both sides have no TLS version in common", "allow TLS 1.3 or 1.2 on both"),
    refusal(AlertDescription::HandshakeFailure, "handshake_failure", NO_CIPHER, "use crypto providers that have one in common"),
    refusal(AlertDescription::InsufficientSecurity, "insufficient_security", NO_CIPHER, "use crypto providers that have one in common"),
    refusal(AlertDescription::UnrecognisedName, "unrecognized_name", "it has no certificate for the name that this side wants",
        "connect to a name that it has, or set tls.server_name"),
    refusal(AlertDescription::DecryptError, "decrypt_error", CHANGED, "look for a device or a program between both that changes bytes"),
    refusal(AlertDescription::BadRecordMac, "bad_record_mac", CHANGED, "look for a device or a program between both that changes bytes"),
];

fn refused_by_peer(alert: AlertDescription) -> String {
    match REFUSALS.iter().find(|refusal| refusal.alert == alert) {
        Some(Refusal { name, why, remedy, .. }) => {
            format!("TLS: the peer refused this side ({name}): {why}; {remedy}")
        }
        None => format!("TLS: the peer ended the session with the alert {alert:?}"),
    }
}

/// Returns the alerts by which a peer refuses this side, for programs that explain codes.
pub fn explanations() -> Vec<Explanation> {
    let explained = |Refusal { alert, name, why, remedy }: &Refusal| {
        let cause = format!("The peer ended the TLS handshake: {why}.");
        Explanation::new("TLS alert", name, &cause, &sentence(remedy))
            .numbered(u8::from(*alert).into())
            .blaming(Blame::Environment)
    };
    REFUSALS.iter().map(explained).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_is_named() {
        let ours = in_words(&Error::InvalidCertificate(CertificateError::UnknownIssuer), Some("CN=a"));
        assert!(
            ours.contains("this side refused the peer's certificate (CN=a)") && ours.contains("tls.ca"),
            "{ours}"
        );
        let theirs = in_words(&Error::AlertReceived(AlertDescription::UnknownCA), None);
        assert!(theirs.contains("the peer refused this side") && theirs.contains("tls.ca"), "{theirs}");
        let explained =
            explanations().into_iter().find(|explanation| explanation.number == Some(48)).unwrap();
        assert_eq!(explained.name, "unknown_ca");
        assert!(explained.cause.contains("not signed by any CA that it trusts"), "{}", explained.cause);
        assert_eq!(not_tls(b"\x16\x03\x01"), None);
        assert_eq!(not_tls(b""), None);
        assert!(not_tls(b"GET / HTTP").unwrap().contains("`GET / HT`"));
    }
}
