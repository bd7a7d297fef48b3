//! Files that change while a process runs: certificates, keys, lists of those that were revoked.

use super::authority::SERIAL;
use super::*;

/// Lets files become due for a look.
async fn become_due(files: &TlsConfig) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(files.reload_s)).await;
    tokio::time::resume();
}

/// The certificates that a client is shown.
async fn presented(near: &TlsClient, far: &TlsServer) -> Vec<bytes::Bytes> {
    met(Some(near), Some(far)).await[0].clone().unwrap().unwrap().certificates.clone()
}

#[tokio::test]
async fn files_are_read_again_when_that_is_asked_for() {
    let authority = Authority::new("ca");
    let near = client(&authority.issue("a", as_it_is));
    let far = server(&authority.issue("b", as_it_is));
    let before = presented(&near, &far).await;
    assert_eq!(presented(&near, &far).await, before);
    // A new certificate in the old place. The client could resume its session, and may not.
    authority.issue("b", as_it_is);
    far.reload().unwrap();
    let after = presented(&near, &far).await;
    assert_ne!(after, before);
    // A key that can't be used is not used.
    authority.write("b.key", "nonsense");
    let error = far.reload().unwrap_err().to_string();
    assert!(error.starts_with("tls.key: ") && error.contains("b.key"), "{error}");
    assert_eq!(presented(&near, &far).await, after);
}

#[tokio::test]
async fn files_that_have_changed_count_for_the_connection_that_finds_it() {
    let authority = Authority::new("ca");
    let near = client(&authority.issue("a", as_it_is));
    let files = authority.issue("b", as_it_is);
    let far = server(&files);
    let before = presented(&near, &far).await;
    authority.issue("b", for_servers);
    assert_eq!(presented(&near, &far).await, before, "it is not time to look yet");
    become_due(&files).await;
    let after = presented(&near, &far).await;
    assert_ne!(after, before);
    // Half of a new pair: the old one counts until the other half is there.
    authority.write("b.key", "nonsense");
    become_due(&files).await;
    assert_eq!(presented(&near, &far).await, after);
    authority.issue("b", for_servers);
    become_due(&files).await;
    assert_ne!(presented(&near, &far).await, after);
}

/// The ways by which a running process learns of a list that has grown.
#[derive(Clone, Copy, Debug)]
enum Learns {
    Reload,
    Looks,
}

const REVOKED: &str = "it was revoked, says a list in tls.crl";

#[tokio::test]
async fn a_server_refuses_a_client_that_is_revoked_while_it_runs() {
    for learns in [Learns::Reload, Learns::Looks] {
        let authority = Authority::new("ca");
        let near = client(&authority.issue("a", with_serial));
        let other = client(&authority.issue("c", as_it_is));
        let mut files = authority.issue("b", as_it_is);
        files.crl = Some(authority.revoke(&[]));
        let far = server(&files);
        // The list is empty, and then it has somebody else. The client has a session that it could resume.
        for list in [&[][..], &[SERIAL + 1]] {
            authority.revoke(list);
            far.reload().unwrap();
            let both = met(Some(&near), Some(&far)).await;
            assert!(both.iter().all(Result::is_ok), "{both:?}");
        }
        authority.revoke(&[SERIAL + 1, SERIAL]);
        match learns {
            Learns::Reload => far.reload().unwrap(),
            Learns::Looks => become_due(&files).await,
        }
        let [at_client, at_server] = met(Some(&near), Some(&far)).await.map(Result::unwrap_err);
        assert!(at_server.contains(REVOKED), "{learns:?}: {at_server}");
        assert!(at_client.contains("this side's certificate was revoked"), "{learns:?}: {at_client}");
        assert!(met(Some(&other), Some(&far)).await[1].is_ok());
    }
}

#[tokio::test]
async fn a_client_refuses_a_server_that_is_revoked_while_it_runs() {
    for learns in [Learns::Reload, Learns::Looks] {
        let authority = Authority::new("ca");
        let far = server(&authority.issue("b", with_serial));
        let mut files = authority.issue("a", as_it_is);
        files.crl = Some(authority.revoke(&[]));
        let near = client(&files);
        assert!(met(Some(&near), Some(&far)).await[0].is_ok());
        authority.revoke(&[SERIAL]);
        match learns {
            Learns::Reload => near.reload().unwrap(),
            Learns::Looks => become_due(&files).await,
        }
        let at_client = met(Some(&near), Some(&far)).await[0].clone().unwrap_err();
        assert!(at_client.contains(REVOKED), "{learns:?}: {at_client}");
    }
}

/// A file that can be opened and never ends being read, as on a network file system that hangs.
#[cfg(unix)]
#[tokio::test]
async fn files_that_hang_do_not_keep_connections_out() {
    let authority = Authority::new("ca");
    let near = client(&authority.issue("a", as_it_is));
    let files = authority.issue("b", as_it_is);
    let far = server(&files);
    let before = presented(&near, &far).await;
    let cert = files.cert.clone().unwrap();
    std::fs::remove_file(&cert).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&cert).status().unwrap();
    assert!(made.success());
    become_due(&files).await;
    let after = presented(&near, &far).await;
    // Somebody writes at last, and the thread that reads comes to its end.
    std::fs::write(&cert, "nothing").unwrap();
    assert_eq!(after, before);
}
