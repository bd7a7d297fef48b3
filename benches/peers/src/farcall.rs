//! Farcall, as an application would use it: a typed service, a deadline on each call, the default limits.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use farcall::bulk::{BulkRead, BulkWrite};
use farcall::region::{Region, RemoteMemory, RemoteRegion, Rights};
use farcall::{Buf, Channel, Config, Server, Stream, TrafficClass, stream};

use crate::args::{Args, By, Method};
use crate::load::{Caller, moved_beside, pattern};
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

    /// Reads what is lent, and returns its length.
    #[rpc(class = Bulk)]
    async fn lend(&self, data: BulkRead) -> farcall::Result<u64>;

    /// Writes the server's payload to what is lent, and returns its length.
    #[rpc(class = Bulk)]
    async fn fill(&self, into: BulkWrite) -> farcall::Result<u64>;

    /// Returns memory of the server's that may be read and counted in.
    async fn region(&self) -> farcall::Result<RemoteRegion>;

    /// Returns the server's payload `count` times.
    fn stream(&self, count: u64, size: u64) -> impl Stream<Item = farcall::Result<Bytes>>;
}

#[derive(Default)]
struct Service {
    /// Made when it is first asked for: then it is known whether there is RDMA to send it by.
    payload: OnceLock<Bytes>,
    region: OnceLock<Region>,
}

impl Service {
    fn payload(&self, size: usize) -> Bytes {
        self.payload.get_or_init(|| payload(size)).clone()
    }
}

impl Echo for Service {
    async fn echo(&self, data: Bytes) -> farcall::Result<Bytes> {
        Ok(data)
    }

    async fn put(&self, _: Bytes) -> farcall::Result<()> {
        Ok(())
    }

    async fn get(&self, size: u64) -> farcall::Result<Bytes> {
        Ok(self.payload(size as usize))
    }

    async fn lend(&self, data: BulkRead) -> farcall::Result<u64> {
        Ok(data.read(..).await?.len() as u64)
    }

    async fn fill(&self, into: BulkWrite) -> farcall::Result<u64> {
        into.write(0, self.payload(into.len())).await?;
        Ok(into.len() as u64)
    }

    async fn region(&self) -> farcall::Result<RemoteRegion> {
        let export = || Region::zeroed(REGION, Rights::READ | Rights::ATOMICS);
        Ok(self.region.get_or_init(export).remote())
    }

    fn stream(&self, count: u64, size: u64) -> impl Stream<Item = farcall::Result<Bytes>> {
        let payload = self.payload(size as usize);
        stream::iter((0..count).map(move |_| Ok(payload.clone())))
    }
}

/// The length of the server's region, in bytes.
const REGION: usize = 1 << 20;

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
            load(&Client::new(first.clone(), args.load_method, args.load_size).await?, &args);
        }
        for _ in 0..args.stalled {
            stall(&EchoClient::new(&first)).await?;
        }
        let channel = match args.by {
            By::Same => first,
            By::Second => channel(&args).await?,
            By::Urgent => first.class(TrafficClass::Urgent),
        };
        Client::new(channel, args.method, args.size).await
    }
}

async fn channel(args: &Args) -> Result<Channel> {
    let config = Config::from_toml(&args.settings)?;
    Ok(Channel::builder().config(config).connect(&format!("farcall://{}", args.address)).await?)
}

/// Keeps calls in flight that move long payloads, for as long as this process lives.
fn load(client: &Client, args: &Args) {
    let payload = payload(args.load_size);
    for _ in 0..args.load {
        let (mut client, payload) = (client.clone(), payload.clone());
        tokio::spawn(async move {
            loop {
                match client.call(&payload).await {
                    Ok(bytes) => moved_beside(bytes),
                    Err(error) => {
                        // Without the load this is not the measurement that was asked for.
                        eprintln!("peers: the load: {error}");
                        std::process::exit(1);
                    }
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

pub(crate) struct Client {
    echo: EchoClient,
    method: Method,
    size: usize,
    /// The server's region, if it is used.
    region: Option<RemoteMemory>,
    /// The buffer that this caller lends to be filled. It is kept here between two calls.
    buffer: Option<Buf>,
}

impl Clone for Client {
    fn clone(&self) -> Self {
        let Self { echo, method, size, region, buffer: _ } = self;
        Self { echo: echo.clone(), method: *method, size: *size, region: region.clone(), buffer: None }
    }
}

impl Client {
    async fn new(channel: Channel, method: Method, size: usize) -> Result<Self> {
        let echo = EchoClient::new(&channel);
        let region = match method {
            Method::Peek | Method::Add | Method::Swap => Some(echo.region().await?.on(&channel)),
            _ => None,
        };
        Ok(Self { echo, method, size, region, buffer: None })
    }

    /// Swaps a number, or makes a call that lends memory.
    async fn swap_or_lend(&mut self, payload: &Bytes) -> Result<usize> {
        let moved = match self.method {
            // It succeeds, however many do it at once.
            Method::Swap => self.region()?.compare_and_swap(0, 0, 0).await.map(|_| self.size)?,
            Method::Lend => self.echo.lend(payload.clone().into()).timeout(DEADLINE).await? as usize,
            Method::Fill => self.fill().await?,
            other => return Err(format!("there is no method {other:?}").into()),
        };
        Ok(moved)
    }

    fn region(&self) -> Result<&RemoteMemory> {
        self.region.as_ref().ok_or_else(|| "the server's region is not known".into())
    }

    async fn fill(&mut self) -> Result<usize> {
        let buffer = match self.buffer.take() {
            Some(buffer) => buffer,
            None => {
                let mut buffer = Buf::registered(self.size).await;
                buffer.resize(self.size);
                buffer
            }
        };
        let (into, loan) = BulkWrite::lend(buffer);
        let moved = self.echo.fill(into).timeout(DEADLINE).await? as usize;
        self.buffer = Some(loan.reclaim().await);
        Ok(moved)
    }
}

impl Caller for Client {
    async fn call(&mut self, payload: &Bytes) -> Result<usize> {
        let moved = match self.method {
            Method::Echo => self.echo.echo(payload.clone()).timeout(DEADLINE).await?.len(),
            Method::Put => self.echo.put(payload.clone()).timeout(DEADLINE).await.map(|()| payload.len())?,
            Method::Get => self.echo.get(self.size as u64).timeout(DEADLINE).await?.len(),
            Method::Peek => self.region()?.read(..self.size).await?.len(),
            Method::Add => self.region()?.fetch_add(0, 1).await.map(|_| self.size)?,
            // Boxed, so that the future of the others is no longer than it must be.
            _ => Box::pin(self.swap_or_lend(payload)).await?,
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
