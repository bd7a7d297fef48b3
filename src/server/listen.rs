//! Listening in several places.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use farcall_core::server::ServerCore;
use farcall_tcp::{Acceptor, Listener};

use crate::address::check_listen;
use crate::{ConfigError, ConfigErrorKind};

/// Refuses addresses that can't be listened on, before any is.
pub(super) fn check_all(listeners: &[Listener]) -> Result<(), ConfigError> {
    if listeners.is_empty() {
        let why = "the server has nothing to listen on: give it an address by `bind` or `listen`";
        return Err(ConfigError::new(ConfigErrorKind::Address, why.to_owned()));
    }
    listeners.iter().filter_map(Listener::address).try_for_each(check_listen)
}

/// Serves the connections of all acceptors. Never ends.
pub(super) async fn accept_all(acceptors: &[Acceptor], host: &Arc<ServerCore>) {
    let accept = async |acceptor: &Acceptor| {
        loop {
            host.serve(acceptor.accept().await);
        }
    };
    let mut all: Vec<_> = acceptors.iter().map(|acceptor| Box::pin(accept(acceptor))).collect();
    let poll_all = poll_fn(|cx| {
        for one in &mut all {
            let _: Poll<()> = one.as_mut().poll(cx);
        }
        Poll::<()>::Pending
    });
    poll_all.await;
}
