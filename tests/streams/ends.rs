//! How a stream has ended, as its reader is told.

use std::time::Duration;

use farcall::{Code, EndReason, Result, Status, Stream, stream};

#[farcall::service]
trait Slow {
    /// Fails with a deadline that is not that of the call.
    fn query(&self) -> impl Stream<Item = Result<u32>>;
}

struct Database;

impl Slow for Database {
    fn query(&self) -> impl Stream<Item = Result<u32>> {
        stream::iter([Ok(1), Err(Status::new(Code::DeadlineExceeded, "the disk took too long"))])
    }
}

#[tokio::test]
async fn a_handlers_own_deadline_exceeded_is_a_status_like_any() {
    let slow = SlowClient::in_process(Database);
    for call in [slow.query(), slow.query().timeout(Duration::from_secs(600))] {
        let mut rows = call.await.unwrap();
        assert_eq!(rows.message().await.unwrap(), Some(1));
        let error = rows.message().await.unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::DeadlineExceeded, "the disk took too long"));
        assert_eq!(rows.end_reason(), Some(EndReason::Status));
    }
}
