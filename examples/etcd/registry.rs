//! Servers that are found in etcd: each puts its address there for as long as it lives, and clients watch the addresses of a service.

use std::io;
use std::time::Duration;

use farcall::{Endpoint, Status, Stream, stream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

use super::etcd::{Etcd, Listed};

/// The time for which a server stays in the list that has died without a word.
const LEASE: Duration = Duration::from_secs(6);

/// The pause between two times that a server says it is there, and after a failed request.
const PAUSE: Duration = Duration::from_secs(1);

fn prefix(service: &str) -> String {
    format!("/farcall/{service}/")
}

/// Puts a server into the list, and keeps it there. Dropping this leaves it there until its lease is over.
pub struct Registered {
    leave: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Registered {
    /// Registers a server. Returns as soon as clients can find it.
    pub async fn new(etcd: &Etcd, service: &str, address: &str) -> io::Result<Self> {
        let (etcd, key, address) = (etcd.clone(), prefix(service) + address, address.to_owned());
        let mut lease = put(&etcd, &key, &address).await?;
        let (leave, mut left) = oneshot::channel();
        let task = tokio::spawn(async move {
            loop {
                tokio::select! {
                    left = &mut left => {
                        if left.is_ok()
                            && let Err(error) = blocking(&etcd, move |etcd| etcd.end_lease(lease)).await
                        {
                            eprintln!("{key}: etcd can't be told that the server leaves: {error}");
                        }
                        return;
                    }
                    () = sleep(PAUSE) => {}
                }
                if blocking(&etcd, move |etcd| etcd.keep_alive(lease)).await.is_ok() {
                    continue;
                }
                // etcd has lost the lease, or was away for too long.
                match put(&etcd, &key, &address).await {
                    Ok(another) => lease = another,
                    Err(error) => eprintln!("{key} can't be put into etcd: {error}"),
                }
            }
        });
        Ok(Self { leave, task })
    }

    /// Takes the server out of the list. Its clients hear of it, and call others. Then drain it.
    pub async fn leave(self) {
        // Neither can fail: the task waits for this, and does not panic.
        let _ = self.leave.send(());
        let _ = self.task.await;
    }
}

/// Puts an address for as long as a lease lasts. Returns the lease.
async fn put(etcd: &Etcd, key: &str, address: &str) -> io::Result<i64> {
    let (key, address) = (key.to_owned(), address.to_owned());
    blocking(etcd, move |etcd| {
        let lease = etcd.begin_lease(LEASE)?;
        etcd.put(&key, &address, lease).inspect_err(|_| {
            // It may be there although the answer was lost. If this fails, too, the lease ends soon.
            let _ = etcd.end_lease(lease);
        })?;
        Ok(lease)
    })
    .await
}

/// Returns the servers of a service, and again whenever they change, for [`ChannelBuilder::discover`](farcall::ChannelBuilder::discover).
/// The channel keeps the last ones while etcd can't be reached.
pub fn servers(
    etcd: Etcd,
    service: &str,
) -> impl Stream<Item = Result<Vec<Endpoint>, Status>> + Send + 'static {
    let prefix = prefix(service);
    stream::generate(async move |servers| {
        loop {
            let listed = {
                let prefix = prefix.clone();
                blocking(&etcd, move |etcd| etcd.list(&prefix)).await
            };
            let waited = match listed {
                Ok(listed) => {
                    servers.send(listed.values.iter().map(Endpoint::new).collect()).await;
                    wait(&etcd, &prefix, listed).await
                }
                Err(error) => Err(error),
            };
            if let Err(error) = waited {
                eprintln!("{prefix}: etcd can't be asked: {error}");
                sleep(PAUSE).await;
            }
        }
    })
}

async fn wait(etcd: &Etcd, prefix: &str, listed: Listed) -> io::Result<()> {
    let prefix = prefix.to_owned();
    blocking(etcd, move |etcd| etcd.wait(&prefix, &listed)).await
}

/// Asks etcd on a thread that may block.
async fn blocking<T: Send + 'static>(
    etcd: &Etcd,
    ask: impl FnOnce(&Etcd) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let etcd = etcd.clone();
    spawn_blocking(move || ask(&etcd)).await.map_err(io::Error::other)?
}
