//! Farcall, as an application would use it: a typed service, a deadline on each call, the default limits.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use farcall::{Channel, Config, Server, Stream, TrafficClass, stream};

use crate::args::{Args, By, Method};
use crate::load::{Caller, pattern};
use crate::{Contestant, Result};

/// The service.
#[farcall::service(package = "farcall.bench")]
pub(crate) trait Echo {
    /// Returns its argument.
    async fn echo(&self, data: Bytes) -> farcall::Result<Bytes>;

    /// Keeps nothing.
    async fn put(&self, data: Bytes) -> farcall::Result<()>;

    /// Returns the server's payload, which has the size that was asked for first.
    async fn get(&self, size: u64) -> farcall::Result<Bytes>;

    /// Returns the server's payload `count` times.
    fn stream(&self, count: u64, size: u64) -> impl Stream<Item = farcall::Result<Bytes>>;
}

#[derive(Default)]
struct Service {
    /// Made when it is first asked for: then it is known whether there is RDMA to send it by.
    payload: OnceLock<Bytes>,
}

impl Echo for Service {
    async fn echo(&self, data: Bytes) -> farcall::Result<Bytes> {
        Ok(data)
    }

    async fn put(&self, _: Bytes) -> farcall::Result<()> {
        Ok(())
    }

    async fn get(&self, size: u64) -> farcall::Result<Bytes> {
        Ok(self.payload.get_or_init(|| payload(size as usize)).clone())
    }

    fn stream(&self, count: u64, size: u64) -> impl Stream<Item = farcall::Result<Bytes>> {
        let payload = self.payload.get_or_init(|| payload(size as usize)).clone();
        stream::iter((0..count).map(move |_| Ok(payload.clone())))
    }
}

/// Far enough never to be reached.
const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) struct Farcall;

impl Contestant for Farcall {
    type Client = Client;

    async fn serve(args: Args) -> Result<()> {
        let server = Server::builder().add(EchoServer::new(Service::default()));
        let server = server.config(Config::from_toml(&args.settings)?).bind(&args.address).await?;
        crate::listening(server.local_addr())?;
        server.serve().await;
        Ok(())
    }

    async fn connect(args: Args) -> Result<Client> {
        let first = channel(&args).await?;
        if args.load > 0 {
            load(&EchoClient::new(&first), &args);
        }
        for _ in 0..args.stalled {
            stall(&EchoClient::new(&first)).await?;
        }
        let channel = match args.by {
            By::Same => first,
            By::Second => channel(&args).await?,
            By::Urgent => first.class(TrafficClass::Urgent),
        };
        Ok(Client { echo: EchoClient::new(channel), method: args.method, size: args.size as u64 })
    }
}

async fn channel(args: &Args) -> Result<Channel> {
    let config = Config::from_toml(&args.settings)?;
    Ok(Channel::builder().config(config).connect(&format!("farcall://{}", args.address)).await?)
}

/// Keeps calls in flight that put long payloads, for as long as this process lives.
fn load(client: &EchoClient, args: &Args) {
    let payload = payload(args.load_size);
    for _ in 0..args.load {
        let (client, payload) = (client.clone(), payload.clone());
        tokio::spawn(async move {
            loop {
                if let Err(error) = client.put(payload.clone()).await {
                    // Without the load this is not the measurement that was asked for.
                    eprintln!("peers: the load: {error}");
                    std::process::exit(1);
                }
            }
        });
    }
}

/// Reads the first item of a stream, and no more of it for as long as this process lives.
async fn stall(client: &EchoClient) -> Result<()> {
    let mut items = client.stream(u64::MAX, 64 << 10).await?;
    items.message().await?;
    tokio::spawn(async move {
        let _items = items;
        std::future::pending::<()>().await;
    });
    Ok(())
}

#[derive(Clone)]
pub(crate) struct Client {
    echo: EchoClient,
    method: Method,
    size: u64,
}

impl Caller for Client {
    async fn call(&mut self, payload: &Bytes) -> Result<usize> {
        let moved = match self.method {
            Method::Echo => self.echo.echo(payload.clone()).timeout(DEADLINE).await?.len(),
            Method::Put => self.echo.put(payload.clone()).timeout(DEADLINE).await.map(|()| payload.len())?,
            Method::Get => self.echo.get(self.size).timeout(DEADLINE).await?.len(),
            other => return Err(format!("there is no method {other:?}").into()),
        };
        Ok(moved)
    }

    async fn stream(&mut self, count: u64, size: usize, item: &mut (dyn FnMut(usize) + Send)) -> Result<()> {
        let mut items = self.echo.stream(count, size as u64).timeout(DEADLINE).await?;
        while let Some(payload) = items.message().await? {
            item(payload.len());
        }
        Ok(())
    }

    fn payload(&self, size: usize) -> Bytes {
        payload(size)
    }
}

/// In memory from which RDMA sends without a copy.
fn payload(size: usize) -> Bytes {
    let mut payload = farcall::buf(size);
    payload.put_slice(&pattern(size).collect::<Vec<_>>());
    payload.freeze()
}
