//! The servers of a channel from a source of tower's, which names changes.

use std::fmt::Display;
use std::pin::Pin;
use std::task::{Context, Poll};

use farcall_core::status::{Code, Status};
use tower::discover::{Change, Discover};

use super::{Channel, ChannelBuilder, Endpoint};
use crate::{ConfigError, Stream};

impl ChannelBuilder {
    /// Returns a channel that balances its calls over the servers of a [`Discover`], tower's source of changes. The channel chooses servers
    /// by its own policy, as with [`discover`](Self::discover), which takes whole lists.
    ///
    /// A key that is inserted again has the new server from then on. If its address is the same, the server keeps its connections and
    /// its `tls`. Changes that come together take effect together. Calls fail with an error of the source while there are no servers. The
    /// channel goes on asking the source after an error.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use farcall::{Channel, Endpoint, stream};
    /// use tower::discover::Change;
    ///
    /// let changes = stream::generate(async |changes| {
    ///     changes.send(Change::Insert("a", Endpoint::new("db1:7400"))).await;
    ///     changes.send(Change::Insert("b", Endpoint::new("db2:7400"))).await;
    ///     changes.send(Change::Remove("a")).await;
    ///     Ok::<_, std::io::Error>(())
    /// });
    /// let channel = Channel::builder().discover_changes("orders", changes)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the configuration, or `FARCALL_TRANSPORT`, is wrong.
    pub fn discover_changes<D>(self, name: &str, changes: D) -> Result<Channel, ConfigError>
    where
        D: Discover<Service = Endpoint, Error: Display> + Send + 'static,
        D::Key: Send,
    {
        let lists = Lists { changes: Some(Box::pin(changes)), servers: Vec::new(), has_changed: false };
        self.discover(name, lists)
    }
}

/// The lists of servers that follow from changes.
struct Lists<D: Discover> {
    /// `None` when it has ended.
    changes: Option<Pin<Box<D>>>,
    servers: Vec<(D::Key, Endpoint)>,
    /// Whether `servers` differ from the last list.
    has_changed: bool,
}

// Nothing in it is pinned but by its box.
impl<D: Discover> Unpin for Lists<D> {}

impl<D: Discover<Service = Endpoint>> Lists<D> {
    fn change(&mut self, change: Change<D::Key, Endpoint>) {
        let (key, server) = match change {
            Change::Insert(key, server) => (key, Some(server)),
            Change::Remove(key) => (key, None),
        };
        self.servers.retain(|(known, _)| *known != key);
        self.servers.extend(server.map(|server| (key, server)));
        self.has_changed = true;
    }

    fn list(&mut self) -> Vec<Endpoint> {
        self.has_changed = false;
        self.servers.iter().map(|(_, server)| server.clone()).collect()
    }
}

impl<D: Discover<Service = Endpoint, Error: Display>> Stream for Lists<D> {
    type Item = Result<Vec<Endpoint>, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while let Some(changes) = &mut this.changes {
            match changes.as_mut().poll_discover(cx) {
                Poll::Ready(Some(Ok(change))) => this.change(change),
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Some(Err(Status::new(Code::Unavailable, error.to_string()))));
                }
                Poll::Ready(None) => this.changes = None,
                Poll::Pending if this.has_changed => break,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(if this.has_changed { Some(Ok(this.list())) } else { None })
    }
}
