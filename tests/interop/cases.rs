//! The cases of `interop-test-descriptions.md`, by their names there.

use std::time::Duration;

use farcall::{Code, Compression, EndReason, Executed, Response, Streaming, stream};
use tokio::task::JoinSet;

use super::messages::{OutputResponse, ResponseParameters};
use super::*;

/// The lengths that the client sends and asks for, in turn.
const TURNS: [(i32, i32); 4] = [(27182, 31415), (8, 9), (1828, 2653), (45904, 58979)];

fn large() -> SimpleRequest {
    SimpleRequest { response_size: 314_159, payload: zeros(271_828), ..SimpleRequest::default() }
}

fn sizes(sizes: impl IntoIterator<Item = i32>) -> Vec<ResponseParameters> {
    sizes.into_iter().map(|size| ResponseParameters { size, compressed: None }).collect()
}

fn turn((send, ask): (i32, i32)) -> OutputRequest {
    OutputRequest { response_parameters: sizes([ask]), payload: zeros(send), ..OutputRequest::default() }
}

fn len(payload: &Option<messages::Payload>) -> i32 {
    payload.as_ref().map_or(0, |payload| payload.body.len() as i32)
}

async fn next(answers: &mut Streaming<OutputResponse>) -> Option<i32> {
    answers.message().await.unwrap().map(|answer| len(&answer.payload))
}

#[tokio::test]
async fn empty_unary() {
    let pair = Pair::new().await;
    assert_eq!(pair.channel.transport().await.unwrap().name, over::transport());
    assert_eq!(pair.client.empty_call(Empty {}).await.unwrap(), Empty {});
}

#[tokio::test]
async fn large_unary() {
    let pair = Pair::new().await;
    let response = pair.client.unary_call(large()).await.unwrap();
    assert_eq!(response.payload, zeros(314_159));
}

#[tokio::test]
async fn client_compressed_unary() {
    let pair = Pair::new().await;
    let expecting = |value| SimpleRequest { expect_compressed: Some(BoolValue { value }), ..large() };

    let status = pair.client.unary_call(expecting(true)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "the server looks: {status}");
    for by in [Compression::Zstd, Compression::Lz4] {
        let response = pair.client.unary_call(expecting(true)).compress(by).await.unwrap();
        assert_eq!(response.payload, zeros(314_159));
    }
    let response = pair.client.unary_call(expecting(false)).await.unwrap();
    assert_eq!(response.payload, zeros(314_159));
}

#[tokio::test]
async fn server_compressed_unary() {
    let pair = Pair::new().await;
    for value in [true, false] {
        let request = SimpleRequest { response_compressed: Some(BoolValue { value }), ..large() };
        let response = pair.client.unary_call(request).with_response().await.unwrap();
        assert_eq!(response.compression, by(value));
        assert_eq!(response.value.payload, zeros(314_159));
    }
}

#[tokio::test]
async fn client_streaming() {
    let pair = Pair::new().await;
    let requests = TURNS.map(|(send, _)| InputRequest { payload: zeros(send), ..InputRequest::default() });
    let response = pair.client.streaming_input_call(stream::iter(requests)).await.unwrap();
    assert_eq!(response.aggregated_payload_size, 74_922);
}

/// gRPC compresses message by message; a farcall client does so call by call, so the stream's second half is a call here.
#[tokio::test]
async fn client_compressed_streaming() {
    let pair = Pair::new().await;
    let request = |size, value| {
        let expected = InputRequest { payload: zeros(size), expect_compressed: Some(BoolValue { value }) };
        pair.client.streaming_input_call(stream::iter([expected]))
    };

    let status = request(27182, true).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "the server looks: {status}");
    let compressed = request(27182, true).compress(Compression::Zstd).await.unwrap();
    assert_eq!(compressed.aggregated_payload_size, 27182);
    assert_eq!(request(45904, false).await.unwrap().aggregated_payload_size, 45904);
}

#[tokio::test]
async fn server_streaming() {
    let pair = Pair::new().await;
    let asked = TURNS.map(|(_, ask)| ask);
    let request = OutputRequest { response_parameters: sizes(asked), ..OutputRequest::default() };
    let mut answers = pair.client.streaming_output_call(request).await.unwrap();
    for size in asked {
        assert_eq!(next(&mut answers).await, Some(size));
    }
    assert_eq!(next(&mut answers).await, None);
    assert_eq!(answers.end_reason(), Some(EndReason::Completed));
}

