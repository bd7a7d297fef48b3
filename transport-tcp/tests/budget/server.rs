//! A server to be attacked, and the way to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farcall_core::__private::{Incoming, argument};
use farcall_core::client::Connector;
use farcall_core::codec::Postcard;
use farcall_core::config::{Limits, Liveness};
use farcall_core::payload::Payload;
use farcall_core::service::{HandlerFuture, IncomingCall, Kind, Method, Reply, Service, ServiceInfo};
use farcall_core::settings::Settings;
use farcall_core::status::Result;
use farcall_core::transport::{BoxFuture, Link, Reason, Unavailable};
use farcall_tcp::tls::TlsClient;
use farcall_tcp::{TcpConfig, connect, connect_tls};
use tokio::sync::Semaphore;

use crate::{MIB, PATIENCE};

pub(crate) const ECHO: usize = 0;
pub(crate) const HANG: usize = 1;
/// Answers with 256 KiB.
pub(crate) const BIG: usize = 2;
/// Answers with 60 MiB when it may.
pub(crate) const HUGE: usize = 3;

/// Takes its thread for a while, and answers.
pub(crate) const SLOW: usize = 4;
/// Decodes a list of [`Large`], and holds it for ever.
pub(crate) const HOLD: usize = 5;
/// Never reads the stream that it is sent.
pub(crate) const IGNORE: usize = 6;

/// A value that takes one byte at least, and always 248 bytes of memory.
pub(crate) type Large = Option<[u64; 30]>;

pub(crate) struct Test {
    pub(crate) info: Arc<ServiceInfo>,
    /// How many calls of [`SLOW`] were answered.
    pub(crate) slow: Arc<AtomicUsize>,
    /// A permit for each call of [`HUGE`] that may answer.
    pub(crate) go: Arc<Semaphore>,
}

pub(crate) fn info() -> Arc<ServiceInfo> {
    let unary = ["echo", "hang", "big", "huge", "slow", "hold"].map(|name| Method::unary(name, name));
    let methods = [&unary[..], &[Method::new("ignore", Kind::ClientStreaming, "ignore")]].concat();
    Arc::new(ServiceInfo { name: "test".into(), codec: "raw".into(), methods })
}

impl Service for Test {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, method: usize, request: IncomingCall) -> HandlerFuture {
        let (go, slow) = (self.go.clone(), self.slow.clone());
        Box::pin(async move {
            match method {
                ECHO => Reply::Ok(request.payload),
                BIG => Reply::Ok(Payload::from_body(vec![7; 256 << 10].into())),
                HUGE => {
                    go.acquire().await.unwrap().forget();
                    Reply::Ok(Payload::from_body(vec![7; 60 * MIB].into()))
                }
                SLOW => {
                    std::thread::sleep(Duration::from_micros(100));
                    slow.fetch_add(1, Ordering::Relaxed);
                    Reply::Ok(request.payload)
                }
                HOLD => {
                    let mut arguments = Incoming::new(request.payload);
                    let list = arguments.next(argument::<Postcard, Vec<Large>>(), "list");
                    match list.and_then(|list| Ok((list, arguments.finish()?))) {
                        Ok(_held) => std::future::pending().await,
                        Err(refusal) => refusal,
                    }
                }
                _ => {
                    let _held = request;
                    std::future::pending().await
                }
            }
        })
    }
}

pub(crate) fn settings(memory: usize) -> Settings {
    let mut limits = Limits::default();
    limits.memory = memory as u64;
    Settings::plain(limits, Liveness::default(), Unavailable::new(Reason::Disabled, ""))
}

/// The way to a server, encrypted or not.
pub(crate) struct To(pub(crate) SocketAddr, pub(crate) Option<TlsClient>);

impl Connector for To {
    fn connect(&self, _: usize) -> BoxFuture<Result<Arc<dyn Link>>> {
        let (target, name, tls) = (self.0.to_string(), self.0.ip().to_string(), self.1.clone());
        Box::pin(async move {
            let config = TcpConfig::default();
            let link = match tls {
                Some(tls) => connect_tls(&target, &name, &config, &tls, PATIENCE).await?,
                None => connect(&target, &config, PATIENCE).await?,
            };
            Ok(link as Arc<dyn Link>)
        })
    }

    fn target(&self) -> String {
        self.0.to_string()
    }
}
