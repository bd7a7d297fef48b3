//! Errors that callers can use: an error type of the application's own, details as gRPC has them, and causes for the log.
//!
//! Run it with `cargo run --example errors`.

#![expect(clippy::print_stdout, reason = "it is what the example does")]

use std::num::ParseIntError;
use std::time::Duration;

use farcall::details::{BadRequest, FieldViolation, RetryInfo};
use farcall::{Channel, Code, Server, Status};
use serde::{Deserialize, Serialize};

/// For what a caller is to decide by in its program. Any call can fail on its way, too: hence the last.
#[derive(Debug, Serialize, Deserialize)]
enum BookingError {
    SoldOut { next: String },
    Call(Status),
}

impl From<Status> for BookingError {
    fn from(status: Status) -> Self {
        Self::Call(status)
    }
}

#[farcall::service]
trait Tickets {
    async fn book(&self, show: String) -> Result<u32, BookingError>;
    /// Fails with a status, which has no type of its own.
    async fn refund(&self, ticket: String) -> farcall::Result<()>;
}

struct BoxOffice;

impl Tickets for BoxOffice {
    async fn book(&self, show: String) -> Result<u32, BookingError> {
        match show.as_str() {
            "matinee" => Ok(17),
            _ => Err(BookingError::SoldOut { next: "matinee".into() }),
        }
    }

    async fn refund(&self, ticket: String) -> farcall::Result<()> {
        let parsed: Result<u32, ParseIntError> = ticket.parse();
        parsed.map(drop).map_err(|error| {
            let field = FieldViolation {
                field: "ticket".into(),
                description: "is not a number".into(),
                ..FieldViolation::default()
            };
            Status::new(Code::InvalidArgument, "that is no ticket of ours")
                .with_detail(&BadRequest { field_violations: vec![field] })
                .with_detail(&RetryInfo::after(Duration::from_secs(60)))
                .with_source(error)
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder().add(TicketsServer::new(BoxOffice)).bind("127.0.0.1:0").await?;
    let address = format!("farcall://{}", server.local_addr());
    tokio::spawn(server.serve());
    let tickets = TicketsClient::new(Channel::connect(&address).await?);

    match tickets.book("premiere").await {
        Ok(seat) => println!("seat {seat}"),
        Err(BookingError::SoldOut { next }) => println!("sold out, but there is the {next}"),
        Err(BookingError::Call(status)) => println!("the call failed: {status}"),
    }

    let status = tickets.refund("XVII").await.expect_err("it must fail");
    println!("whose fault: {:?}, executed: {:?}", status.blame(), status.executed());
    for violation in status.detail::<BadRequest>().unwrap_or_default().field_violations {
        println!("{} {}", violation.field, violation.description);
    }
    if let Some(retry) = status.detail::<RetryInfo>() {
        println!("again in {:?}", retry.delay());
    }
    // With what it was caused by on the other machine.
    println!("{status:#}");
    Ok(())
}
