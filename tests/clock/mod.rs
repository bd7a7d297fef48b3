//! A clock that stands still, for tests with sockets. A runtime whose time is paused moves it on whenever nothing is ready, also while
//! it waits for a socket.

#![allow(dead_code, clippy::allow_attributes, reason = "each test uses a part of it")]

use tokio::task::yield_now;

/// Keeps the paused time of this runtime where it is: only `tokio::time::advance` moves it.
pub(crate) fn still() {
    tokio::spawn(async {
        loop {
            yield_now().await;
        }
    });
}

/// Waits until this is so. If it never is, the test hangs, and its runner ends it.
pub(crate) async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    while !is_so().await {
        yield_now().await;
    }
}
