//! The question of a channel to its servers: whether they serve.

use farcall_core::client::{Answers, RawChannel, WatchHealth};

use super::{HealthClient, Serving};
use crate::stream;

/// Asks servers about the service of this name.
#[derive(Debug)]
pub(crate) struct Watching(pub(crate) String);

impl WatchHealth for Watching {
    fn watch(&self, server: RawChannel) -> Answers {
        let service = self.0.clone();
        Box::pin(stream::generate(async move |answers| {
            let mut states = HealthClient::new(server).watch(service).await?;
            while let Some(state) = states.message().await? {
                // A service that the server does not know may be one that reports nothing.
                answers.send(state != Serving::NotServing).await;
            }
            Ok(())
        }))
    }
}
