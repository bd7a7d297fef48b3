//! Details of a status for programs, in the bytes that gRPC's services send.
//!
//! A status has them as a `google.rpc.Status` in its [`details`](Status::details), so that gateways to gRPC and clients of
//! other languages can read them and make them: they are what gRPC sends as `grpc-status-details-bin`.
//!
//! ```
//! # mod farcall { pub use farcall_proto::{details, status::{Code, Status}}; }
//! use std::time::Duration;
//!
//! use farcall::details::{BadRequest, FieldViolation, RetryInfo};
//! use farcall::{Code, Status};
//!
//! fn too_old() -> Status {
//!     let violation = FieldViolation {
//!         field: "age".into(),
//!         description: "is more than 150".into(),
//!         ..FieldViolation::default()
//!     };
//!     Status::new(Code::InvalidArgument, "nobody is that old")
//!         .with_detail(&BadRequest { field_violations: vec![violation] })
//!         .with_detail(&RetryInfo::after(Duration::from_secs(60)))
//! }
//!
//! // Where the call was made:
//! let status = too_old();
//! if let Some(bad) = status.detail::<BadRequest>() {
//!     assert_eq!(bad.field_violations[0].field, "age");
//! }
//! assert_eq!(status.detail::<RetryInfo>().unwrap().delay(), Duration::from_secs(60));
//! ```

mod messages;
#[cfg(test)]
mod tests;

pub use messages::{
    Any, BadRequest, DebugInfo, Duration, ErrorInfo, FieldViolation, Help, HelpLink, LocalizedMessage,
    PreconditionFailure, PreconditionViolation, QuotaFailure, QuotaViolation, RequestInfo, ResourceInfo,
    RetryInfo, RpcStatus,
};
use prost::{DecodeError, Message};

use crate::status::{Code, Status};

/// A message that can be a detail of a status. An application's own can, too:
///
/// ```
/// # mod farcall { pub use farcall_proto::{details, status::{Code, Status}}; }
/// use farcall::{Code, Status};
///
/// #[derive(Clone, PartialEq, prost::Message)]
/// struct OutOfStock {
///     #[prost(string, tag = "1")]
///     sku: String,
/// }
///
/// impl farcall::details::Detail for OutOfStock {
///     const TYPE_URL: &'static str = "type.googleapis.com/shop.v1.OutOfStock";
/// }
///
/// let status = Status::new(Code::FailedPrecondition, "sold").with_detail(&OutOfStock { sku: "7".into() });
/// assert_eq!(status.detail::<OutOfStock>().unwrap().sku, "7");
/// ```
pub trait Detail: Message + Default {
    /// The URL of its type: its protobuf name, behind `type.googleapis.com/`.
    const TYPE_URL: &'static str;
}

impl Any {
    /// A message, with its type.
    pub fn pack<D: Detail>(detail: &D) -> Self {
        Self { type_url: D::TYPE_URL.to_owned(), value: detail.encode_to_vec().into() }
    }

    /// The message, if it is one of this type. The text before the name of the type does not matter.
    ///
    /// # Errors
    ///
    /// If it says that it is one, and can't be read as such.
    pub fn unpack<D: Detail>(&self) -> Option<Result<D, DecodeError>> {
        (name(&self.type_url) == name(D::TYPE_URL)).then(|| D::decode(self.value.clone()))
    }
}

fn name(type_url: &str) -> &str {
    type_url.rsplit('/').next().unwrap_or(type_url)
}

impl Status {
    /// Adds a detail to those that it has. It takes the place of [`details`](Self::with_details) that are no
    /// `google.rpc.Status`. They count as part of the message, which must not be longer than the client's
    /// `limits.max_message`: else none of them reach it.
    #[must_use]
    pub fn with_detail<D: Detail>(self, detail: &D) -> Self {
        let mut rpc = self.to_rpc();
        rpc.details.push(Any::pack(detail));
        self.with_details(rpc.encode_to_vec().into())
    }

    /// The first detail of this type that can be read.
    pub fn detail<D: Detail>(&self) -> Option<D> {
        self.to_rpc().details.iter().find_map(|any| any.unpack()?.ok())
    }

    /// All details of this type that can be read.
    pub fn all_details<D: Detail>(&self) -> Vec<D> {
        self.to_rpc().details.iter().filter_map(|any| any.unpack()?.ok()).collect()
    }

    /// As gRPC has it. There are no details in it if its [`details`](Self::details) are no `google.rpc.Status`.
    pub fn to_rpc(&self) -> RpcStatus {
        let details = RpcStatus::decode(self.details().clone()).unwrap_or_default().details;
        RpcStatus { code: self.code() as i32, message: self.message().to_owned(), details }
    }

    /// A status of gRPC's as one that a handler returns. A code that is none of an error is UNKNOWN.
    pub fn from_rpc(rpc: &RpcStatus) -> Self {
        let code = u8::try_from(rpc.code).map_or(Code::Unknown, Code::from_wire);
        let status = Self::new(code, rpc.message.clone());
        if rpc.details.is_empty() { status } else { status.with_details(rpc.encode_to_vec().into()) }
    }
}
