//! Spans of calls, and traces through several services.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod over;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use farcall::middleware::ServiceExt;
use farcall::trace::{self, TraceContext};
use farcall::{Channel, Code, Context, Result, Server, Status, Stream, in_process, stream};
use tokio::sync::Notify;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

type Fields = HashMap<&'static str, String>;

/// The record of a span.
#[derive(Clone, Debug, Default)]
struct Seen {
    fields: Fields,
    events: Vec<String>,
    closed: bool,
}

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<(u64, Seen)>>>);

struct Visitor<'a>(&'a mut Fields);

impl Visit for Visitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Recorder {
    fn change(&self, id: &Id, change: impl FnOnce(&mut Seen)) {
        let mut spans = self.0.lock().unwrap();
        let number = id.into_u64();
        // Numbers are used again; the last is meant.
        if let Some((_, seen)) = spans.iter_mut().rev().find(|(of, _)| *of == number) {
            change(seen);
        }
    }

    fn spans(&self, kind: &str) -> Vec<Seen> {
        let spans = self.0.lock().unwrap();
        spans.iter().map(|(_, seen)| seen.clone()).filter(|seen| seen.fields["otel.kind"] == kind).collect()
    }

    fn one(&self, kind: &str) -> Seen {
        let spans = self.spans(kind);
        assert_eq!(spans.len(), 1, "{spans:?}");
        spans[0].clone()
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: LayerContext<'_, S>) {
        if attributes.metadata().target() == "farcall::call" {
            let mut seen = Seen::default();
            attributes.record(&mut Visitor(&mut seen.fields));
            self.0.lock().unwrap().push((id.into_u64(), seen));
        }
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, _: LayerContext<'_, S>) {
        self.change(id, |seen| record.record(&mut Visitor(&mut seen.fields)));
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: LayerContext<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Visitor(&mut fields));
        if let (Some(span), Some(message)) = (context.event_span(event), fields.remove("message")) {
            self.change(&span.id(), |seen| seen.events.push(message));
        }
    }

    fn on_close(&self, id: Id, _: LayerContext<'_, S>) {
        self.change(&id, |seen| seen.closed = true);
    }
}

/// Records the spans of this thread as long as the guard is there.
fn recorder() -> (Recorder, DefaultGuard) {
    let recorder = Recorder::default();
    let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(recorder.clone()));
    (recorder, guard)
}

#[farcall::service(package = "test")]
trait Node {
    /// Returns the metadata that name the call's trace.
    async fn parent(&self, cx: &Context) -> Result<Vec<Option<String>>>;
    /// The trace that the handler is in, and that of a handler further on.
    async fn further(&self) -> Result<Vec<String>>;
    async fn refuse(&self, code: u8) -> Result<()>;
    async fn wait(&self) -> Result<()>;
    fn count(&self, to: u32) -> impl Stream<Item = Result<u32>>;
}

#[derive(Default)]
struct Hop {
    next: Option<NodeClient>,
    waits: Arc<Notify>,
}

impl Node for Hop {
    async fn parent(&self, cx: &Context) -> Result<Vec<Option<String>>> {
        let get = |key| cx.metadata().get(key).map(str::to_owned);
        Ok(vec![get("traceparent"), get("tracestate")])
    }

    async fn further(&self) -> Result<Vec<String>> {
        tracing::info!("in the handler");
        let mut traces = vec![TraceContext::current().unwrap().to_string()];
        if let Some(next) = &self.next {
            tokio::task::yield_now().await;
            traces.extend(next.further().await?);
        }
        Ok(traces)
    }

    async fn refuse(&self, code: u8) -> Result<()> {
        Err(Status::new(Code::from_wire(code), "as it was told to"))
    }

    async fn wait(&self) -> Result<()> {
        self.waits.notify_one();
        std::future::pending().await
    }

    fn count(&self, to: u32) -> impl Stream<Item = Result<u32>> {
        stream::iter((0..to).map(Ok))
    }
}

fn traced(hop: Hop) -> NodeClient {
    NodeClient::new(in_process(NodeServer::new(hop).intercept(trace::server)).intercept(trace::client))
}

#[tokio::test]
async fn a_call_has_a_span_on_each_side() {
    let (recorder, _guard) = recorder();
    let server = Server::builder().add(NodeServer::new(Hop::default())).intercept(trace::server);
    let server = server.config(over::config()).bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr();
    tokio::spawn(server.serve());
    let channel = Channel::connect(&over::address(address)).await.unwrap();
    let parent = NodeClient::new(channel.intercept(trace::client)).parent().await.unwrap();

    let (client, server) = (recorder.one("client"), recorder.one("server"));
    for span in [&client, &server] {
        let field = |name: &str| span.fields.get(name).map(String::as_str);
        assert_eq!((field("otel.name"), field("rpc.system")), (Some("test.Node/parent"), Some("farcall")));
        assert_eq!((field("rpc.service"), field("rpc.method")), (Some("test.Node"), Some("parent")));
        assert_eq!((field("rpc.response.status_code"), field("otel.status_code")), (Some("OK"), None));
        assert!(span.closed);
    }
    assert_eq!(client.fields["network.peer.address"], address.to_string());
    assert_eq!(client.fields["network.transport"], over::transport());
    assert!(server.fields["network.peer.address"].starts_with("127.0.0.1:"));
    assert_eq!(client.fields["trace_id"], server.fields["trace_id"]);
    let sent = format!("00-{}-{}-01", client.fields["trace_id"], client.fields["span_id"]);
    assert_eq!(parent, [Some(sent), None]);
    assert_ne!(client.fields["span_id"], server.fields["span_id"]);
}

