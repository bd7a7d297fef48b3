//! Calls by HTTP: a path for each method, arguments and result as bodies.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The form of bodies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Json,
    Postcard,
}

impl Form {
    pub(crate) fn write(self, value: &impl Serialize) -> Result<Bytes> {
        Ok(match self {
            Self::Json => serde_json::to_vec(value)?,
            Self::Postcard => postcard::to_allocvec(value)?,
        }
        .into())
    }

    pub(crate) fn read<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<T> {
        Ok(match self {
            Self::Json => serde_json::from_slice(bytes)?,
            Self::Postcard => postcard::from_bytes(bytes)?,
        })
    }
}

/// A client of one node. Clones share its connections, of which there are as many as calls in progress.
#[derive(Clone)]
pub(crate) struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
    address: Arc<str>,
    form: Form,
}

impl Http {
    pub(crate) fn new(address: &str, form: Form) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Self { client, address: address.into(), form }
    }

    /// Calls a method. Returns its result, of which the callee's error is a part.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        arguments: &impl Serialize,
    ) -> Result<T> {
        let body = Full::new(self.form.write(arguments)?);
        let uri = format!("http://{}/{method}", self.address);
        let answer = self.client.request(axum::http::Request::post(uri).body(body)?).await;
        let answer = answer.with_context(|| format!("{} does not answer", self.address))?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{method}: {status}: {}", String::from_utf8_lossy(&body));
        self.form.read(&body)
    }
}
