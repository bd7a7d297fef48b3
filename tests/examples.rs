//! The examples do what they say.

#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]
#![expect(unreachable_pub, reason = "in an application a service is a library of its own")]

use farcall::{Channel, EndReason, Server, Streaming, stream};

#[path = "../examples/chat/rooms.rs"]
mod chat;

use chat::{ChatClient, ChatServer, Event, JoinError, Rooms};

async fn heard(events: &mut Streaming<Event>) -> Event {
    events.message().await.unwrap().unwrap()
}

#[tokio::test]
async fn people_chat() {
    let server = Server::builder().add(ChatServer::new(Rooms::default())).bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr());
    tokio::spawn(server.serve());
    let ann = ChatClient::new(Channel::connect(&address).await.unwrap());
    let bob = ChatClient::new(Channel::connect(&address).await.unwrap());
    let name = |name: &str| name.to_owned();

    let (ann_says, lines) = stream::channel(1);
    let mut ann_hears = ann.join("lobby", "ann", lines).await.unwrap();
    let (bob_says, lines) = stream::channel(1);
    let mut bob_hears = bob.join("lobby", "bob", lines).await.unwrap();
    assert_eq!(heard(&mut ann_hears).await, Event::Joined { name: name("ann") });
    assert_eq!(heard(&mut ann_hears).await, Event::Joined { name: name("bob") });
    assert_eq!(heard(&mut bob_hears).await, Event::Joined { name: name("bob") });

    // A name is taken in its room alone.
    let nothing = || stream::iter([]);
    assert_eq!(bob.join("lobby", "ann", nothing()).await.unwrap_err(), JoinError::NameTaken);
    drop(bob.join("kitchen", "ann", nothing()).await.unwrap());

    for text in ["hello", "is anybody here?"] {
        ann_says.send(text.to_owned()).await.unwrap();
        let said = Event::Said { name: name("ann"), text: text.to_owned() };
        assert_eq!(heard(&mut bob_hears).await, said);
        assert_eq!(heard(&mut ann_hears).await, said);
    }

    // One leaves by saying no more, the other is cut off: either way the room hears of it.
    drop(ann_says);
    assert_eq!(ann_hears.message().await.unwrap(), None);
    assert_eq!(ann_hears.end_reason(), Some(EndReason::Completed));
    assert_eq!(heard(&mut bob_hears).await, Event::Left { name: name("ann") });
    let (_says, lines) = stream::channel(1);
    let mut ann_hears = ann.join("lobby", "ann", lines).await.unwrap();
    assert_eq!(heard(&mut ann_hears).await, Event::Joined { name: name("ann") });
    drop(bob_hears);
    assert_eq!(heard(&mut ann_hears).await, Event::Left { name: name("bob") });
    drop(bob_says);
}
