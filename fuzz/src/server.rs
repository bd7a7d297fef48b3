//! A server with a hostile client.

use std::sync::Arc;

use bytes::BytesMut;
use farcall_core::codec::{Codec, Postcard};
use farcall_core::config::{Limits, Liveness};
use farcall_core::proto::wire::{Bind, BindMethod, FrameType, Header, Hello, VERSION, features};
use farcall_core::server::ServerCore;
use farcall_core::service::Service;
use farcall_core::settings::Settings;
use farcall_core::transport::{Link, Reason, Unavailable};
use tokio::runtime::{Builder, Runtime};

use crate::fake_link::FakeLink;
use crate::service::{FuzzedServer, Handler};

/// Plays the input as the frames of a client that has said HELLO and named the service. When the connection is over,
/// the server holds nothing of it.
pub fn server(data: &[u8]) {
    thread_local!(static SERVER: (Runtime, Arc<ServerCore>) = serve());
    SERVER.with(|(runtime, server)| {
        let _inside = runtime.enter();
        let link = Arc::new(FakeLink::default());
        server.serve(Arc::clone(&link) as Arc<dyn Link>);
        settle(runtime);
        let mut payload = BytesMut::new();
        hello().encode(&mut payload);
        link.deliver(frame(FrameType::HELLO, 0, &payload), payload.split().freeze());
        bind().encode(&mut payload);
        link.deliver(frame(FrameType::BIND, 1, &payload), payload.freeze());
        link.play(data, 1, || settle(runtime));
        link.end();
        settle(runtime);
        assert!(server.connections().is_empty(), "a connection that is over is forgotten");
    });
}

fn serve() -> (Runtime, Arc<ServerCore>) {
    let runtime = runtime();
    let _inside = runtime.enter();
    let server = ServerCore::new(vec![Arc::new(FuzzedServer::new(Handler))], settings())
        .expect("the service is valid");
    drop(_inside);
    (runtime, server)
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("there is a runtime")
}

pub(crate) fn settings() -> Settings {
    let mut limits = Limits::default();
    (limits.max_message, limits.max_assembly) = (1 << 20, 4 << 20);
    Settings::plain(
        limits,
        Liveness::default(),
        Unavailable::new(Reason::Disabled, "the fuzzer has one link"),
    )
}

/// Lets tasks run that have something to do.
pub(crate) fn settle(runtime: &Runtime) {
    runtime.block_on(async {
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    });
}

pub(crate) fn frame(kind: FrameType, seq: u32, payload: &[u8]) -> Header {
    Header { seq, len: payload.len() as u32, ..Header::new(kind, 0) }
}

pub(crate) fn hello() -> Hello {
    Hello {
        version_min: VERSION,
        version_max: VERSION,
        features: features::ZSTD
            | features::LZ4
            | features::STREAMS
            | features::METADATA
            | features::ACCESS
            | features::GRANTS
            | features::LOAN_GRANTS,
        max_frame: 16 << 10,
        max_message: 1 << 20,
        max_assembly: 4 << 20,
        max_calls: 16,
        max_metadata: 16 << 10,
        class: 0,
        security: 0,
        instance: 1,
        upgrades: Vec::new(),
        auth: bytes::Bytes::new(),
        stream_items: 16,
        stream_bytes: 64 << 10,
    }
}

/// Names the service as number 0, as its client does.
fn bind() -> Bind {
    let service = FuzzedServer::new(Handler);
    let info = service.info();
    let methods = info.methods.iter();
    let method = |m: &farcall_core::service::Method| BindMethod {
        hash: m.hash(),
        kind: m.kind as u8,
        fingerprint: m.fingerprint,
    };
    let (name, codec) = (info.name.to_string(), Postcard::NAME.to_owned());
    Bind { service: 0, name, codec, methods: methods.map(method).collect() }
}
