//! Somebody on the TCP connection of two hosts with RDMA devices, who changes or withholds what sets RDMA up. TLS makes that an error, and
//! never a session that goes by TCP although RDMA was asked for.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../../tests/authority/mod.rs"]
mod authority;
mod near;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farcall_core::client::{Connector, RawChannel};
use farcall_core::config::Policy;
use farcall_core::server::ServerCore;
use farcall_core::status::{Code, Result, Status};
use farcall_core::transport::{BoxFuture, Link};
use farcall_rdma::RdmaConfig;
use farcall_rdma::testing::sim::Fabric;
use farcall_tcp::tls::{self, TlsClient, TlsServer};
use farcall_tcp::{Acceptor, TcpConfig, connect_tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use authority::{Authority, as_it_is};

/// A guard against hangs.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Client = 0,
    Server = 1,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    /// One bit is changed.
    Changed,
    /// It does not arrive. Those that follow do.
    Withheld,
    /// It arrives twice.
    Repeated,
    /// It arrives after the one that follows it.
    Late,
}

/// A change to one of the records that a side sends.
#[derive(Clone, Copy, Debug)]
struct Edit {
    from: Side,
    record: usize,
    how: How,
}

/// Passes the records of one side on. `edit` has the number of one of them. Counts them.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    edit: Option<(usize, How)>,
    count: &AtomicUsize,
) -> std::io::Result<()> {
    let mut late = None;
    loop {
        let mut record = vec![0; 5];
        from.read_exact(&mut record).await?;
        record.resize(5 + usize::from(u16::from_be_bytes([record[3], record[4]])), 0);
        from.read_exact(&mut record[5..]).await?;
        let number = count.fetch_add(1, Ordering::Relaxed);
        match edit.filter(|(edited, _)| *edited == number).map(|(_, how)| how) {
            None => to.write_all(&record).await?,
            Some(How::Changed) => {
                let middle = 5 + (record.len() - 5) / 2;
                record[middle] ^= 1;
                to.write_all(&record).await?;
            }
            Some(How::Withheld) => {}
            Some(How::Repeated) => to.write_all(&[&record[..], &record].concat()).await?,
            Some(How::Late) => {
                late = Some(record);
                continue;
            }
        }
        if let Some(late) = late.take() {
            to.write_all(&late).await?;
        }
    }
}

/// A client's way to its server, which leads by the one in the middle.
struct Through {
    target: String,
    tls: TlsClient,
}

impl Connector for Through {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let (target, tls) = (self.target.clone(), self.tls.clone());
        Box::pin(async move {
            let config = TcpConfig::default();
            Ok(connect_tls(&target, "localhost", &config, &tls, PATIENCE).await? as Arc<dyn Link>)
        })
    }

    fn target(&self) -> String {
        self.target.clone()
    }
}

struct Scene {
    near: TlsClient,
    far: TlsServer,
}

impl Scene {
    fn new() -> Self {
        let authority = Authority::new("ca");
        let near = TlsClient::from_files(&authority.issue("a", as_it_is)).unwrap();
        let far = TlsServer::from_files(&authority.issue("b", as_it_is)).unwrap();
        Self { near, far }
    }

    /// Connects. Returns the transport that the session goes by, or why there is none, and how many records each side has sent.
    async fn connect(
        &self,
        policy: Policy,
        edit: Option<Edit>,
    ) -> (std::result::Result<&'static str, Status>, [usize; 2]) {
        let fabric = Fabric::new(2);
        let [mut near, far] = [1, 2].map(|n| {
            let mut settings = near::settings(&fabric, n, policy, RdmaConfig::default());
            // A record that does not come is waited for.
            let waits = edit.is_some_and(|edit| matches!(edit.how, How::Withheld | How::Late));
            settings.liveness.connect_ms = if waits { 500 } else { 60_000 };
            settings
        });
        near.liveness.retry_ms = 0;
        let host = ServerCore::new(Vec::new(), far).unwrap();
        let acceptor = Acceptor::bind("127.0.0.1:0", TcpConfig::default()).await.unwrap();
        let target = acceptor.local_addr().unwrap();
        let acceptor = acceptor.with_tls(self.far.clone());
        let serve = async { host.serve(acceptor.accept().await) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let through = listener.local_addr().unwrap().to_string();
        let counts = [(); 2].map(|()| AtomicUsize::new(0));
        let middle = async {
            let near = listener.accept().await.unwrap().0;
            // Nobody can connect a second time.
            drop(listener);
            let (from_near, to_near) = near.into_split();
            let (from_far, to_far) = TcpStream::connect(target).await.unwrap().into_split();
            let edit_of = |from| edit.filter(|edit| edit.from == from).map(|edit| (edit.record, edit.how));
            tokio::join!(
                async { drop(pass(from_near, to_far, edit_of(Side::Client), &counts[0]).await) },
                async { drop(pass(from_far, to_near, edit_of(Side::Server), &counts[1]).await) },
            );
        };
        let caller = RawChannel::new(Through { target: through, tls: self.near.clone() }, near);
        let connect = async {
            let connected = caller.connection().await.map(|connection| connection.transport().name);
            (connected, counts.each_ref().map(|count| count.load(Ordering::Relaxed)))
        };
        let together = async {
            let others = async {
                tokio::join!(serve, middle);
                std::future::pending::<()>().await;
            };
            tokio::select! {
                outcome = connect => outcome,
                () = others => unreachable!("it is pending"),
            }
        };
        tokio::time::timeout(PATIENCE, together).await.expect("neither a session nor an error")
    }
}

/// How many records the client and the server send until the session goes by RDMA. Client: ClientHello, a change of ciphers that means
/// nothing, its certificate, HELLO, OFFER. Server: ServerHello, the change, its certificate, tickets, HELLO, ANSWER.
const SET_UP: [usize; 2] = [5, 6];

/// All edits of this kind.
fn edits(how: How) -> impl Iterator<Item = Edit> {
    let of = move |from: Side| (0..SET_UP[from as usize]).map(move |record| Edit { from, record, how });
    [Side::Client, Side::Server].into_iter().flat_map(of)
}

#[tokio::test]
async fn a_session_whose_set_up_is_changed_ends_in_words() {
    let scene = Scene::new();
    for policy in [Policy::Rdma, Policy::Auto] {
        let (transport, sent) = scene.connect(policy, None).await;
        assert_eq!(transport.unwrap(), "rdma");
        assert!(sent.iter().zip(SET_UP).all(|(&sent, least)| sent >= least), "{sent:?}");
        for edit in edits(How::Changed) {
            let error = scene.connect(policy, Some(edit)).await.0.unwrap_err();
            assert_eq!(error.code(), Code::Unavailable, "{policy:?} {edit:?}: {error}");
            assert!(error.message().contains("TLS: "), "{policy:?} {edit:?}: {error}");
        }
    }
}

#[tokio::test]
async fn rdma_that_is_asked_for_is_not_replaced_by_tcp() {
    let scene = Scene::new();
    for how in [How::Withheld, How::Repeated, How::Late] {
        let mut refused = 0;
        for edit in edits(how) {
            match scene.connect(Policy::Rdma, Some(edit)).await.0 {
                // A change of ciphers may come twice, or not at all.
                Ok(transport) => assert_eq!(transport, "rdma", "{edit:?}"),
                Err(error) => {
                    let said = error.message();
                    assert!(
                        said.contains("TLS: ") || said.contains("liveness.connect_ms"),
                        "{edit:?}: {error}"
                    );
                    refused += 1;
                }
            }
        }
        assert!(refused >= SET_UP[0] + SET_UP[1] - 2, "{how:?}: {refused}");
    }
}
