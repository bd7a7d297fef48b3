//! Calls, and the channels and stubs that they are made on.

mod balance;
mod call;
mod class_connection;
mod connector;
mod direct;
mod finish;
mod in_flight;
mod meter;
mod options;
mod policies;
mod raw_channel;
mod request_memory;
mod retry_budget;
mod setters;
mod silent_peer;
mod stream_call;
mod stub;
#[cfg(feature = "tower")]
mod tower;
mod watched;

pub use self::balance::{Answers, Endpoint, EndpointState, Readiness, WatchHealth};
pub use crate::response::{Parts, Response};
pub use call::{Call, CallFuture, PartsFuture, ResponseFuture};
pub use connector::Connector;
pub(crate) use finish::{Finish, read};
pub use raw_channel::{Endpoints, RawChannel};
pub use stream_call::StreamCall;
pub(crate) use stream_call::{Arguments, stream_of};
pub use stub::Stub;
