//! A CA of the test's own, and the files that it makes.

#![allow(dead_code, clippy::allow_attributes, reason = "each test uses a part of it")]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
    date_time_ymd,
};

use crate::tls::TlsConfig;

/// Two hosts make certificates of one CA. Nobody else trusts this key.
const CA_KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgUEujwhPlhXjbu3hc
Xnba9fV3cUgG9oCHm+CJWVk5YhGhRANCAATpg4qTK2WmVAoBc1Rg7g5zLnEmvCcD
TFtflewt773M1RtruQvRJKeTYhBcujAhu29dVeGNRoSmD+dXPTE7hrQX
-----END PRIVATE KEY-----
";

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    dir: PathBuf,
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A change to a certificate before it is signed.
pub(crate) type Change = fn(&mut CertificateParams);

pub(crate) const SERIAL: u64 = 77;

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        Self::with_key(name, KeyPair::generate().unwrap())
    }

    /// Returns a CA that is the same on both hosts of a pair of VMs.
    pub(crate) fn of_both_hosts() -> Self {
        Self::with_key("ca", KeyPair::from_pem(CA_KEY).unwrap())
    }

    /// Returns a CA that is one with all others of this name and key.
    pub(crate) fn with_key(name: &str, key: KeyPair) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("farcall-tls-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem, dir }
    }

    /// Writes a file, and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Returns a configuration that trusts this CA, and has no certificate.
    pub(crate) fn trusted(&self) -> TlsConfig {
        let mut files = TlsConfig::default();
        files.ca = Some(self.write("ca.pem", &self.pem));
        files
    }

    /// Returns a configuration that trusts this CA, with a certificate from it.
    pub(crate) fn issue(&self, name: &str, change: Change) -> TlsConfig {
        let mut params = CertificateParams::new(["localhost".into(), "127.0.0.1".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let uri = format!("spiffe://example.org/{name}");
        params.subject_alt_names.push(SanType::URI(Ia5String::try_from(uri).unwrap()));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let mut files = self.trusted();
        files.cert = Some(self.write(&format!("{name}.pem"), &certificate.pem()));
        files.key = Some(self.write(&format!("{name}.key"), &key.serialize_pem()));
        files
    }

    /// Writes the list of the certificates that were revoked, by their serial numbers, in place of the list before.
    pub(crate) fn revoke(&self, serials: &[u64]) -> PathBuf {
        let one = |&serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2124, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(one).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        self.write("revoked.pem", &list.signed_by(&self.issuer).unwrap().pem().unwrap())
    }
}

pub(crate) fn as_it_is(_: &mut CertificateParams) {}

/// The address of host 1 of a pair of VMs is another name.
pub(crate) fn for_host_1(params: &mut CertificateParams) {
    params.subject_alt_names.push(SanType::IpAddress([10, 99, 0, 1].into()));
}

pub(crate) fn expired(params: &mut CertificateParams) {
    params.not_after = date_time_ymd(2024, 1, 1);
}

pub(crate) fn not_yet_valid(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2124, 1, 1);
}

pub(crate) fn for_db1(params: &mut CertificateParams) {
    params.subject_alt_names = vec![SanType::DnsName(Ia5String::try_from("db1").unwrap())];
}

pub(crate) fn for_clients(params: &mut CertificateParams) {
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
}

pub(crate) fn for_servers(params: &mut CertificateParams) {
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
}

pub(crate) fn with_serial(params: &mut CertificateParams) {
    params.serial_number = Some(SerialNumber::from(SERIAL));
}
