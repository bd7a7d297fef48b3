//! `farcall call`: a call with arguments and answer as JSON, of a server that has reflection.

pub(crate) mod example;
mod json;
mod signature;
#[cfg(test)]
mod tests;

use std::io::BufRead;
use std::time::Duration;

use clap::Args;
use farcall::admin::{Message, Outcome};
use farcall::dynamic::{Client, Failed, Kind, Method, Payload, ServiceInfo};
use farcall::reflection::{self, Service};
use farcall::{Bytes, Channel, Status, Stream, Streaming, stream};
use serde_json::Value;

use self::signature::{Described, Plain, Signature, Type};
use crate::describe::{find, services};
use crate::number;
use crate::output::{self, Failure, foreign};
use crate::target::{By, Target};

/// Call a method, with arguments and answer as JSON.
///
/// Arguments are an object by their names, or a list. Bytes are text, a list of numbers, or {"hex": "00ff"}. A stream of answers is
/// printed line by line. A stream of arguments is read from standard input, a JSON value a line.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall call db1 shop.v1.Kv/put '{\"key\": \"greeting\", \"value\": \"hello\"}'
  farcall call db1 Kv/get '[\"greeting\"]' --timeout 0.5 --metadata token=secret
  seq 3 | farcall call db1 Orders/import

Exit status: 0 answered, 1 the call failed, 64 wrong arguments")]
pub(crate) struct Call {
    #[command(flatten)]
    target: Target,
    /// SERVICE/METHOD. The package may be left out where the rest is clear
    method: String,
    /// The arguments as JSON. `farcall describe HOST SERVICE/METHOD` prints some to begin from
    arguments: Option<String>,
    /// Give up after so many seconds
    #[arg(long, default_value_t = 10.0, value_parser = number(0.001..=1e6))]
    timeout: f64,
    /// Send a name and a value beside the arguments
    #[arg(long, value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    /// The link that the call goes by
    #[arg(long, default_value = "auto")]
    transport: By,
}

fn understood(method: &reflection::Method) -> Result<Signature, Failure> {
    Signature::parse(&method.signature)
        .map_err(|why| Failure::no(format!("the signature `{}` is not understood: {why}", method.signature)))
}

pub(crate) fn call(arguments: &Call) -> Result<u8, Failure> {
    crate::runtime(1)?.block_on(async {
        let channel = arguments.target.connect(arguments.transport).await?;
        let services = services(&channel).await?;
        let (service, method) = find(&services, &arguments.method)?;
        made(arguments, &channel, service, method).await
    })
}

/// Makes a call, and prints its answers.
async fn made(
    arguments: &Call,
    channel: &Channel,
    service: &Service,
    method: &reflection::Method,
) -> Result<u8, Failure> {
    let signature = types(service, method)?;
    if ["BulkRead(", "BulkWrite("].iter().any(|lends| method.signature.contains(lends)) {
        return Err(Failure::no(format!(
            "a caller of {} lends memory, which only a program can",
            method.name
        )));
    }
    let payload = encoded(&signature, arguments.arguments.as_deref())?;
    let timeout = Duration::from_secs_f64(arguments.timeout);
    let metadata = metadata(&arguments.metadata)?;
    let client = Client::new(channel, info(service, method, method.fingerprint));
    // Options of both kinds of calls.
    macro_rules! with_options {
        ($call:expr) => {
            metadata.iter().fold($call.timeout(timeout), |call, (name, value)| call.metadata(name, value))
        };
    }
    let items = signature.requests.clone().map(requests);
    match (method.kind(), items) {
        (Kind::Unary, _) => one(&signature, with_options!(client.unary(0, payload)).await),
        (Kind::ClientStreaming, Some(items)) => {
            one(&signature, with_options!(client.client_streaming(0, payload, items)).await)
        }
        (Kind::ServerStreaming, _) => {
            many(&signature, with_options!(client.server_streaming(0, payload)).await).await
        }
        (Kind::BidiStreaming, Some(items)) => {
            many(&signature, with_options!(client.bidi_streaming(0, payload, items)).await).await
        }
        _ => Err(Failure::no(format!("the signature `{}` has no stream of arguments", method.signature))),
    }
}

