//! `farcall top`: what a server does, second by second.

mod page;
mod screen;
mod table;

use std::mem;
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use farcall::admin::{AdminClient, Snapshot};
use farcall::{Code, Status};

use self::screen::{Resizes, Screen};
use self::table::Size;
use crate::number;
use crate::output::{self, Failure, foreign};
use crate::target::{By, Target};

/// Watch what a server does: calls, connections, memory, devices.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall top db1                  a page that fits the terminal, until Ctrl-C
  farcall top db1 --every 5
  farcall top db1 --count 1        once, for scripts; --json for programs

The server needs `Server::builder().with_admin()`.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0, value_parser = number(0.1..=3600.0))]
    every: f64,
    /// Look so many times, and end
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Print each look as a line of JSON
    #[arg(long)]
    json: bool,
}

/// How long a look may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    crate::runtime(1)?.block_on(async {
        let admin = AdminClient::new(&arguments.target.connect(By::Auto).await?);
        let first = look(&admin).await.map_err(|status| unanswered(&status))?;
        // A number of looks is a text, which stays.
        if arguments.json || arguments.count.is_some() || !screen::is_there() {
            return print(arguments, &admin, first).await;
        }
        let screen = Screen::enter()?;
        tokio::select! {
            result = watch(arguments, &admin, first, &screen) => result,
            () = screen::interrupted() => Ok(0),
        }
    })
}

/// Prints one look after the other.
async fn print(arguments: &Arguments, admin: &AdminClient, mut last: Snapshot) -> Result<u8, Failure> {
    for number in 1.. {
        let now = next(arguments, admin).await.map_err(|status| unanswered(&status))?;
        if arguments.json {
            let line = serde_json::to_string(&now).map_err(Failure::no)?;
            output::print_answer(&format!("{line}\n"))?;
        } else {
            let size = Size { height: usize::MAX, ..screen::size() };
            output::print(&format!("{}\n", page::render(&last, &now, size)))?;
        }
        if arguments.count == Some(number) {
            break;
        }
        last = now;
    }
    Ok(0)
}

/// Shows each look until the next, and again where the screen has another size. A server that does not answer may be starting
/// again, so it is asked on.
async fn watch(
    arguments: &Arguments,
    admin: &AdminClient,
    first: Snapshot,
    screen: &Screen,
) -> Result<u8, Failure> {
    let mut resizes = Resizes::new();
    // The first page is about all of the server's time.
    let (mut last, mut now, mut away) = (Snapshot::default(), first, None::<String>);
    loop {
        let mut following = pin!(next(arguments, admin));
        let following = loop {
            let size = screen::size();
            let page = match &away {
                None => page::render(&last, &now, size),
                Some(why) => page::render_last(why, &last, &now, size),
            };
            screen.show(&page, size)?;
            tokio::select! {
                following = &mut following => break following,
                () = resizes.next() => {}
            }
        };
        match following {
            // Another process may answer, whose counts begin anew.
            Ok(following) if away.take().is_some() => (last, now) = (Snapshot::default(), following),
            Ok(following) => last = mem::replace(&mut now, following),
            Err(status) if [Code::Unavailable, Code::DeadlineExceeded].contains(&status.code()) => {
                away = Some(foreign(&status.to_string()));
            }
            Err(status) => return Err(unanswered(&status)),
        }
    }
}

/// Waits, and takes the next look.
async fn next(arguments: &Arguments, admin: &AdminClient) -> Result<Snapshot, Status> {
    tokio::time::sleep(Duration::from_secs_f64(arguments.every)).await;
    look(admin).await
}

async fn look(admin: &AdminClient) -> Result<Snapshot, Status> {
    admin.snapshot().timeout(PATIENCE).await
}

fn unanswered(status: &Status) -> Failure {
    Failure::of_call(status, "with_admin()")
}
