use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rustls::pki_types::{PrivateKeyDer, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, HandshakeKind, RootCertStore, ServerConfig};

use super::*;
use crate::tls::{TlsClient, TlsServer};

/// A clock that stands still until it is set, in seconds since 1970.
#[derive(Debug)]
struct Clock(AtomicU64);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.load(Ordering::Relaxed))))
    }
}

const DAY: u64 = 86_400;
/// The first day of 2030, on which the certificates expire.
const EXPIRY: u64 = 1_893_456_000;

/// A client and a server that know each other by certificates, each with a clock.
struct Sides {
    client: TlsClient,
    server: TlsServer,
    clocks: [Arc<Clock>; 2],
}

impl Sides {
    fn new() -> Self {
        let clocks = [(); 2].map(|()| Arc::new(Clock(AtomicU64::new(EXPIRY - DAY))));
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["db1".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let roots = Arc::new(roots);
        let identity =
            || (vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
                .build();
        let (chain, private) = identity();
        let server = ServerConfig::builder_with_details(provider.clone(), clocks[1].clone())
            .with_safe_default_protocol_versions();
        let server = server.unwrap().with_client_cert_verifier(verifier.unwrap());
        let server = TlsServer::new(server.with_single_cert(chain, private).unwrap());
        let (chain, private) = identity();
        let client = ClientConfig::builder_with_details(provider, clocks[0].clone())
            .with_safe_default_protocol_versions();
        let client = client.unwrap().with_root_certificates(roots);
        let client = TlsClient::new(client.with_client_auth_cert(chain, private).unwrap());
        Self { client, server, clocks }
    }

    /// Begins a session, and ends its handshake. Returns its ends, and how it failed at client and server.
    fn shake_hands(&self) -> ([Session; 2], [Result<(), String>; 2]) {
        let ends = [self.client.session("db1").unwrap(), self.server.session().unwrap()];
        let mut met = [Ok(()), Ok(())];
        loop {
            let mut moved = 0;
            for (from, to) in [(0, 1), (1, 0)] {
                let mut records = Vec::new();
                while ends[from].lock().connection.wants_write() {
                    ends[from].lock().connection.write_tls(&mut records).unwrap();
                }
                if met[to].is_ok() {
                    moved += records.len();
                    met[to] = ends[to].take_in(&records);
                }
            }
            if moved == 0 {
                return (ends, met);
            }
        }
    }
}

impl Session {
    fn take_in(&self, records: &[u8]) -> Result<(), String> {
        let mut state = self.lock();
        state.incoming.extend_from_slice(records);
        while !state.incoming.is_empty() {
            state.decrypt()?;
            self.note_handshake(&mut state)?;
        }
        Ok(())
    }

    fn kind(&self) -> Option<HandshakeKind> {
        self.lock().connection.handshake_kind()
    }
}

#[test]
fn a_session_is_resumed_and_the_identities_stay() {
    let sides = Sides::new();
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed] {
        let (ends, met) = sides.shake_hands();
        assert_eq!(met, [Ok(()), Ok(())]);
        for end in &ends {
            assert_eq!(end.kind(), Some(kind));
            assert_eq!(end.identity().unwrap().dns_names, ["db1"]);
        }
    }
}

#[test]
fn a_server_resumes_no_session_of_a_certificate_that_has_expired() {
    let sides = Sides::new();
    for _ in 0..2 {
        assert_eq!(sides.shake_hands().1, [Ok(()), Ok(())]);
    }
    sides.clocks[1].0.store(EXPIRY + 3 * DAY, Ordering::Relaxed);
    let ([_, server], [_, at_server]) = sides.shake_hands();
    let why = at_server.unwrap_err();
    assert!(why.contains("this side refused") && why.contains("expired 3 days ago"), "{why}");
    assert!(server.kind() == Some(HandshakeKind::Resumed) && server.identity().is_none());
    // The next handshake is a full one, which says it to the client as well.
    let ([_, server], [at_client, at_server]) = sides.shake_hands();
    let (told, why) = (at_client.unwrap_err(), at_server.unwrap_err());
    assert_ne!(server.kind(), Some(HandshakeKind::Resumed));
    assert!(why.contains("expired 3 days ago"), "{why}");
    assert!(told.contains("this side's certificate has expired"), "{told}");
}

#[test]
fn a_client_resumes_no_session_of_a_certificate_that_has_expired() {
    let sides = Sides::new();
    assert_eq!(sides.shake_hands().1, [Ok(()), Ok(())]);
    sides.clocks[0].0.store(EXPIRY + DAY, Ordering::Relaxed);
    let ([client, _], [at_client, _]) = sides.shake_hands();
    let why = at_client.unwrap_err();
    assert!(why.contains("this side refused") && why.contains("expired 1 days ago"), "{why}");
    assert!(client.identity().is_none());
}

#[test]
fn a_record_that_has_come_in_part_is_noticed_wherever_it_is_cut() {
    let ([client, server], _) = Sides::new().shake_hands();
    let records = |text: &[u8]| {
        let (mut state, mut records) = (client.lock(), Vec::new());
        state.connection.writer().write_all(text).unwrap();
        while state.connection.wants_write() {
            state.connection.write_tls(&mut records).unwrap();
        }
        records
    };
    for at in 0..40 {
        // The first record comes whole, and the second one in two parts.
        let (mut whole, second) = (records(b"a text"), records(b"another text"));
        let (begin, rest) = second.split_at(at.min(second.len()));
        whole.extend_from_slice(begin);
        server.take_in(&whole).unwrap();
        assert_eq!(server.lock().record.is_amid(), !begin.is_empty() && !rest.is_empty(), "{at}");
        server.take_in(rest).unwrap();
        assert!(!server.lock().record.is_amid(), "{at}");
    }
}
