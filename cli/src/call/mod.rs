//! `farcall call`: a call with arguments and answer as JSON, of a server that has reflection.

mod form;
mod postcard;
pub(crate) mod protobuf;
mod signature;

use std::borrow::Cow;
use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use farcall::admin::{Message, Outcome};
use farcall::dynamic::{Client, Failed, Kind, Method, Payload, ServiceInfo};
use farcall::reflection::{self, Service};
use farcall::{Channel, Status, Stream, Streaming, stream};
use serde_json::Value;

pub(crate) use self::form::{Form, Forms};
use crate::describe::Told;
use crate::number;
use crate::output::{self, Failure, foreign};
use crate::target::{By, Target};

/// Call a method, with arguments and answer as JSON.
///
/// Arguments are an object by their names, or a list. Bytes are text, a list of numbers, or {"hex": "00ff"}. Messages of protobuf are
/// as protobuf's JSON has them. A stream of answers is printed line by line. A stream of arguments is read from standard input, a JSON
/// value a line.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall call db1 shop.v1.Kv/put '{\"key\": \"greeting\", \"value\": \"hello\"}'
  farcall call db1 Kv/get '[\"greeting\"]' --timeout 0.5 --metadata token=secret
  farcall call db1 Kv/put @put.json
  seq 3 | farcall call db1 Orders/import

Exit status: 0 answered, 1 the call failed, 64 wrong arguments")]
pub(crate) struct Call {
    #[command(flatten)]
    target: Target,
    /// SERVICE/METHOD. The package may be left out where the rest is clear
    method: String,
    /// The arguments as JSON, @FILE with them, or - for standard input. `farcall describe HOST SERVICE/METHOD` prints some to begin
    /// from
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

pub(crate) fn call(arguments: &Call) -> Result<u8, Failure> {
    crate::runtime(1)?.block_on(async {
        let channel = arguments.target.connect(arguments.transport).await?;
        let told = Told::by(&channel).await?;
        let (service, method) = told.find(&arguments.method)?;
        let forms = Forms::of(&told, service, method)?;
        made(arguments, &channel, service, method, &forms).await
    })
}

/// Makes a call, and prints its answers.
async fn made(
    arguments: &Call,
    channel: &Channel,
    service: &Service,
    method: &reflection::Method,
    forms: &Forms,
) -> Result<u8, Failure> {
    if ["BulkRead(", "BulkWrite("].iter().any(|lends| method.signature.contains(lends)) {
        return Err(Failure::no(format!(
            "a caller of {} lends memory, which only a program can",
            method.name
        )));
    }
    let given = arguments.arguments.as_deref().map(|given| text(given, forms.requests.is_some()));
    let payload = encoded(forms, given.transpose()?.as_deref())?;
    let timeout = Duration::from_secs_f64(arguments.timeout);
    let metadata = metadata(&arguments.metadata)?;
    let client = Client::new(channel, info(service, method, method.fingerprint));
    // Options of both kinds of calls.
    macro_rules! with_options {
        ($call:expr) => {
            metadata.iter().fold($call.timeout(timeout), |call, (name, value)| call.metadata(name, value))
        };
    }
    let items = forms.requests.clone().map(requests);
    match (method.kind(), items) {
        (Kind::Unary, _) => one(forms, with_options!(client.unary(0, payload)).await),
        (Kind::ClientStreaming, Some(items)) => {
            one(forms, with_options!(client.client_streaming(0, payload, items)).await)
        }
        (Kind::ServerStreaming, _) => {
            many(forms, with_options!(client.server_streaming(0, payload)).await).await
        }
        (Kind::BidiStreaming, Some(items)) => {
            many(forms, with_options!(client.bidi_streaming(0, payload, items)).await).await
        }
        _ => Err(Failure::no(format!("the signature `{}` has no stream of arguments", method.signature))),
    }
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

/// Returns the JSON of the arguments: the text itself, or where it says that it is.
fn text(given: &str, streams: bool) -> Result<Cow<'_, str>, Failure> {
    let (read, place) = match (given, given.strip_prefix('@')) {
        ("-", _) if streams => {
            let why = "standard input has the stream of arguments; write the others to a file, and give it as @FILE";
            return Err(Failure::usage(why));
        }
        ("-", _) => (std::io::read_to_string(std::io::stdin()), "standard input"),
        (_, Some(file)) => (std::fs::read_to_string(file), file),
        _ => return Ok(given.into()),
    };
    read.map(Cow::Owned).map_err(|why| Failure::usage(format!("{place} can't be read: {why}")))
}

/// Returns the message of the arguments.
fn encoded(forms: &Forms, text: Option<&str>) -> Result<Payload, Failure> {
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::usage(format!("{why}; the arguments are like {}", forms.arguments.example()))
    };
    let value = match (text, &forms.nothing) {
        (Some(text), _) => {
            serde_json::from_str(text).map_err(|why| wrong(&format!("the arguments are no JSON: {why}")))?
        }
        (None, Some(nothing)) => nothing.clone(),
        (None, None) => return Err(wrong(&"arguments are missing")),
    };
    forms.arguments.encode(&value).map_err(|why| wrong(&why))
}