#[tokio::test]
async fn server_compressed_streaming() {
    let pair = Pair::new().await;
    let asked = [(31415, true), (92653, false), (31415, true)];
    let parameters =
        asked.map(|(size, value)| ResponseParameters { size, compressed: Some(BoolValue { value }) });
    let request = OutputRequest { response_parameters: parameters.into(), ..OutputRequest::default() };
    let mut answers = pair.client.streaming_output_call(request).await.unwrap();
    for (size, compressed) in asked {
        assert_eq!(next(&mut answers).await, Some(size));
        assert_eq!(answers.compression(), by(compressed));
    }
    assert_eq!(next(&mut answers).await, None);
}

#[tokio::test]
async fn ping_pong() {
    let pair = Pair::new().await;
    let (ask, requests) = stream::channel(1);
    let mut answers = pair.client.full_duplex_call(requests).await.unwrap();
    for each in TURNS {
        ask.send(turn(each)).await.unwrap();
        assert_eq!(next(&mut answers).await, Some(each.1));
    }
    drop(ask);
    assert_eq!(next(&mut answers).await, None);
}

#[tokio::test]
async fn half_duplex() {
    let pair = Pair::new().await;
    let mut answers = pair.client.half_duplex_call(stream::iter(TURNS.map(turn))).await.unwrap();
    for (_, size) in TURNS {
        assert_eq!(next(&mut answers).await, Some(size));
    }
    assert_eq!(next(&mut answers).await, None);
}

#[tokio::test]
async fn empty_stream() {
    let pair = Pair::new().await;
    let mut answers = pair.client.full_duplex_call(stream::iter::<[OutputRequest; 0]>([])).await.unwrap();
    assert_eq!(next(&mut answers).await, None);
    assert_eq!(answers.end_reason(), Some(EndReason::Completed));
}

#[tokio::test]
async fn custom_metadata() {
    let pair = Pair::new().await;
    let (text, bytes) = ("test_initial_metadata_value", [0xab, 0xab, 0xab]);

    let call = pair.client.unary_call(large()).metadata(INITIAL, text).metadata_bin(TRAILING, bytes);
    let Response { metadata, trailers, .. } = call.with_response().await.unwrap();
    assert_eq!((metadata.get(INITIAL), metadata.len()), (Some(text), 1));
    assert_eq!((trailers.get_bin(TRAILING), trailers.len()), (Some(&bytes[..]), 1));

    let call = pair.client.full_duplex_call(stream::iter([turn(TURNS[0])]));
    let mut answers = call.metadata(INITIAL, text).metadata_bin(TRAILING, bytes).await.unwrap();
    assert_eq!((answers.metadata().get(INITIAL), answers.metadata().len()), (Some(text), 1));
    assert!(answers.trailers().is_empty(), "it has not ended");
    assert_eq!(next(&mut answers).await, Some(31415));
    assert_eq!(next(&mut answers).await, None);
    assert_eq!((answers.trailers().get_bin(TRAILING), answers.trailers().len()), (Some(&bytes[..]), 1));
}

/// By a call, and by a stream, which ends with it after its items.
async fn is_told(code: Code, message: &str) {
    let pair = Pair::new().await;
    let status = EchoStatus { code: code as i32, message: message.to_owned() };
    let request = SimpleRequest { response_status: Some(status.clone()), ..SimpleRequest::default() };
    let failed = pair.client.unary_call(request).await.unwrap_err();
    assert_eq!((failed.code(), failed.message()), (code, message));

    let request = OutputRequest { response_status: Some(status), ..turn(TURNS[0]) };
    let mut answers = pair.client.full_duplex_call(stream::iter([request])).await.unwrap();
    assert_eq!(next(&mut answers).await, Some(31415));
    let failed = answers.message().await.unwrap_err();
    assert_eq!((failed.code(), failed.message()), (code, message));
    assert_eq!(answers.end_reason(), Some(EndReason::Status));
}

#[tokio::test]
async fn status_code_and_message() {
    is_told(Code::Unknown, "test status message").await;
}

