//! The messages of `grpc/testing/messages.proto`, but for fields that no case uses.

use farcall::Bytes;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct BoolValue {
    #[prost(bool, tag = "1")]
    pub(crate) value: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Payload {
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) body: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EchoStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SimpleRequest {
    #[prost(int32, tag = "2")]
    pub(crate) response_size: i32,
    #[prost(message, optional, tag = "3")]
    pub(crate) payload: Option<Payload>,
    #[prost(message, optional, tag = "6")]
    pub(crate) response_compressed: Option<BoolValue>,
    #[prost(message, optional, tag = "7")]
    pub(crate) response_status: Option<EchoStatus>,
    #[prost(message, optional, tag = "8")]
    pub(crate) expect_compressed: Option<BoolValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SimpleResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) payload: Option<Payload>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InputRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) payload: Option<Payload>,
    #[prost(message, optional, tag = "2")]
    pub(crate) expect_compressed: Option<BoolValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InputResponse {
    #[prost(int32, tag = "1")]
    pub(crate) aggregated_payload_size: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResponseParameters {
    #[prost(int32, tag = "1")]
    pub(crate) size: i32,
    #[prost(message, optional, tag = "3")]
    pub(crate) compressed: Option<BoolValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OutputRequest {
    #[prost(message, repeated, tag = "2")]
    pub(crate) response_parameters: Vec<ResponseParameters>,
    #[prost(message, optional, tag = "3")]
    pub(crate) payload: Option<Payload>,
    #[prost(message, optional, tag = "7")]
    pub(crate) response_status: Option<EchoStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OutputResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) payload: Option<Payload>,
}