/// Reads the items of a stream from standard input, a JSON value a line.
fn requests(items: Arc<dyn Form>) -> impl Stream<Item = Result<Payload, Status>> + Send + 'static {
    let (sender, mut receiver) = tokio::sync::mpsc::channel(16);
    std::thread::spawn(move || {
        for (index, line) in std::io::stdin().lock().lines().enumerate() {
            let item = line.map_err(|error| error.to_string()).and_then(|line| {
                let value: Value =
                    serde_json::from_str(&line).map_err(|why| format!("it is no JSON: {why}"))?;
                items.encode(&value)
            });
            let item = item.map_err(|why| {
                Status::invalid_argument(format!("line {} of standard input: {why}", index + 1))
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

fn one(forms: &Forms, answer: Result<Payload, Failed>) -> Result<u8, Failure> {
    let answer = answer.map_err(|failed| failure(forms.error.as_deref(), failed))?;
    let value = forms.answer.decode(&answer).map_err(undecodable)?;
    output::print_answer(&format!("{value:#}\n"))?;
    Ok(0)
}

async fn many(forms: &Forms, answers: Result<Streaming<Payload, Failed>, Failed>) -> Result<u8, Failure> {
    let mut answers = answers.map_err(|failed| failure(forms.error.as_deref(), failed))?;
    loop {
        match answers.message().await {
            Ok(None) => return Ok(0),
            Ok(Some(item)) => {
                let value = forms.answer.decode(&item).map_err(undecodable)?;
                output::print_answer(&format!("{value}\n"))?;
            }
            Err(failed) => return Err(failure(forms.stream_error.as_deref(), failed)),
        }
    }
}

fn undecodable(why: String) -> Failure {
    Failure::no(format!("the answer is not as the server says: {why}"))
}

fn failure(error: Option<&dyn Form>, failed: Failed) -> Failure {
    match failed {
        Failed::Status(status) => Failure::no(status),
        Failed::Application(payload) => match error.map(|form| form.decode(&payload)) {
            Some(Ok(value)) => Failure::no(format!("the call failed with the application's error {value}")),
            Some(Err(why)) => undecodable(why),
            None => Failure::no("the call failed with an error that its signature does not have"),
        },
    }
}

/// Returns an outcome as JSON, as far as the types are known, for people to compare.
pub(crate) fn shown(told: &Told, path: &str, outcome: &Outcome) -> String {
    let forms = forms(told, path);
    match outcome {
        Outcome::Answer(message) => decoded(forms.as_ref().map(|forms| &*forms.answer), message),
        Outcome::Error(message) => {
            format!("error {}", decoded(forms.as_ref().and_then(|forms| forms.error.as_deref()), message))
        }
        Outcome::Status(code, message) => foreign(&format!("{code}: {message}")),
        _ => "an end of another version".to_owned(),
    }
}

/// Whether two calls of a method have ended alike. A map may be encoded in any order. The message of a status names addresses and times, so
/// it may differ.
pub(crate) fn is_same(told: &Told, path: &str, one: &Outcome, other: &Outcome) -> bool {
    let forms = || forms(told, path);
    match (one, other) {
        (Outcome::Status(one, _), Outcome::Status(other, _)) => one == other,
        (Outcome::Answer(one), Outcome::Answer(other)) => {
            one == other || is_same_value(forms().as_ref().map(|forms| &*forms.answer), one, other)
        }
        (Outcome::Error(one), Outcome::Error(other)) => {
            let is_same = |forms: &Forms| is_same_value(forms.error.as_deref(), one, other);
            one == other || forms().as_ref().is_some_and(is_same)
        }
        _ => false,
    }
}

/// Whether two messages differ in the order of their maps alone: they have the same bytes in some order, and the same values.
fn is_same_value(form: Option<&dyn Form>, one: &Message, other: &Message) -> bool {
    let sorted = |message: &Message| {
        let mut bytes = message.body.to_vec();
        bytes.sort_unstable();
        bytes
    };
    let value = |message: &Message| form.and_then(|form| form.decode(&message.payload()).ok());
    one.attachments == other.attachments
        && sorted(one) == sorted(other)
        && value(one).is_some_and(|one| value(other).is_some_and(|other| one == other))
}

/// Returns the arguments of a call as JSON, as far as their types are known.
pub(crate) fn shown_arguments(told: &Told, path: &str, message: &Message) -> String {
    decoded(forms(told, path).as_ref().map(|forms| &*forms.arguments), message)
}

/// Returns the forms of a method, as far as they are known.
fn forms(told: &Told, path: &str) -> Option<Forms> {
    let (service, method) = told.find(path).ok()?;
    Forms::of(told, service, method).ok()
}

fn decoded(form: Option<&dyn Form>, message: &Message) -> String {
    let value = form.and_then(|form| form.decode(&message.payload()).ok());
    value.map_or_else(|| format!("{} bytes", message.body.len()), |value| clipped(&value.to_string()))
}

fn clipped(text: &str) -> String {
    const MOST: usize = 200;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => foreign(&format!("{}…", &text[..end])),
        None => foreign(text),
    }
}