#[tokio::test]
async fn special_status_message() {
    is_told(Code::Unknown, "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n").await;
}

/// The service as a client of a later version knows it.
#[farcall::service(package = "grpc.testing", name = "TestService", codec = farcall::Prost)]
trait LaterTestService {
    async fn empty_call(&self, request: Empty) -> Result<Empty>;
    async fn unimplemented_call(&self, request: Empty) -> Result<Empty>;
}

#[farcall::service(package = "grpc.testing", codec = farcall::Prost)]
trait UnimplementedService {
    async fn unimplemented_call(&self, request: Empty) -> Result<Empty>;
}

#[tokio::test]
async fn unimplemented_method() {
    let pair = Pair::new().await;
    let later = LaterTestServiceClient::new(&pair.channel);
    let status = later.unimplemented_call(Empty {}).await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::Unimplemented, Executed::No), "{status}");
    assert!(status.message().contains("unimplemented_call"), "{status}");
    assert_eq!(later.empty_call(Empty {}).await.unwrap(), Empty {});
}

#[tokio::test]
async fn unimplemented_service() {
    let pair = Pair::new().await;
    let none = UnimplementedServiceClient::new(&pair.channel);
    let status = none.unimplemented_call(Empty {}).await.unwrap_err();
    assert_eq!((status.code(), status.executed()), (Code::Unimplemented, Executed::No), "{status}");
    assert!(status.message().contains("grpc.testing.UnimplementedService"), "{status}");
}

/// Nobody is left to be told CANCELLED, as gRPC's client is: the call is a future, which is dropped.
#[tokio::test]
async fn cancel_after_begin() {
    let mut pair = Pair::new().await;
    let (ask, requests) = stream::channel::<InputRequest, _>(1);
    let call = tokio::spawn(pair.client.streaming_input_call(requests).into_future());
    pair.told("begun").await;
    call.abort();
    pair.told("gone").await;
    ask.closed().await;
    assert!(pair.client.empty_call(Empty {}).await.is_ok());
}

#[tokio::test]
async fn cancel_after_first_response() {
    let mut pair = Pair::new().await;
    let (ask, requests) = stream::channel(1);
    let mut answers = pair.client.full_duplex_call(requests).await.unwrap();
    ask.send(turn(TURNS[0])).await.unwrap();
    assert_eq!(next(&mut answers).await, Some(31415));
    drop(answers);
    pair.told("gone").await;
    ask.closed().await;
}

#[tokio::test]
async fn timeout_on_sleeping_server() {
    let pair = Pair::new().await;
    let (ask, requests) = stream::channel(1);
    let asks_for_nothing = OutputRequest { payload: zeros(27182), ..OutputRequest::default() };
    ask.send(asks_for_nothing).await.unwrap();
    let call = pair.client.full_duplex_call(requests).timeout(Duration::from_millis(1));
    let status = match call.await {
        Ok(mut answers) => answers.message().await.unwrap_err(),
        Err(before) => before,
    };
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

/// How many at once; an emulated machine takes a minute for a thousand.
fn many() -> usize {
    if over::transport() == "tcp" { 1000 } else { 100 }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_large_unary() {
    let pair = Pair::new().await;
    let mut calls = JoinSet::new();
    for _ in 0..many() {
        let call = pair.client.unary_call(large()).into_future();
        calls.spawn(async { len(&call.await.unwrap().payload) });
    }
    assert_eq!(calls.join_all().await, vec![314_159; many()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_streams_on_one_connection() {
    let pair = Pair::new().await;
    let connection = pair.channel.connection().await.unwrap();
    let mut streams = Vec::new();
    for _ in 0..many() {
        let (ask, requests) = stream::channel(1);
        streams.push((ask, pair.client.full_duplex_call(requests).await.unwrap()));
    }
    for each in [(8, 9), (1828, 2653)] {
        for (ask, _) in &streams {
            ask.send(turn(each)).await.unwrap();
        }
        for (_, answers) in &mut streams {
            assert_eq!(next(answers).await, Some(each.1));
            assert!(answers.connection().is_some_and(|theirs| Arc::ptr_eq(&theirs, &connection)));
        }
    }
    for (ask, mut answers) in streams {
        drop(ask);
        assert_eq!(next(&mut answers).await, None);
    }
}
