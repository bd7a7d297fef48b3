//! A stream that has no end of its own, when its server stops.

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

#[farcall::service(package = "test")]
trait Watch {
    /// Counts up from 0; when the server drains, as far as `to`.
    fn count(&self, cx: &Context, to: u32) -> impl Stream<Item = Result<u32>>;
    /// Answers when the server drains, with whether it does.
    async fn until_drained(&self, cx: &Context) -> Result<bool>;
}

struct Counter;

impl Watch for Counter {
    fn count(&self, cx: &Context, to: u32) -> impl Stream<Item = Result<u32>> {
        let (sender, items) = stream::channel(1);
        let cx = cx.clone();
        tokio::spawn(async move {
            for next in 0.. {
                if next == 10 {
                    cx.draining().await;
                }
                if next == to || sender.send(next).await.is_err() {
                    return;
                }
            }
        });
        items
    }

    async fn until_drained(&self, cx: &Context) -> Result<bool> {
        let before = cx.is_draining();
        cx.draining().await;
        Ok(!before && cx.is_draining())
    }
}

#[tokio::test]
async fn handlers_that_learn_of_a_drain_end_in_order_and_it_need_not_wait_for_its_limit() {
    let server = Server::builder().add(WatchServer::new(Counter)).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    let handle = server.handle();
    tokio::spawn(server.serve());
    let watch = WatchClient::new(Channel::connect(&address).await.unwrap());
    let waits = tokio::spawn(watch.until_drained().into_future());
    let mut count = watch.count(5000).await.unwrap();
    for n in 0..10 {
        assert_eq!(count.message().await.unwrap(), Some(n));
    }

    let drain = tokio::spawn(async move { handle.drain(1000 * PATIENCE).await });
    let rest = async {
        for n in 10..5000 {
            assert_eq!(count.message().await.unwrap(), Some(n));
        }
        assert_eq!(count.message().await.unwrap(), None);
        assert_eq!(count.end_reason(), Some(EndReason::Completed));
        assert!(waits.await.unwrap().unwrap());
        drain.await.unwrap();
    };
    tokio::time::timeout(PATIENCE, rest).await.expect("the drain does not end");
}
