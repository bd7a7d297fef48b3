//! Sessions between two simulated hosts that make calls of a service, `echo`.

#![allow(dead_code, clippy::allow_attributes, reason = "each test uses a part of it")]

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::client::{Call, RawChannel, Stub};
use farcall_core::codec::Raw;
use farcall_core::config::Policy;
use farcall_core::payload::{Decoder, Encoder};
use farcall_core::server::ServerCore;
use farcall_core::service::{HandlerFuture, IncomingCall, Method, Reply, Service, ServiceInfo};
use farcall_core::settings::Settings;
use farcall_core::status::Result;
use farcall_core::transport::Cipher;
use farcall_rdma::RdmaConfig;
use farcall_rdma::testing::sim::{Fabric, SimHost};

use crate::near::{self, Near};

/// echo(x) -> x, counting how often each x was executed.
struct Echo {
    info: Arc<ServiceInfo>,
    executed: Arc<Mutex<HashMap<Bytes, u32>>>,
}

impl Service for Echo {
    fn info(&self) -> &ServiceInfo {
        &self.info
    }

    fn call(&self, _: usize, request: IncomingCall) -> HandlerFuture {
        // Whichever thread polls it, a handler can use its runtime.
        let _runtime = tokio::runtime::Handle::current();
        let executed = self.executed.clone();
        Box::pin(async move {
            let mut whole = Decoder::new(request.payload.clone()).rest().to_vec();
            request.payload.attachments().iter().for_each(|bytes| whole.extend_from_slice(bytes));
            *executed.lock().unwrap().entry(whole.into()).or_default() += 1;
            // Some are answered at once, some by a task of their own.
            if request.payload.len() % 2 == 1 {
                tokio::task::yield_now().await;
            }
            Reply::Ok(request.payload)
        })
    }
}

#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) fabric: Arc<Fabric>,
    /// The machine of the caller.
    pub(crate) machine: SimHost,
    settings: Settings,
    cipher: Option<Cipher>,
    pub(crate) caller: RawChannel,
    pub(crate) host: Arc<ServerCore>,
    pub(crate) info: Arc<ServiceInfo>,
    pub(crate) executed: Arc<Mutex<HashMap<Bytes, u32>>>,
}

pub(crate) fn setup(seed: u64) -> Setup {
    setup_with(seed, 0, |_| {})
}

/// Fabrics of odd seeds are spiteful. Every other pair of seeds has encrypted sessions. Clients try again after at most
/// `retry_ms`, if that is not 0.
pub(crate) fn setup_with(seed: u64, retry_ms: u64, change: fn(&mut RdmaConfig)) -> Setup {
    let fabric = Fabric::new(seed);
    fabric.set_spite(seed % 2 == 1);
    let machines = [1, 2].map(|n| fabric.host(IpAddr::from([10, 0, 0, n])));
    let [settings, far] = machines.clone().map(|machine| {
        let mut config = RdmaConfig::default();
        config.strict_credits = true;
        change(&mut config);
        let mut settings = near::settings_of(machine, Policy::Auto, config);
        settings.liveness.retry_ms = retry_ms;
        settings
    });
    let info = Arc::new(ServiceInfo {
        name: "echo".into(),
        codec: "raw".into(),
        methods: vec![Method::unary("echo", "echo")],
    });
    let executed = Arc::default();
    let service = Echo { info: Arc::clone(&info), executed: Arc::clone(&executed) };
    let host = ServerCore::new(vec![Arc::new(service)], far).unwrap();
    let cipher = sealed_by(seed);
    let caller = RawChannel::new(Near { host: Arc::clone(&host), cipher }, settings.clone());
    let [machine, _] = machines;
    Setup { fabric, machine, settings, cipher, caller, host, info, executed }
}

pub(crate) fn sealed_by(seed: u64) -> Option<Cipher> {
    [None, None, Some(Cipher::Aes256Gcm), Some(Cipher::ChaCha20Poly1305)][seed as usize % 4]
}

/// An argument that no other call has.
pub(crate) fn argument(number: u64, len: usize) -> Bytes {
    number.to_le_bytes().iter().copied().chain((0..len).map(|i| (i as u64 ^ number) as u8)).collect()
}

impl Setup {
    /// Returns another connection between the same hosts, to the same service.
    pub(crate) fn beside(&self) -> Self {
        let near = Near { host: Arc::clone(&self.host), cipher: self.cipher };
        Self { caller: RawChannel::new(near, self.settings.clone()), ..self.clone() }
    }

    pub(crate) fn call(&self, argument: Bytes) -> Call<Result<Bytes>, Raw> {
        let mut arguments = Encoder::new();
        arguments.put_bytes(&argument);
        Stub::new(self.caller.clone(), self.info.clone()).call(0, Ok(arguments.finish()))
    }

    /// Makes calls of many sizes at once; each must come back, after one execution.
    pub(crate) async fn load(&self, numbers: std::ops::Range<u64>) {
        let calls = numbers.map(|number| {
            let len = [0, 100, 1500, 5000, 9000, 40_000, 200_000][number as usize % 7];
            let argument = argument(number, len);
            let call = self.call(argument.clone());
            tokio::spawn(async move { assert_eq!(call.await.unwrap(), argument) })
        });
        for call in calls.collect::<Vec<_>>() {
            tokio::time::timeout(Duration::from_secs(60), call)
                .await
                .expect("a call has no outcome")
                .unwrap();
        }
        assert!(self.executed.lock().unwrap().values().all(|&times| times == 1), "a call was repeated");
    }

    pub(crate) fn transport(&self) -> (&'static str, Option<String>) {
        let transport = self.host.connections()[0].transport();
        (transport.name, transport.why_not_rdma.map(|why| why.to_string()))
    }
}
