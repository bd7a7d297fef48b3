//! Types that a codec cannot carry are refused when a server or client is made.

use std::collections::BTreeMap;
use std::panic;

use farcall::{BindError, Bytes, Result, Server, Stream, Streaming, in_process, stream};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u32),
    Text(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Page {
    key: String,
    hint: Option<Untagged>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Flat {
    key: String,
    #[serde(flatten)]
    rest: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type")]
enum Tagged {
    Put { key: String },
    Delete,
}

macro_rules! service {
    ($module:ident, $argument:ty, $result:ty) => {
        mod $module {
            use super::*;

            #[farcall::service]
            pub(super) trait Store {
                async fn fine(&self, bytes: Bytes) -> Result<u32>;
                async fn put(&self, page: $argument) -> Result<$result>;
            }

            pub(super) struct Nothing;

            impl Store for Nothing {
                async fn fine(&self, _: Bytes) -> Result<u32> {
                    Ok(1)
                }

                async fn put(&self, _: $argument) -> Result<$result> {
                    Err(farcall::Status::unimplemented("there is nothing"))
                }
            }
        }
    };
}

service!(inside, Vec<Page>, ());
service!(flat, Flat, ());
service!(result, u32, Option<Tagged>);

mod streams {
    use super::*;

    #[farcall::service]
    pub(super) trait Store {
        fn pages(&self, of: Streaming<u32>) -> impl Stream<Item = Result<Page>>;
    }

    pub(super) struct Nothing;

    impl Store for Nothing {
        fn pages(&self, _: Streaming<u32>) -> impl Stream<Item = Result<Page>> {
            stream::iter(None)
        }
    }
}

fn panic_of(make: impl FnOnce() + panic::UnwindSafe) -> String {
    let caught = panic::catch_unwind(make).expect_err("it must be refused");
    *caught.downcast::<String>().expect("the panic has a message")
}

#[tokio::test]
async fn a_server_of_such_a_service_does_not_start() {
    let bound = [
        ("`put`", "argument `page`", Server::builder().add(inside::StoreServer::new(inside::Nothing))),
        ("`put`", "argument `page`", Server::builder().add(flat::StoreServer::new(flat::Nothing))),
        ("`put`", "result", Server::builder().add(result::StoreServer::new(result::Nothing))),
        ("`pages`", "result", Server::builder().add(streams::StoreServer::new(streams::Nothing))),
    ];
    for (method, place, server) in bound {
        let Err(BindError::Services(why)) = server.bind("127.0.0.1:0").await else {
            panic!("{method} is served")
        };
        let why = why.to_string();
        for words in [method, place, "postcard", "refused::", "#[serde(untagged)]"] {
            assert!(why.contains(words), "`{words}` is not in: {why}");
        }
    }
}

#[tokio::test]
async fn a_client_of_such_a_service_is_not_made() {
    // Any channel does: the client is refused before it calls.
    let channel = in_process(good::StoreServer::new(good::Nothing));
    let why = panic_of(panic::AssertUnwindSafe(|| drop(inside::StoreClient::new(&channel))));
    assert!(why.contains("method `put`") && why.contains("argument `page`"), "{why}");
    let why = panic_of(panic::AssertUnwindSafe(|| drop(streams::StoreClient::new(&channel))));
    assert!(why.contains("method `pages`"), "{why}");
}

mod good {
    use super::*;

    #[farcall::service]
    pub(super) trait Store {
        async fn put(&self, page: BTreeMap<String, Option<Bytes>>) -> Result<()>;
    }

    pub(super) struct Nothing;

    impl Store for Nothing {
        async fn put(&self, _: BTreeMap<String, Option<Bytes>>) -> Result<()> {
            Ok(())
        }
    }
}
