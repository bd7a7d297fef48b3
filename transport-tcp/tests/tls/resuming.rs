//! Sessions that are resumed, so that a further connection needs no full handshake.

use farcall_core::transport::{Cipher, Key};

use super::log::Log;
use super::*;

/// Returns the kinds of the handshakes that were logged: full ones, and those that resume a session.
fn handshakes(log: &Log) -> Vec<String> {
    let kind = |line: &String| Some(line.split_once("handshake=Some(")?.1.split_once(')')?.0.to_owned());
    log.lines().iter().filter_map(kind).collect()
}

/// Returns the two ends of a session, each of which has the other's HELLO.
async fn established(near: &TlsClient, far: &TlsServer) -> [(Arc<TcpLink>, End); 2] {
    let (near, far) = links(Some(near), Some(far)).await;
    let greeted = async |link: Arc<TcpLink>| {
        let mut end = End::start(link.clone());
        end.send([greeting()]);
        assert!(matches!(end.next().await, Some(Event::Frame(..))));
        (link, end)
    };
    <[_; 2]>::from(tokio::join!(greeted(near), greeted(far)))
}

#[tokio::test]
async fn a_further_connection_resumes_the_session_with_keys_of_its_own() {
    let log = Log::default();
    let _listening = log.listen();
    let authority = Authority::new("ca");
    let near = client(&authority.issue("a", as_it_is));
    let far = server(&authority.issue("b", as_it_is));
    let mut earlier: Vec<Arc<dyn Key>> = Vec::new();
    for kind in ["Full", "Resumed", "Resumed"] {
        let before = handshakes(&log).len();
        let ends = established(&near, &far).await;
        assert_eq!(handshakes(&log)[before..], [kind, kind]);
        let others = ends.each_ref().map(|(link, _)| link.identity().unwrap().subject.clone());
        assert_eq!(others.each_ref().map(|subject| &**subject), ["CN=b", "CN=a"]);

        let keys = ends.each_ref().map(|(link, _)| link.secret().unwrap().key(Cipher::Aes256Gcm, b"a link"));
        let [client, server] = keys.map(Option::unwrap);
        let mut text = *b"what an RDMA link says";
        let tag = client.seal(1, &mut text).unwrap();
        let opens = |key: &Arc<dyn Key>| key.open(1, &mut [&text[..], &tag].concat());
        assert!(opens(&server), "{kind}");
        assert!(!earlier.iter().any(opens), "{kind}: the keys are those of an earlier connection");
        earlier.push(server);
    }
}