/// Returns the types of a method.
pub(crate) fn types(service: &Service, method: &reflection::Method) -> Result<Signature, Failure> {
    match service.codec.as_str() {
        "postcard" => understood(method),
        "raw" if method.kind() == Kind::Unary => Ok(raw()),
        "raw" => Err(Failure::no("`farcall call` makes unary calls of the codec raw")),
        codec => Err(Failure::no(format!(
            "{} has the codec {codec}, whose messages say nothing of their types; `farcall call` makes calls of `postcard` and `raw`",
            service.name
        ))),
    }
}

/// Returns the signature of the codec `Raw`: bytes, and nothing else.
fn raw() -> Signature {
    let bytes = Described { root: Type::Plain(Plain::Rest), named: Vec::new() };
    let arguments = vec![("data".to_owned(), bytes.clone())];
    Signature { arguments, requests: None, answer: bytes, error: None, stream_error: None }
}

/// Returns the service with this method alone, whose signature the caller knows by this fingerprint.
pub(crate) fn info(service: &Service, method: &reflection::Method, fingerprint: u64) -> ServiceInfo {
    let method =
        Method { fingerprint, ..Method::new(method.name.clone(), method.kind(), &*method.signature) };
    ServiceInfo {
        name: service.name.clone().into(),
        codec: service.codec.clone().into(),
        methods: vec![method],
    }
}

fn metadata(given: &[String]) -> Result<Vec<(&str, &str)>, Failure> {
    let pair = |text: &&str| Failure::usage(format!("`{text}` is no metadata: write NAME=VALUE"));
    given.iter().map(String::as_str).map(|text| text.split_once('=').ok_or_else(|| pair(&text))).collect()
}

/// Returns the message of the arguments.
fn encoded(signature: &Signature, text: Option<&str>) -> Result<Payload, Failure> {
    let expected = || format!("the arguments are like {}", example::arguments(signature));
    let wrong = |why: &dyn std::fmt::Display| Failure::usage(format!("{why}; {}", expected()));
    let value: Value = match text {
        Some(text) => {
            serde_json::from_str(text).map_err(|why| wrong(&format!("the arguments are no JSON: {why}")))?
        }
        None if signature.arguments.is_empty() => Value::Array(Vec::new()),
        None => return Err(wrong(&"arguments are missing")),
    };
    let mut out = Vec::new();
    match &value {
        Value::Object(given) => {
            if let Some(unknown) =
                given.keys().find(|name| !signature.arguments.iter().any(|(known, _)| known == *name))
            {
                return Err(wrong(&format!("there is no argument `{unknown}`")));
            }
            for (name, described) in &signature.arguments {
                let value = match (given.get(name), &described.root) {
                    (Some(value), _) => value,
                    (None, Type::Option(_)) => &Value::Null,
                    (None, _) => return Err(wrong(&format!("the argument `{name}` is missing"))),
                };
                json::encode(described, value, name, &mut out).map_err(|why| wrong(&why))?;
            }
        }
        Value::Array(given) if given.len() == signature.arguments.len() => {
            for ((name, described), value) in signature.arguments.iter().zip(given) {
                json::encode(described, value, name, &mut out).map_err(|why| wrong(&why))?;
            }
        }
        _ => return Err(wrong(&format!("{} arguments are expected", signature.arguments.len()))),
    }
    Ok(Payload::from_body(Bytes::from(out)))
}