#[tokio::test]
async fn a_trace_goes_through_all_services() {
    let (recorder, _guard) = recorder();
    let last = traced(Hop::default());
    let first = traced(Hop { next: Some(last), ..Hop::default() });
    let traces = first.further().await.unwrap();
    let servers = recorder.spans("server");
    assert_eq!((traces.len(), servers.len(), recorder.spans("client").len()), (2, 2, 2));
    for (trace, server) in traces.iter().zip(&servers) {
        let trace: TraceContext = trace.parse().unwrap();
        assert_eq!(server.fields["span_id"], format!("{:016x}", trace.span_id));
        assert_eq!(server.fields["trace_id"], servers[0].fields["trace_id"]);
        assert_eq!(server.events, ["in the handler"]);
    }
}

#[tokio::test]
async fn a_trace_that_began_elsewhere_goes_on_and_a_broken_one_does_not() {
    let (recorder, _guard) = recorder();
    let node = NodeClient::new(in_process(NodeServer::new(Hop::default()).intercept(trace::server)));
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    node.parent().metadata("traceparent", parent).metadata("tracestate", "a=1,b=2").await.unwrap();
    node.parent().metadata("traceparent", "of another kind").await.unwrap();
    let [good, bad] = &recorder.spans("server")[..] else { panic!() };
    assert_eq!(good.fields["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    assert_ne!(good.fields["span_id"], "b7ad6b7169203331");
    assert_eq!(bad.fields["trace_id"].len(), 32);
    assert_ne!(bad.fields["trace_id"], good.fields["trace_id"]);
}

/// Entries that other systems along the way have added are passed on.
#[tokio::test]
async fn the_state_of_a_trace_is_passed_on() {
    #[farcall::service(package = "test")]
    trait Relay {
        async fn relay(&self) -> Result<Vec<Option<String>>>;
    }

    struct To(NodeClient);

    impl Relay for To {
        async fn relay(&self) -> Result<Vec<Option<String>>> {
            self.0.parent().await
        }
    }

    let relay = RelayServer::new(To(traced(Hop::default()))).intercept(trace::server);
    let relay = RelayClient::new(in_process(relay));
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let call = relay.relay().metadata("traceparent", parent).metadata("tracestate", "a=1,b=2");
    let [Some(parent), Some(state)] = &call.await.unwrap()[..] else { panic!() };
    assert!(
        parent.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && parent.ends_with("-00"),
        "{parent}"
    );
    assert_eq!(state, "a=1,b=2");
}

#[tokio::test]
async fn a_failure_is_an_error_of_the_server_only_if_it_is_to_blame() {
    let (recorder, _guard) = recorder();
    let node = traced(Hop::default());
    for code in [Code::NotFound, Code::Internal] {
        node.refuse(code as u8).await.unwrap_err();
    }
    let status = |span: &Seen| {
        (span.fields["rpc.response.status_code"].clone(), span.fields.contains_key("otel.status_code"))
    };
    let servers: Vec<_> = recorder.spans("server").iter().map(status).collect();
    assert_eq!(servers, [("NOT_FOUND".into(), false), ("INTERNAL".into(), true)]);
    let clients: Vec<_> = recorder.spans("client").iter().map(status).collect();
    assert_eq!(clients, [("NOT_FOUND".into(), true), ("INTERNAL".into(), true)]);
}

#[tokio::test]
async fn a_call_that_is_dropped_is_cancelled_on_both_sides() {
    let (recorder, _guard) = recorder();
    let hop = Hop::default();
    let waits = hop.waits.clone();
    let call = tokio::spawn(traced(hop).wait().into_future());
    waits.notified().await;
    call.abort();
    while !recorder.one("server").closed {
        tokio::task::yield_now().await;
    }
    for kind in ["client", "server"] {
        let span = recorder.one(kind);
        assert_eq!(
            (&span.fields["rpc.response.status_code"][..], span.closed),
            ("CANCELLED", true),
            "{kind}"
        );
    }
}

#[tokio::test]
async fn the_span_of_a_stream_lasts_until_that_has_ended() {
    let (recorder, _guard) = recorder();
    let node = traced(Hop::default());
    let mut numbers = node.count(2).await.unwrap();
    assert_eq!(numbers.message().await.unwrap(), Some(0));
    assert!(!recorder.one("client").closed);
    while numbers.message().await.unwrap().is_some() {}
    drop(numbers);
    for kind in ["client", "server"] {
        let span = recorder.one(kind);
        assert_eq!((&span.fields["rpc.response.status_code"][..], span.closed), ("OK", true), "{kind}");
    }

    drop(node.count(u32::MAX).await.unwrap());
    let span = &recorder.spans("client")[1];
    assert_eq!((&span.fields["rpc.response.status_code"][..], span.closed), ("CANCELLED", true));
}
