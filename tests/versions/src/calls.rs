//! The calls, and what must come back.

use std::error::Error as StdError;
use std::time::Duration;

use bytes::Bytes;
use farcall::{Channel, Code, Compression, TrafficClass, stream};

use crate::service::{Error, Value, VersionsClient};

type Checked = Result<(), Box<dyn StdError>>;

/// Lengths of arguments: in one frame, in several, and long enough that RDMA has the peer read them.
const LENGTHS: [usize; 6] = [0, 1, 3000, 70_000, 1 << 20, 5 << 20];

/// Makes every kind of call. Returns the name of the transport that the calls used.
pub(crate) async fn make_all(address: &str) -> Result<&'static str, Box<dyn StdError>> {
    let channel = Channel::connect(address).await?;
    let client = VersionsClient::new(&channel);
    arguments(&client).await?;
    metadata(&client).await?;
    errors(&client).await?;
    compression(&client).await?;
    streams(&client).await?;
    together(&client).await?;
    // Calls of a class have a connection of their own.
    arguments(&VersionsClient::new(channel.class(TrafficClass::Urgent))).await?;
    Ok(channel.transport().await?.name)
}

fn bytes(len: usize) -> Bytes {
    (0..len).map(|i| (i % 251) as u8).collect()
}

async fn arguments(client: &VersionsClient) -> Checked {
    let named = Value::Named {
        text: "text ✓".into(),
        bytes: bytes(20_000),
        map: [(1, "one".into()), (1 << 30, String::new())].into(),
    };
    let values = [Value::Nothing, Value::Numbers(7, -7, 0.5, Some(1 << 100)), named];
    let many = Value::Many(values.to_vec());
    for value in values.into_iter().chain([many]) {
        for len in LENGTHS {
            let echoed = client.echo(value.clone(), bytes(len)).await?;
            assert_eq!(echoed, (value.clone(), bytes(len)), "{len} bytes");
        }
    }
    Ok(())
}

async fn metadata(client: &VersionsClient) -> Checked {
    let call = client.echo(Value::Nothing, Bytes::new());
    let call = call.metadata("text", "some text").metadata_bin("some-bin", [0, 159, 146, 150]);
    let response = call.with_response().await?;
    assert_eq!(response.metadata.get("text"), Some("some text"));
    assert_eq!(response.trailers.get_bin("some-bin"), Some(&[0, 159, 146, 150][..]));
    Ok(())
}

async fn errors(client: &VersionsClient) -> Checked {
    assert_eq!(client.even(2).await, Ok(2));
    assert_eq!(client.even(3).await, Err(Error::Odd { number: 3 }));
    let Err(refused) = client.refuse("because").await else { return Err("it was not refused".into()) };
    assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, "because"));
    assert_eq!(refused.details()[..], b"details"[..]);
    let Err(late) = client.never().timeout(Duration::from_millis(50)).await else {
        return Err("it came".into());
    };
    assert_eq!(late.code(), Code::DeadlineExceeded);
    // One that is given up without a deadline.
    let cancelled = tokio::time::timeout(Duration::from_millis(50), client.never());
    assert!(cancelled.await.is_err(), "a call that never ends ended");
    Ok(())
}

async fn compression(client: &VersionsClient) -> Checked {
    for by in [Compression::Lz4, Compression::Zstd] {
        let sent = bytes(200_000);
        let response = client.packed(sent.clone()).compress(by).with_response().await?;
        assert_eq!((response.value, response.compression), (sent, Compression::Lz4));
    }
    Ok(())
}

async fn streams(client: &VersionsClient) -> Checked {
    let mut items = client.count(1000).await?;
    for expected in 0..1000 {
        assert_eq!(items.message().await?, Some(expected));
    }
    assert_eq!(items.message().await?, None);

    let mut cut = client.count(1001).await?;
    let ended = loop {
        match cut.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return Err("the stream ended without its error".into()),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::OutOfRange);

    let total = client.total(stream::iter((0..300).map(|i| bytes(i * 100)))).await?;
    assert_eq!(total, (0..300).map(|i| i * 100).sum::<u64>());

    let mut repeated = client.repeat(stream::iter(LENGTHS.map(bytes))).await?;
    for len in LENGTHS {
        assert_eq!(repeated.message().await?, Some(bytes(len)));
    }
    assert_eq!(repeated.message().await?, None);

    // One that is given up.
    let mut abandoned = client.repeat(stream::iter((0..1_000_000).map(|_| bytes(100)))).await?;
    assert_eq!(abandoned.message().await?, Some(bytes(100)));
    Ok(())
}

/// Many calls at once share frames, credits and acknowledgements.
async fn together(client: &VersionsClient) -> Checked {
    let calls: Vec<_> = (0..500)
        .map(|i| {
            let sent = bytes(i * 37 % 9000);
            let call = client.echo(Value::Nothing, sent.clone());
            (sent, tokio::spawn(call))
        })
        .collect();
    for (sent, call) in calls {
        assert_eq!(call.await??.1, sent);
    }
    Ok(())
}
