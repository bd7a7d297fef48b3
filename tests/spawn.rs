//! Handlers that begin in tasks of their own.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::sync::{Arc, Mutex};

use farcall::middleware::ServiceExt;
use farcall::{Channel, Config, Result, Server, ServerBuilder, Stream, in_process, stream};
use tokio::task::Id;

#[farcall::service]
trait Work {
    async fn at_once(&self, n: u32) -> Result<u32>;
    #[rpc(spawn)]
    async fn computes(&self, n: u32) -> Result<u32>;
    #[rpc(spawn)]
    fn counts(&self, n: u32) -> impl Stream<Item = Result<u32>>;
}

/// The tasks that its handlers have begun in.
#[derive(Clone, Default)]
struct Worker(Arc<Mutex<Vec<Id>>>);

impl Worker {
    fn note(&self) {
        self.0.lock().unwrap().push(tokio::task::id());
    }

    /// Whether the last two began in one task.
    fn share(&self) -> bool {
        let tasks = std::mem::take(&mut *self.0.lock().unwrap());
        let [first, second] = tasks[..] else { panic!("{} handlers have begun", tasks.len()) };
        first == second
    }
}

impl Work for Worker {
    async fn at_once(&self, n: u32) -> Result<u32> {
        self.note();
        Ok(n)
    }

    async fn computes(&self, n: u32) -> Result<u32> {
        self.note();
        Ok(n)
    }

    fn counts(&self, n: u32) -> impl Stream<Item = Result<u32>> {
        self.note();
        stream::iter((0..n).map(Ok))
    }
}

async fn serve(server: ServerBuilder) -> WorkClient {
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    WorkClient::new(Channel::connect(&address).await.unwrap())
}

#[tokio::test]
async fn one_method_begins_in_a_task_of_its_own() {
    let worker = Worker::default();
    let work = serve(Server::builder().add(WorkServer::new(worker.clone()))).await;
    assert_eq!((work.at_once(1).await, work.at_once(2).await), (Ok(1), Ok(2)));
    assert!(worker.share(), "handlers that are done at once share the connection's task");
    assert_eq!((work.computes(1).await, work.computes(2).await), (Ok(1), Ok(2)));
    assert!(!worker.share());
    for n in [1, 2] {
        assert_eq!(work.counts(n).await.unwrap().message().await, Ok(Some(0)));
    }
    assert!(!worker.share());
}

#[tokio::test]
async fn all_methods_of_a_service_or_a_server_do() {
    let worker = Worker::default();
    let service = || WorkServer::new(worker.clone());
    let config = Config::from_toml("[calls]\nspawn_handlers = true").unwrap();
    for work in [
        WorkClient::new(in_process(service().spawn_handlers())),
        serve(Server::builder().add(service()).spawn_handlers(true)).await,
        serve(Server::builder().add(service()).config(config.clone())).await,
    ] {
        assert_eq!((work.at_once(1).await, work.at_once(2).await), (Ok(1), Ok(2)));
        assert!(!worker.share());
    }
    let work = serve(Server::builder().spawn_handlers(false).add(service()).config(config)).await;
    assert_eq!((work.at_once(1).await, work.at_once(2).await), (Ok(1), Ok(2)));
    assert!(worker.share(), "the builder counts more than the configuration");
}