/// Reads the items of a stream from standard input, a JSON value a line.
fn requests(items: Described) -> impl Stream<Item = Result<Payload, Status>> + Send + 'static {
    let (sender, mut receiver) = tokio::sync::mpsc::channel(16);
    std::thread::spawn(move || {
        for (index, line) in std::io::stdin().lock().lines().enumerate() {
            let item = line.map_err(|error| error.to_string()).and_then(|line| {
                let mut out = Vec::new();
                let value: Value =
                    serde_json::from_str(&line).map_err(|why| format!(": it is no JSON: {why}"))?;
                json::encode(&items, &value, "", &mut out)?;
                Ok(Payload::from_body(Bytes::from(out)))
            });
            let item = item.map_err(|why| {
                Status::invalid_argument(format!("line {} of standard input{why}", index + 1))
            });
            if sender.blocking_send(item).is_err() {
                return; // The server has enough.
            }
        }
    });
    stream::generate(async move |items| {
        while let Some(item) = receiver.recv().await {
            items.send(item?).await;
        }
        Ok(())
    })
}

fn one(signature: &Signature, answer: Result<Payload, Failed>) -> Result<u8, Failure> {
    let answer = answer.map_err(|failed| failure(signature.error.as_ref(), failed))?;
    let value = json::decode(&signature.answer, &answer).map_err(undecodable)?;
    output::print_answer(&format!("{value:#}\n"))?;
    Ok(0)
}

async fn many(
    signature: &Signature,
    answers: Result<Streaming<Payload, Failed>, Failed>,
) -> Result<u8, Failure> {
    let mut answers = answers.map_err(|failed| failure(signature.error.as_ref(), failed))?;
    loop {
        match answers.message().await {
            Ok(None) => return Ok(0),
            Ok(Some(item)) => {
                let value = json::decode(&signature.answer, &item).map_err(undecodable)?;
                output::print_answer(&format!("{value}\n"))?;
            }
            Err(failed) => return Err(failure(signature.stream_error.as_ref(), failed)),
        }
    }
}

fn undecodable(why: String) -> Failure {
    Failure::no(format!("the answer is not as the signature says: {why}"))
}

fn failure(error: Option<&Described>, failed: Failed) -> Failure {
    match failed {
        Failed::Status(status) => Failure::no(status),
        Failed::Application(payload) => match error.map(|described| json::decode(described, &payload)) {
            Some(Ok(value)) => Failure::no(format!("the call failed with the application's error {value}")),
            Some(Err(why)) => undecodable(why),
            None => Failure::no("the call failed with an error that its signature does not have"),
        },
    }
}

/// Returns an outcome as JSON, as far as the types are known, for people to compare.
pub(crate) fn shown(services: &[Service], path: &str, outcome: &Outcome) -> String {
    let signature =
        find(services, path).ok().and_then(|(_, method)| Signature::parse(&method.signature).ok());
    let decoded = |described: Option<&Described>, message: &Message| {
        let value = described.and_then(|described| json::decode(described, &message.payload()).ok());
        value.map_or_else(|| format!("{} bytes", message.body.len()), |value| clipped(&value.to_string()))
    };
    match outcome {
        Outcome::Answer(message) => decoded(signature.as_ref().map(|signature| &signature.answer), message),
        Outcome::Error(message) => {
            format!(
                "error {}",
                decoded(signature.as_ref().and_then(|signature| signature.error.as_ref()), message)
            )
        }
        Outcome::Status(code, message) => foreign(&format!("{code}: {message}")),
        _ => "an end of another version".to_owned(),
    }
}

/// Returns the arguments of a call as JSON, as far as their types are known.
pub(crate) fn shown_arguments(services: &[Service], path: &str, message: &Message) -> String {
    let signature =
        find(services, path).ok().and_then(|(_, method)| Signature::parse(&method.signature).ok());
    let values = signature.and_then(|signature| {
        let types = signature.arguments.iter().map(|(_, described)| described);
        json::decode_all(types, &message.payload()).ok()
    });
    values.map_or_else(
        || format!("{} bytes", message.body.len()),
        |values| clipped(&Value::Array(values).to_string()),
    )
}

fn clipped(text: &str) -> String {
    const MOST: usize = 200;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => foreign(&format!("{}…", &text[..end])),
        None => foreign(text),
    }
}
