//! A trace through two services, exported by OpenTelemetry: a line of JSON for each span.
//!
//! Run it with `cargo run --example tracing`.

#![expect(clippy::print_stdout, reason = "it is what the example does")]

use std::thread;

use farcall::middleware::Request;
use farcall::trace::{Propagator, client_with, server_with};
use farcall::{Channel, Metadata, Server};
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tokio::sync::oneshot;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

#[farcall::service(package = "shop")]
trait Orders {
    async fn order(&self, item: String) -> farcall::Result<u32>;
}

#[farcall::service(package = "shop")]
trait Stock {
    async fn take(&self, item: String) -> farcall::Result<u32>;
}

struct OrderDesk(StockClient);

impl Orders for OrderDesk {
    async fn order(&self, item: String) -> farcall::Result<u32> {
        tracing::info!(item, "an order");
        self.0.take(item).await
    }
}

struct Shelf;

impl Stock for Shelf {
    async fn take(&self, _item: String) -> farcall::Result<u32> {
        Ok(41)
    }
}

/// Takes OpenTelemetry's context along, in the form of the W3C.
struct OpenTelemetry;

impl Propagator for OpenTelemetry {
    fn inject(&self, span: &Span, request: &mut Request) {
        TraceContextPropagator::new().inject_context(&span.context(), &mut Carrier(request.metadata_mut()));
    }

    fn extract(&self, span: &Span, request: &mut Request) {
        let parent = TraceContextPropagator::new().extract(&Carrier(request.metadata_mut()));
        // It fails if nobody records the span.
        let _ = span.set_parent(parent);
    }
}

struct Carrier<'a>(&'a mut Metadata);

impl Injector for Carrier<'_> {
    fn set(&mut self, key: &str, value: String) {
        let _ = self.0.insert(key, value);
    }
}

impl Extractor for Carrier<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(key, _)| key).collect()
    }
}

/// Where a real program has an OTLP exporter.
#[derive(Debug, Default)]
struct Lines {
    service: String,
}

impl SpanExporter for Lines {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        for span in spans {
            println!(
                r#"{{"service":"{}","name":"{}","kind":"{:?}","trace":"{}","span":"{}","parent":"{}"}}"#,
                self.service,
                span.name,
                span.span_kind,
                span.span_context.trace_id(),
                span.span_context.span_id(),
                span.parent_span_id,
            );
        }
        Ok(())
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.service = resource.get(&"service.name".into()).map_or_else(String::new, |name| name.to_string());
    }
}

/// Runs `program` as a process of that name would run: on a thread, with a runtime and an exporter of its own.
fn as_service<F: Future<Output = farcall::Result<()>>>(
    name: &'static str,
    program: impl FnOnce() -> F + Send + 'static,
) -> thread::JoinHandle<farcall::Result<()>> {
    thread::spawn(move || {
        let resource = Resource::builder().with_service_name(name).build();
        let provider = SdkTracerProvider::builder().with_simple_exporter(Lines::default());
        let provider = provider.with_resource(resource).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("farcall"));
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(program())
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (stock_at, stock) = oneshot::channel();
    let (orders_at, orders) = oneshot::channel();
    let (stop, stopped) = tokio::sync::watch::channel(());
    let mut also_stopped = stopped.clone();

    let shelf = as_service("stock", move || async move {
        let server = Server::builder().add(StockServer::new(Shelf)).intercept(server_with(OpenTelemetry));
        let server = server.bind("127.0.0.1:0").await.expect("a port");
        let _ = stock_at.send(format!("farcall://{}", server.local_addr()));
        server.serve_until(async move { also_stopped.changed().await }).await;
        Ok(())
    });
    let desk = as_service("orders", move || async move {
        let channel = Channel::connect(&stock.await.expect("the stock's address")).await?;
        let stock = StockClient::new(channel.intercept(client_with(OpenTelemetry)));
        let server = Server::builder().add(OrdersServer::new(OrderDesk(stock)));
        let server = server.intercept(server_with(OpenTelemetry)).bind("127.0.0.1:0").await.expect("a port");
        let _ = orders_at.send(format!("farcall://{}", server.local_addr()));
        let mut stopped = stopped;
        server.serve_until(async move { stopped.changed().await }).await;
        Ok(())
    });
    let customer = as_service("customer", move || async move {
        let channel = Channel::connect(&orders.await.expect("the orders' address")).await?;
        let orders = OrdersClient::new(channel.intercept(client_with(OpenTelemetry)));
        orders.order("a book").await?;
        drop(stop);
        Ok(())
    });
    for service in [customer, desk, shelf] {
        service.join().expect("it does not panic")?;
    }
    Ok(())
}
