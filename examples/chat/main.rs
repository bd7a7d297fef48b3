//! A chat in a terminal.
//!
//! ```text
//! cargo run --example chat -- serve 127.0.0.1:7400
//! cargo run --example chat -- join farcall://127.0.0.1:7400 lobby ann
//! ```

#![expect(unreachable_pub, reason = "in an application the service is a library of its own")]

mod rooms;

use std::error::Error;
use std::io::Write;

use farcall::{Channel, Server, stream};
use rooms::{ChatClient, ChatServer, Event, JoinError, Rooms};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => serve(address).await,
        ["join", address, room, name] => join(address, room, name).await,
        _ => Err("serve ADDRESS, or join ADDRESS ROOM NAME".into()),
    }
}

async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let server = Server::builder().add(ChatServer::new(Rooms::default())).bind(address).await?;
    writeln!(std::io::stdout(), "rooms are open at {}", server.local_addr())?;
    server.serve_until(tokio::signal::ctrl_c()).await;
    Ok(())
}

async fn join(address: &str, room: &str, name: &str) -> Result<(), Box<dyn Error>> {
    let chat = ChatClient::new(Channel::connect(address).await?);
    let mut events = match chat.join(room, name, typed()).await {
        Ok(events) => events,
        Err(JoinError::NameTaken) => return Err("somebody has this name here".into()),
        Err(JoinError::Call(status)) => return Err(status.into()),
    };
    let mut out = std::io::stdout();
    while let Some(event) = events.message().await? {
        match event {
            Event::Joined { name } => writeln!(out, "{name} is here")?,
            Event::Said { name, text } => writeln!(out, "{name}: {text}")?,
            Event::Left { name } => writeln!(out, "{name} has left")?,
        }
    }
    Ok(())
}

/// Returns the typed lines as a stream that ends with the input.
fn typed() -> stream::Receiver<String> {
    let (sender, lines) = stream::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    lines
}
