//! gRPC's interoperability tests as they can be said of farcall: the test service of grpc.testing, with its protobuf messages,
//! and the cases of gRPC's `interop-test-descriptions.md` and of its negative tests of HTTP/2.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod cases;
mod faults;
mod limits;
mod messages;
#[path = "../over/mod.rs"]
mod over;
#[path = "../process/mod.rs"]
mod process;

use std::sync::Arc;

use farcall::{
    Bytes, Channel, Code, Compression, Context, Result, Server, Status, Stream, Streaming, stream,
};
use messages::{
    BoolValue, EchoStatus, Empty, InputRequest, InputResponse, OutputRequest, OutputResponse, SimpleRequest,
    SimpleResponse,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

#[farcall::service(package = "grpc.testing", codec = farcall::Prost)]
trait TestService {
    async fn empty_call(&self, request: Empty) -> Result<Empty>;
    /// So many bytes for so many.
    async fn unary_call(&self, cx: &Context, request: SimpleRequest) -> Result<SimpleResponse>;
    /// An answer for each of the sizes that are asked for.
    fn streaming_output_call(
        &self,
        cx: &Context,
        request: OutputRequest,
    ) -> impl Stream<Item = Result<OutputResponse>>;
    /// How many bytes there were.
    async fn streaming_input_call(
        &self,
        cx: &Context,
        requests: Streaming<InputRequest>,
    ) -> Result<InputResponse>;
    /// Answers each request as it comes.
    fn full_duplex_call(
        &self,
        cx: &Context,
        requests: Streaming<OutputRequest>,
    ) -> impl Stream<Item = Result<OutputResponse>>;
    /// Answers all requests when there are no more.
    fn half_duplex_call(
        &self,
        requests: Streaming<OutputRequest>,
    ) -> impl Stream<Item = Result<OutputResponse>>;
}

/// Echoed before the answer.
const INITIAL: &str = "x-grpc-test-echo-initial";

/// Echoed after it.
const TRAILING: &str = "x-grpc-test-echo-trailing-bin";

/// Tells of calls that the server has begun and ended.
struct Tester {
    calls: UnboundedSender<&'static str>,
}

/// Reports that a handler is gone, whether it was done or dropped.
struct Gone(UnboundedSender<&'static str>);

impl Drop for Gone {
    fn drop(&mut self) {
        let _ = self.0.send("gone");
    }
}

impl TestService for Tester {
    async fn empty_call(&self, request: Empty) -> Result<Empty> {
        Ok(request)
    }

    async fn unary_call(&self, cx: &Context, request: SimpleRequest) -> Result<SimpleResponse> {
        echo_metadata(cx)?;
        refuse(request.response_status)?;
        check_compression(request.expect_compressed, cx.compression())?;
        if let Some(compressed) = request.response_compressed {
            cx.compress(by(compressed.value))?;
        }
        Ok(SimpleResponse { payload: zeros(request.response_size) })
    }

    fn streaming_output_call(
        &self,
        cx: &Context,
        request: OutputRequest,
    ) -> impl Stream<Item = Result<OutputResponse>> {
        stream::iter(request.response_parameters.into_iter().map(move |asked| {
            cx.compress(by(asked.compressed.is_some_and(|compressed| compressed.value)))?;
            Ok(OutputResponse { payload: zeros(asked.size) })
        }))
    }

    async fn streaming_input_call(
        &self,
        _cx: &Context,
        mut requests: Streaming<InputRequest>,
    ) -> Result<InputResponse> {
        let _ = self.calls.send("begun");
        let _gone = Gone(self.calls.clone());
        let mut sum = 0;
        while let Some(request) = requests.message().await? {
            check_compression(request.expect_compressed, requests.compression())?;
            sum += request.payload.map_or(0, |payload| payload.body.len());
        }
        Ok(InputResponse { aggregated_payload_size: sum as i32 })
    }

    fn full_duplex_call(
        &self,
        cx: &Context,
        mut requests: Streaming<OutputRequest>,
    ) -> impl Stream<Item = Result<OutputResponse>> {
        let echoed = echo_metadata(cx);
        let gone = Gone(self.calls.clone());
        let (answer, answers) = stream::channel(1);
        tokio::spawn(async move {
            let _gone = gone;
            if let Err(status) = echoed {
                answer.fail(status).await;
                return;
            }
            while let Some(request) = requests.message().await.transpose() {
                for item in request.map_or_else(|status| vec![Err(status)], answers_of) {
                    if answer.pass_on(item).await.is_err() {
                        return; // the client has enough
                    }
                }
            }
        });
        answers
    }

    fn half_duplex_call(
        &self,
        mut requests: Streaming<OutputRequest>,
    ) -> impl Stream<Item = Result<OutputResponse>> {
        let (answer, answers) = stream::channel(1);
        tokio::spawn(async move {
            let mut all = Vec::new();
            while let Some(request) = requests.message().await.transpose() {
                all.extend(request.map_or_else(|status| vec![Err(status)], answers_of));
            }
            for item in all {
                if answer.pass_on(item).await.is_err() {
                    return;
                }
            }
        });
        answers
    }
}

fn answers_of(request: OutputRequest) -> Vec<Result<OutputResponse>> {
    let sizes = request.response_parameters.into_iter();
    let payloads = sizes.map(|asked| Ok(OutputResponse { payload: zeros(asked.size) }));
    payloads.chain(refuse(request.response_status).err().map(Err)).collect()
}

fn echo_metadata(cx: &Context) -> Result<()> {
    if let Some(value) = cx.metadata().get(INITIAL) {
        cx.reply_metadata(|metadata| metadata.insert(INITIAL, value))?;
    }
    if let Some(value) = cx.metadata().get_bin(TRAILING) {
        cx.reply_trailers(|trailers| trailers.insert_bin(TRAILING, value))?;
    }
    Ok(())
}

fn refuse(status: Option<EchoStatus>) -> Result<()> {
    match status {
        Some(status) if status.code != 0 => {
            Err(Status::new(Code::from_wire(status.code as u8), status.message))
        }
        _ => Ok(()),
    }
}

fn check_compression(expected: Option<BoolValue>, found: Compression) -> Result<()> {
    match expected {
        Some(expected) if expected.value != (found != Compression::None) => {
            Err(Status::new(Code::InvalidArgument, format!("it came by {found:?}")))
        }
        _ => Ok(()),
    }
}

fn by(compressed: bool) -> Compression {
    if compressed { Compression::Zstd } else { Compression::None }
}

/// A payload, of bytes that all share.
fn zeros(len: i32) -> Option<messages::Payload> {
    static ZEROS: &[u8] = &[0; 1 << 20];
    Some(messages::Payload { body: Bytes::from_static(&ZEROS[..len as usize]) })
}

/// A server of the test service, and a channel to it.
struct Pair {
    channel: Channel,
    client: TestServiceClient,
    calls: UnboundedReceiver<&'static str>,
}

impl Pair {
    async fn new() -> Self {
        let (calls_sender, calls) = unbounded_channel();
        let service = TestServiceServer::new(Tester { calls: calls_sender });
        let server = Server::builder().config(over::config()).add(service).bind("127.0.0.1:0").await.unwrap();
        let address = over::address(server.local_addr());
        tokio::spawn(server.serve());
        let channel = Channel::connect(&address).await.unwrap();
        Self { client: TestServiceClient::new(&channel), channel, calls }
    }

    /// Waits until the server tells this.
    async fn told(&mut self, what: &str) {
        while self.calls.recv().await.unwrap() != what {}
    }
}
