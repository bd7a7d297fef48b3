//! The few requests to etcd that a registry needs, by etcd's JSON gateway (<https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/>).

use std::io::{self, BufRead, BufReader};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use ureq::Agent;

/// How long etcd may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a watch lasts. After that the servers are listed anew, so a connection that has died unseen does no harm for longer.
const WATCH: Duration = Duration::from_secs(10);

/// An etcd server. All its methods block.
#[derive(Clone)]
pub struct Etcd {
    url: String,
    asks: Agent,
    watches: Agent,
}

/// The keys of a prefix, at one time.
pub struct Listed {
    pub values: Vec<String>,
    /// The revision of etcd at which they were listed.
    pub revision: i64,
}

impl Etcd {
    /// Returns the server at a URL such as `http://127.0.0.1:2379`.
    pub fn at(url: &str) -> Self {
        let agent = |patience| Agent::config_builder().timeout_global(Some(patience)).build().into();
        Self { url: url.trim_end_matches('/').to_owned(), asks: agent(PATIENCE), watches: agent(WATCH) }
    }

    /// Begins a lease: what is put by it is deleted when nobody has kept it alive for so long.
    pub fn begin_lease(&self, lasts: Duration) -> io::Result<i64> {
        let answer = self.ask("lease/grant", &json!({ "TTL": lasts.as_secs().max(1) }))?;
        number(&answer["ID"]).ok_or_else(|| unexpected(&answer))
    }

    /// Keeps a lease alive. An error if it is over.
    pub fn keep_alive(&self, lease: i64) -> io::Result<()> {
        let answer = self.ask("lease/keepalive", &json!({ "ID": lease.to_string() }))?;
        match number(&answer["result"]["TTL"]) {
            Some(1..) => Ok(()),
            _ => Err(io::Error::other("the lease is over")),
        }
    }

    /// Ends a lease, and deletes what was put by it.
    pub fn end_lease(&self, lease: i64) -> io::Result<()> {
        self.ask("lease/revoke", &json!({ "ID": lease.to_string() })).map(drop)
    }

    /// Puts a value for as long as a lease lasts.
    pub fn put(&self, key: &str, value: &str, lease: i64) -> io::Result<()> {
        let put = json!({ "key": encoded(key), "value": encoded(value), "lease": lease.to_string() });
        self.ask("kv/put", &put).map(drop)
    }

    /// Lists the values of all keys that begin with a prefix.
    pub fn list(&self, prefix: &str) -> io::Result<Listed> {
        let answer =
            self.ask("kv/range", &json!({ "key": encoded(prefix), "range_end": encoded(&behind(prefix)) }))?;
        let revision = number(&answer["header"]["revision"]).ok_or_else(|| unexpected(&answer))?;
        let keys = answer["kvs"].as_array().map_or(&[][..], Vec::as_slice);
        let values = keys.iter().map(|key| decoded(&key["value"])).collect::<io::Result<_>>()?;
        Ok(Listed { values, revision })
    }

    /// Waits until keys that begin with a prefix have changed since they were listed, or for ten seconds.
    pub fn wait(&self, prefix: &str, listed: &Listed) -> io::Result<()> {
        let (key, end) = (encoded(prefix), encoded(&behind(prefix)));
        let since = (listed.revision + 1).to_string();
        let asked = json!({ "create_request": { "key": key, "range_end": end, "start_revision": since } });
        let answer = match self.watches.post(format!("{}/v3/watch", self.url)).send(asked.to_string()) {
            Err(ureq::Error::Timeout(_)) => return Ok(()),
            answer => answer.map_err(io::Error::other)?,
        };
        for line in BufReader::new(answer.into_body().into_reader()).lines() {
            let answer = match line.map_err(ureq::Error::from) {
                Err(ureq::Error::Timeout(_)) => return Ok(()),
                line => parsed(&line.map_err(io::Error::other)?)?,
            };
            // The first line says that the watch has begun.
            let result = &answer["result"];
            if result["events"].is_array() || result["canceled"] == true {
                return Ok(());
            }
            if !result.is_object() {
                return Err(unexpected(&answer));
            }
        }
        Err(io::Error::other("the watch ended"))
    }

    fn ask(&self, path: &str, asked: &Value) -> io::Result<Value> {
        let answer = self.asks.post(format!("{}/v3/{path}", self.url)).send(asked.to_string());
        let text = answer.map_err(io::Error::other)?.body_mut().read_to_string();
        parsed(&text.map_err(io::Error::other)?)
    }
}

/// Returns the first key behind all that begin with a prefix.
fn behind(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    if let Some(last) = end.pop() {
        // It is ASCII.
        end.push(char::from(last as u8 + 1));
    }
    end
}

/// Encodes a key or value: for JSON they are bytes.
fn encoded(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

fn decoded(value: &Value) -> io::Result<String> {
    // The gateway leaves out what is empty.
    let bytes = BASE64_STANDARD.decode(value.as_str().unwrap_or_default()).map_err(io::Error::other)?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

fn parsed(text: &str) -> io::Result<Value> {
    serde_json::from_str(text).map_err(io::Error::other)
}

/// Reads a number of 64 bits, which the gateway writes as text.
fn number(value: &Value) -> Option<i64> {
    value.as_str()?.parse().ok()
}

fn unexpected(answer: &Value) -> io::Error {
    io::Error::other(format!("etcd's answer is not as expected: {answer}"))
}
