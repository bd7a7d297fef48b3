//! Compression over TCP, end to end: how it is turned on, what each side sees of it, and what a build without it says.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use farcall::{Bytes, Channel, Compression, Config, Context, Server, Stream, stream};

#[farcall::service(package = "test")]
trait Archive {
    /// Returns what the document came compressed by. `by`: the compression of the answer, which is as long.
    async fn store(
        &self,
        cx: &Context,
        document: Bytes,
        by: Option<String>,
    ) -> farcall::Result<(String, Bytes)>;

    /// One document after the other, each compressed as it is named.
    fn copies(&self, cx: &Context, by: Vec<String>) -> impl Stream<Item = farcall::Result<(String, Bytes)>>;
}

struct Shelf;

impl Archive for Shelf {
    async fn store(
        &self,
        cx: &Context,
        document: Bytes,
        by: Option<String>,
    ) -> farcall::Result<(String, Bytes)> {
        if let Some(by) = by {
            cx.compress(named(&by))?;
        }
        Ok((cx.compression().name().to_owned(), document))
    }

    fn copies(&self, cx: &Context, by: Vec<String>) -> impl Stream<Item = farcall::Result<(String, Bytes)>> {
        let cx = cx.clone();
        stream::generate(async move |copies| {
            for by in by {
                cx.compress(named(&by))?;
                copies.send((by, document(5000))).await;
            }
            Ok(())
        })
    }
}

fn named(name: &str) -> Compression {
    match name {
        "zstd" => Compression::Zstd,
        "lz4" => Compression::Lz4,
        _ => Compression::None,
    }
}

/// A document of so many bytes.
fn document(len: usize) -> Bytes {
    (0..len).map(|i| (i / 100) as u8).collect()
}

async fn serve(server: farcall::ServerBuilder) -> String {
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    address
}

#[cfg(all(feature = "lz4", feature = "zstd"))]
mod built_in {
    use farcall::middleware::ServiceExt;
    use farcall::{ChannelBuilder, ServerBuilder};

    use super::*;

    async fn client(channel: ChannelBuilder, server: ServerBuilder) -> ArchiveClient {
        ArchiveClient::new(channel.connect(&serve(server).await).await.unwrap())
    }

    fn shelf() -> ServerBuilder {
        Server::builder().add(ArchiveServer::new(Shelf))
    }

    /// Returns the compressions of document and answer, where neither call nor handler chooses one.
    async fn as_set(client: &ArchiveClient) -> (String, Compression) {
        let document = document(50_000);
        let response = client.store(document.clone(), None).with_response().await.unwrap();
        assert_eq!(response.value.1, document);
        (response.value.0, response.compression)
    }

    #[tokio::test]
    async fn it_is_turned_on_by_call_by_handler_by_service_by_builder_and_by_configuration() {
        let client_of = |toml: &str| Channel::builder().config(Config::from_toml(toml).unwrap());
        let plain = client(Channel::builder(), shelf()).await;
        assert_eq!(as_set(&plain).await, ("none".into(), Compression::None));
        for len in [5000, 50_000, 5_000_000] {
            let call = plain.store(document(len), Some("lz4".into())).compress(Compression::Zstd);
            let response = call.with_response().await.unwrap();
            assert_eq!((&response.value.0[..], response.compression), ("zstd", Compression::Lz4));
            assert_eq!(response.value.1, document(len));
        }

        let service = Server::builder().add(ArchiveServer::new(Shelf).compress(Compression::Lz4));
        let by_service = client(Channel::builder(), service).await;
        assert_eq!(as_set(&by_service).await, ("none".into(), Compression::Lz4));
        let response = by_service.store(document(5000), Some("none".into())).with_response().await.unwrap();
        assert_eq!(response.compression, Compression::None);

        let channel = Channel::builder().compress(Compression::Lz4);
        let by_builders = client(channel, shelf().compress(Compression::Zstd)).await;
        assert_eq!(as_set(&by_builders).await, ("lz4".into(), Compression::Zstd));

        let toml = "[calls]\ncompress = \"zstd\"";
        let server = shelf().config(Config::from_toml("[calls]\ncompress = \"lz4\"").unwrap());
        let by_toml = client(client_of(toml), server).await;
        assert_eq!(as_set(&by_toml).await, ("zstd".into(), Compression::Lz4));

        let address = format!("{}?calls.compress=zstd", serve(shelf()).await);
        let by_address = ArchiveClient::new(Channel::connect(&address).await.unwrap());
        assert_eq!(as_set(&by_address).await, ("zstd".into(), Compression::None));
    }

    #[tokio::test]
    async fn a_generator_chooses_for_each_item() {
        let client = client(Channel::builder(), shelf()).await;
        let names = ["zstd", "none", "lz4", "lz4", "zstd"].repeat(20);
        let chosen = names.iter().map(ToString::to_string).collect();
        let mut copies = client.copies(chosen).await.unwrap();
        for name in names {
            let (by, copy) = copies.message().await.unwrap().unwrap();
            assert_eq!((copies.compression(), &by[..], copy), (named(name), name, document(5000)));
        }
        assert_eq!(copies.message().await, Ok(None));
    }

    #[tokio::test]
    async fn it_saves_what_travels() {
        let address = serve(shelf()).await;
        let channel = Channel::connect(&address).await.unwrap();
        let archive = ArchiveClient::new(&channel);
        let connection = channel.connection().await.unwrap();
        let document = document(1_000_000);
        archive.store(document, Some("zstd".into())).compress(Compression::Zstd).await.unwrap();
        let moved = connection.traffic().stream;
        let (sent, received) = (moved.bytes_sent, moved.bytes_received);
        assert!(sent < 100_000 && received < 100_000, "{sent} and {received} bytes");
    }
}

#[cfg(not(any(feature = "lz4", feature = "zstd")))]
mod absent {
    use farcall::{Code, Executed};

    use super::*;

    #[tokio::test]
    async fn compression_that_is_not_built_in_is_refused_wherever_it_is_asked_for() {
        let said = "built without the feature `zstd`";
        let address = serve(Server::builder().add(ArchiveServer::new(Shelf))).await;
        let archive = ArchiveClient::new(Channel::connect(&address).await.unwrap());
        let call = archive.store(document(5000), None).compress(Compression::Zstd);
        let error = call.await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::FailedPrecondition, Executed::No));
        assert!(error.message().contains(said), "{error}");
        let error = archive.store(document(5000), Some("zstd".into())).await.unwrap_err();
        assert_eq!((error.code(), error.executed()), (Code::FailedPrecondition, Executed::Yes));
        assert!(error.message().contains(said), "{error}");

        let error = Config::from_toml("[calls]\ncompress = \"zstd\"").unwrap_err();
        assert!(error.to_string().contains("calls.compress = \"zstd\""), "{error}");
        let error = Channel::builder().compress(Compression::Zstd).connect(&address).await.unwrap_err();
        assert!(error.message().contains(said), "{error}");
        let error = Server::builder().compress(Compression::Zstd).bind("127.0.0.1:0").await.unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}
