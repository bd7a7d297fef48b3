//! `farcall compat` between versions of a service.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod common;
mod files;

use std::process::Output;

use farcall::{Server, ServerBuilder};
use tokio::runtime::Runtime;

use common::{complaint, farcall, printed};
use files::path;

/// The first version.
mod old {
    #[farcall::service(package = "shop.v1")]
    pub(crate) trait Kv {
        async fn get(&self, key: String) -> farcall::Result<Option<String>>;
        async fn put(&self, key: String, value: String) -> farcall::Result<()>;
        async fn size(&self) -> farcall::Result<u32>;
    }

    pub(crate) struct Store;

    impl Kv for Store {
        async fn get(&self, _: String) -> farcall::Result<Option<String>> {
            Ok(None)
        }

        async fn put(&self, _: String, _: String) -> farcall::Result<()> {
            Ok(())
        }

        async fn size(&self) -> farcall::Result<u32> {
            Ok(0)
        }
    }
}

/// The second: `put` has one more argument, which may be missing; `size` answers otherwise; `delete` is new.
mod new {
    #[farcall::service(package = "shop.v1")]
    pub(crate) trait Kv {
        async fn get(&self, key: String) -> farcall::Result<Option<String>>;
        async fn put(
            &self,
            key: String,
            value: String,
            #[rpc(default)] ttl: Option<u32>,
        ) -> farcall::Result<()>;
        async fn size(&self) -> farcall::Result<u64>;
        async fn delete(&self, key: String) -> farcall::Result<()>;
    }

    pub(crate) struct Store;

    impl Kv for Store {
        async fn get(&self, _: String) -> farcall::Result<Option<String>> {
            Ok(None)
        }

        async fn put(&self, _: String, _: String, _: Option<u32>) -> farcall::Result<()> {
            Ok(())
        }

        async fn size(&self) -> farcall::Result<u64> {
            Ok(0)
        }

        async fn delete(&self, _: String) -> farcall::Result<()> {
            Ok(())
        }
    }
}

fn serve(server: ServerBuilder) -> (String, Runtime) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(server.with_reflection().bind("127.0.0.1:0")).unwrap();
    let address = server.local_addr().to_string();
    runtime.spawn(server.serve());
    (address, runtime)
}

fn compat(old: &str, new: &str) -> Output {
    farcall(&["compat", old, new])
}

#[test]
fn compat_names_calls_that_an_upgrade_would_refuse() {
    let (old, _old) = serve(Server::builder().add(old::KvServer::new(old::Store)));
    let (new, _new) = serve(Server::builder().add(new::KvServer::new(new::Store)));
    let described = farcall(&["describe", &old, "--json"]);
    let file = path("old-version.json");
    std::fs::write(&file, described.stdout).unwrap();
    let file = file.to_str().unwrap();
    for version in [old.as_str(), file] {
        let output = compat(version, &new);
        let text = printed(&output);
        assert_eq!(output.status.code(), Some(1), "{text}{}", complaint(&output));
        let (forwards, backwards) = text.split_once("new clients, old servers").unwrap();
        assert!(
            forwards.contains("1 refused") && forwards.contains("shop.v1.Kv/size  FAILED_PRECONDITION"),
            "{text}"
        );
        assert!(
            forwards.contains("client  size() -> u32 | Status")
                && forwards.contains("server  size() -> u64 | Status"),
            "{text}"
        );
        assert!(
            backwards.contains("3 refused") && backwards.contains("shop.v1.Kv/delete  UNIMPLEMENTED"),
            "{text}"
        );
        assert!(backwards.contains("shop.v1.Kv/put  FAILED_PRECONDITION"), "{text}");
    }
    let same = compat(file, &old);
    assert_eq!(same.status.code(), Some(0));
    assert_eq!(printed(&same).matches("all calls are understood").count(), 2);
}

#[test]
fn versions_that_are_not_there_are_named() {
    let wrong = path("no-version.json");
    std::fs::write(&wrong, "{}").unwrap();
    for (version, says) in [
        ("/nonexistent.json", "there is no such file"),
        (wrong.to_str().unwrap(), "it is none of `farcall describe --json`"),
    ] {
        let output = compat(version, version);
        assert_eq!(output.status.code(), Some(64));
        assert!(complaint(&output).contains(says), "{}", complaint(&output));
    }
    assert!(complaint(&compat("127.0.0.1:1", "127.0.0.1:1")).contains("Connection refused"));
}
