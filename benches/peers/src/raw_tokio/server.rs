//! The server: answers to what one read has brought leave in one write.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use tokio::net::{TcpListener, TcpStream};

use super::STREAM;
use super::frames::Reader;
use super::sender::Sender;
use crate::Result;
use crate::load::pattern;

pub(super) async fn serve(address: &str) -> Result<()> {
    let listener = TcpListener::bind(address).await?;
    crate::listening(listener.local_addr()?)?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        // It ends with its client.
        tokio::spawn(connection(socket));
    }
}

async fn connection(socket: TcpStream) -> Result<()> {
    let (reading, writing) = socket.into_split();
    let mut reader = Reader::new(reading);
    let sender = Sender::start(writing);
    let mut answers = Vec::new();
    while reader.read().await? {
        while let Some((number, payload)) = reader.next() {
            if number & STREAM == 0 {
                answers.push((number, echo(payload).await));
            } else {
                tokio::spawn(stream(sender.clone(), number, payload));
            }
        }
        if !answers.is_empty() {
            sender.now(answers.iter().map(|(number, payload)| (*number, payload)))?;
            answers.clear();
        }
    }
    Ok(())
}

async fn stream(sender: Arc<Sender>, number: u64, mut asked: Bytes) -> Result<()> {
    let (count, size) = (asked.try_get_u64_le()?, asked.try_get_u64_le()?);
    let payload = pattern(size as usize).collect::<Vec<_>>().into();
    sender.stream(number, &payload, count).await;
    sender.later(number, &Bytes::new());
    Ok(())
}

async fn echo(payload: Bytes) -> Bytes {
    payload
}
