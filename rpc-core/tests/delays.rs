//! Delays that a connection tells of: on the way to the peer, and before it.

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use farcall_core::proto::wire::FrameType;

use support::{ECHO, default, until};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn the_way_is_measured_when_it_is_asked_for() {
    let t = default();
    t.call(ECHO, "x").await.unwrap();
    let (connection, tap) = (t.caller.connection().await.unwrap(), t.tap());
    tokio::time::advance(10 * SECOND).await;
    assert_eq!(tap.count(FrameType::PING), 0);

    assert_eq!(connection.round_trip(), None);
    until("the answer comes", || connection.round_trip().is_some()).await;
    assert_eq!((connection.round_trip(), tap.count(FrameType::PING)), (Some(Duration::ZERO), 1));

    // The next answer is lost.
    tokio::time::advance(SECOND).await;
    tap.mute.store(true, Ordering::Relaxed);
    assert_eq!(connection.round_trip(), Some(Duration::ZERO));
    tokio::time::advance(3 * SECOND).await;
    assert_eq!((connection.round_trip(), tap.count(FrameType::PING)), (Some(3 * SECOND), 2));
    assert_eq!(connection.credits(), None);
}

#[tokio::test(start_paused = true)]
async fn the_time_counts_in_which_messages_have_no_room() {
    let t = default();
    t.call(ECHO, "x").await.unwrap();
    let (connection, tap) = (t.caller.connection().await.unwrap(), t.tap());
    tokio::time::advance(SECOND).await;
    assert_eq!((connection.unsent(), connection.traffic().waited), (0, Duration::ZERO));

    tap.take(0);
    tokio::time::advance(SECOND).await;
    let call = t.spawn(ECHO, "y");
    until("it waits", || connection.unsent() == 1).await;
    tokio::time::advance(2 * SECOND).await;
    assert_eq!(connection.traffic().waited, 2 * SECOND);
    tap.take(usize::MAX);
    assert_eq!(call.await.unwrap().unwrap(), "y");
    tokio::time::advance(SECOND).await;
    assert_eq!((connection.unsent(), connection.traffic().waited), (0, 2 * SECOND));

    tap.take(0);
    let call = t.spawn(ECHO, "z");
    until("it waits", || connection.unsent() == 1).await;
    tokio::time::advance(3 * SECOND).await;
    tap.take(usize::MAX);
    call.await.unwrap().unwrap();
    assert_eq!(connection.traffic().waited, 5 * SECOND);

    // It counts no longer than the connection lives.
    tap.take(0);
    let call = t.spawn(ECHO, "z");
    until("it waits", || connection.unsent() == 1).await;
    tokio::time::advance(SECOND).await;
    connection.close("enough");
    assert_eq!(call.await.unwrap().unwrap(), "z", "by another connection");
    tokio::time::advance(SECOND).await;
    assert_eq!(connection.traffic().waited, 6 * SECOND);
}
