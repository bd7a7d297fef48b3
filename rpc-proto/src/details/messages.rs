//! The messages of `google/rpc/error_details.proto`, and those that they are made of.

use std::collections::BTreeMap;
use std::time;

use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

use super::Detail;

/// A type that a field of a message can have. A field that has its default value is not sent.
trait Field {
    fn put(&self, tag: u32, buf: &mut impl BufMut);
    fn read(&mut self, wire: WireType, buf: &mut impl Buf, ctx: DecodeContext) -> Result<(), DecodeError>;
    fn size(&self, tag: u32) -> usize;
}

/// A message, as prost's `derive` would have it: that would add four crates to every build.
macro_rules! message {
    ($(#[$doc:meta])* $name:ident $(($url:literal))? {
        $($(#[$field_doc:meta])* $tag:literal $field:ident: $ty:ty,)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $ty,)+
        }

        impl Message for $name {
            fn encode_raw(&self, buf: &mut impl BufMut) {
                $(self.$field.put($tag, buf);)+
            }

            fn merge_field(
                &mut self,
                tag: u32,
                wire: WireType,
                buf: &mut impl Buf,
                ctx: DecodeContext,
            ) -> Result<(), DecodeError> {
                match tag {
                    $($tag => self.$field.read(wire, buf, ctx),)+
                    _ => encoding::skip_field(wire, tag, buf, ctx),
                }
            }

            fn encoded_len(&self) -> usize {
                [$(self.$field.size($tag)),+].iter().sum()
            }

            fn clear(&mut self) {
                *self = Self::default();
            }
        }

        impl Field for Option<$name> {
            fn put(&self, tag: u32, buf: &mut impl BufMut) {
                if let Some(message) = self {
                    encoding::message::encode(tag, message, buf);
                }
            }

            fn read(
                &mut self,
                wire: WireType,
                buf: &mut impl Buf,
                ctx: DecodeContext,
            ) -> Result<(), DecodeError> {
                encoding::message::merge(wire, self.get_or_insert_default(), buf, ctx)
            }

            fn size(&self, tag: u32) -> usize {
                self.as_ref().map_or(0, |message| encoding::message::encoded_len(tag, message))
            }
        }

        impl Field for Vec<$name> {
            fn put(&self, tag: u32, buf: &mut impl BufMut) {
                encoding::message::encode_repeated(tag, self, buf);
            }

            fn read(
                &mut self,
                wire: WireType,
                buf: &mut impl Buf,
                ctx: DecodeContext,
            ) -> Result<(), DecodeError> {
                encoding::message::merge_repeated(wire, self, buf, ctx)
            }

            fn size(&self, tag: u32) -> usize {
                encoding::message::encoded_len_repeated(tag, self)
            }
        }

        $(
            impl Detail for $name {
                const TYPE_URL: &'static str = concat!("type.googleapis.com/", $url);
            }
        )?
    };
}

macro_rules! scalar {
    ($ty:ty, $encoding:ident) => {
        impl Field for $ty {
            fn put(&self, tag: u32, buf: &mut impl BufMut) {
                if *self != Self::default() {
                    encoding::$encoding::encode(tag, self, buf);
                }
            }

            fn read(
                &mut self,
                wire: WireType,
                buf: &mut impl Buf,
                ctx: DecodeContext,
            ) -> Result<(), DecodeError> {
                encoding::$encoding::merge(wire, self, buf, ctx)
            }

            fn size(&self, tag: u32) -> usize {
                if *self == Self::default() { 0 } else { encoding::$encoding::encoded_len(tag, self) }
            }
        }
    };
}

scalar!(String, string);
scalar!(Bytes, bytes);
scalar!(i32, int32);
scalar!(i64, int64);

/// A field that tells its default value from none.
impl Field for Option<i64> {
    fn put(&self, tag: u32, buf: &mut impl BufMut) {
        if let Some(value) = self {
            encoding::int64::encode(tag, value, buf);
        }
    }

    fn read(&mut self, wire: WireType, buf: &mut impl Buf, ctx: DecodeContext) -> Result<(), DecodeError> {
        encoding::int64::merge(wire, self.get_or_insert_default(), buf, ctx)
    }

    fn size(&self, tag: u32) -> usize {
        self.as_ref().map_or(0, |value| encoding::int64::encoded_len(tag, value))
    }
}

impl Field for Vec<String> {
    fn put(&self, tag: u32, buf: &mut impl BufMut) {
        encoding::string::encode_repeated(tag, self, buf);
    }

    fn read(&mut self, wire: WireType, buf: &mut impl Buf, ctx: DecodeContext) -> Result<(), DecodeError> {
        encoding::string::merge_repeated(wire, self, buf, ctx)
    }

    fn size(&self, tag: u32) -> usize {
        encoding::string::encoded_len_repeated(tag, self)
    }
}

impl Field for BTreeMap<String, String> {
    fn put(&self, tag: u32, buf: &mut impl BufMut) {
        use encoding::string::{encode, encoded_len};
        encoding::btree_map::encode(encode, encoded_len, encode, encoded_len, tag, self, buf);
    }

    fn read(&mut self, _: WireType, buf: &mut impl Buf, ctx: DecodeContext) -> Result<(), DecodeError> {
        encoding::btree_map::merge(encoding::string::merge, encoding::string::merge, self, buf, ctx)
    }

    fn size(&self, tag: u32) -> usize {
        use encoding::string::encoded_len;
        encoding::btree_map::encoded_len(encoded_len, encoded_len, tag, self)
    }
}

message! {
    /// `google.rpc.Status`: a status as gRPC has it.
    RpcStatus {
        /// The number of a [`Code`](crate::status::Code).
        1 code: i32,
        /// The event, for a person.
        2 message: String,
        /// Details that a program can read.
        3 details: Vec<Any>,
    }
}

message! {
    /// `google.protobuf.Any`: a message, and of what type it is.
    Any {
        /// The type: what follows the last `/` is its name, as in `type.googleapis.com/google.rpc.ErrorInfo`.
        1 type_url: String,
        /// The message.
        2 value: Bytes,
    }
}

message! {
    /// The cause, for a program: a reason that is unique in its domain.
    ErrorInfo("google.rpc.ErrorInfo") {
        /// In upper case, as in `OUT_OF_STOCK`.
        1 reason: String,
        /// Whose reason it is, as in `orders.example.com`.
        2 domain: String,
        /// Further facts of this case.
        3 metadata: BTreeMap<String, String>,
    }
}

message! {
    /// When the call can be made again.
    RetryInfo("google.rpc.RetryInfo") {
        /// How long to wait before.
        1 retry_delay: Option<Duration>,
    }
}

message! {
    /// Facts that help to find the bug.
    DebugInfo("google.rpc.DebugInfo") {
        /// The stack where it happened.
        1 stack_entries: Vec<String>,
        /// More of that.
        2 detail: String,
    }
}

message! {
    /// The quotas that are used up.
    QuotaFailure("google.rpc.QuotaFailure") {
        /// Each of them.
        1 violations: Vec<QuotaViolation>,
    }
}

message! {
    /// A quota that is used up.
    QuotaViolation {
        /// Whose it is, as in `project:7`.
        1 subject: String,
        /// How it was used up.
        2 description: String,
        /// The service that it is of, if that is another one.
        3 api_service: String,
        /// The quantity that the quota counts.
        4 quota_metric: String,
        /// Its name.
        5 quota_id: String,
        /// Where there is one for each region, or the like: for which.
        6 quota_dimensions: BTreeMap<String, String>,
        /// How much it allows.
        7 quota_value: i64,
        /// How much it will allow, if that is about to change.
        8 future_quota_value: Option<i64>,
    }
}

message! {
    /// Conditions that must hold before the call can succeed.
    PreconditionFailure("google.rpc.PreconditionFailure") {
        /// Each condition that does not hold.
        1 violations: Vec<PreconditionViolation>,
    }
}

message! {
    /// A condition that does not hold.
    PreconditionViolation {
        /// Its kind, as in `TOS` for terms of service.
        1 r#type: String,
        /// The subject that does not meet the condition.
        2 subject: String,
        /// How to have it hold.
        3 description: String,
    }
}

message! {
    /// The arguments that are wrong.
    BadRequest("google.rpc.BadRequest") {
        /// Each of them.
        1 field_violations: Vec<FieldViolation>,
    }
}

message! {
    /// An argument, or a part of one, that is wrong.
    FieldViolation {
        /// The argument's path: `order.lines[3].count`.
        1 field: String,
        /// The fault.
        2 description: String,
        /// The reason for a program, in upper case.
        3 reason: String,
        /// And for a user.
        4 localized_message: Option<LocalizedMessage>,
    }
}

message! {
    /// Data that finds the call in the server's logs.
    RequestInfo("google.rpc.RequestInfo") {
        /// The call's identifier.
        1 request_id: String,
        /// Other data that helps.
        2 serving_data: String,
    }
}

message! {
    /// The resource that the failure is about.
    ResourceInfo("google.rpc.ResourceInfo") {
        /// Its kind.
        1 resource_type: String,
        /// Its name.
        2 resource_name: String,
        /// Whose it is.
        3 owner: String,
        /// The problem with its use.
        4 description: String,
    }
}

message! {
    /// Where to read more.
    Help("google.rpc.Help") {
        /// The pages.
        1 links: Vec<HelpLink>,
    }
}

message! {
    /// A page to read.
    HelpLink {
        /// The contents of the page.
        1 description: String,
        /// Its address.
        2 url: String,
    }
}

message! {
    /// A message for a user.
    LocalizedMessage("google.rpc.LocalizedMessage") {
        /// The language, as in `de-CH`.
        1 locale: String,
        /// In that language.
        2 message: String,
    }
}

message! {
    /// `google.protobuf.Duration`: a span of time.
    Duration {
        /// Whole seconds.
        1 seconds: i64,
        /// The nanoseconds of another second, with the sign of `seconds`.
        2 nanos: i32,
    }
}

impl RetryInfo {
    /// Tells the caller that it may repeat the call after this time.
    pub fn after(delay: time::Duration) -> Self {
        Self { retry_delay: Some(delay.into()) }
    }

    /// How long to wait; no time, if it does not say or says less than that.
    pub fn delay(&self) -> time::Duration {
        let delay = self.retry_delay.clone().unwrap_or_default();
        delay.try_into().unwrap_or_default()
    }
}

/// One beyond what protobuf can say becomes the longest that it can.
impl From<time::Duration> for Duration {
    fn from(span: time::Duration) -> Self {
        let seconds = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
        Self { seconds, nanos: span.subsec_nanos() as i32 }
    }
}

/// Fails if it is negative.
impl TryFrom<Duration> for time::Duration {
    type Error = std::num::TryFromIntError;

    fn try_from(span: Duration) -> Result<Self, Self::Error> {
        let nanos = Self::from_nanos(u32::try_from(span.nanos)?.into());
        Ok(Self::from_secs(span.seconds.try_into()?).saturating_add(nanos))
    }
}
