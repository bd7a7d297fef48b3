//! Measures the devices alone: no calls, no sessions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall::rdma::RdmaConfig;
use farcall::rdma::probe::raw::{Asking, Contact, Failed, Operation, Plan};
use farcall::{Channel, Result, Status, Streaming};
use tokio::time::timeout;

use super::case::{Case, Outcome, Pattern};
use super::load::{Length, Progress, Run};
use super::service::{PerfClient, blocking};
use crate::target::ends;

/// How long the server's device is there beyond the time that is measured.
const SPARE: Duration = Duration::from_secs(30);

/// Requests that are counted together, so that counting takes little of a short request's time.
const TOGETHER: usize = 256;

/// Requests are counted at the next end after this time.
const LATEST: Duration = Duration::from_millis(50);

/// How long the server may take to say what it knows of a failure.
const REASON: Duration = Duration::from_secs(1);

/// Has this machine's device and the server's do the work of a case.
pub(super) async fn run(
    case: &Case,
    channel: &Channel,
    config: &RdmaConfig,
    time: Length,
    progress: &Arc<Progress>,
) -> Result<Outcome> {
    let server = PerfClient::new(channel);
    let (asking, contacts) = connect(case, channel, config, time).await?;
    let transport = format!("verbs on {}", asking.name());
    let run = Run::begin(time, None, progress);
    let worker = work(asking, contacts, Arc::clone(&run));
    run.outcome(case, transport, &server, [worker].into_iter().collect()).await
}

/// Connects the devices. The server's is there as long as the stream.
async fn connect(
    case: &Case,
    channel: &Channel,
    config: &RdmaConfig,
    time: Length,
) -> Result<(Asking, Streaming<Contact>)> {
    let plan = plan(case)?;
    let (local, peer) = ends(channel).await?;
    let config = config.clone();
    let mut asking = blocking(move || Asking::open(&config, Some(local), plan)).await?.map_err(refused)?;
    let lasts = time.warm_up + time.measured + SPARE;
    let seconds = lasts.as_secs() as u32;
    let contacts = PerfClient::new(channel).device(peer.ip(), asking.request(), seconds).timeout(lasts);
    let mut contacts = contacts.await?;
    let ended = || Status::unavailable("the server's device has ended");
    let contact = contacts.message().await?.ok_or_else(ended)?;
    let connected = blocking(move || asking.connect(&contact).map(|()| asking)).await?;
    Ok((connected.map_err(refused)?, contacts))
}

/// Returns the work that is one of a case's calls.
fn plan(case: &Case) -> Result<Plan> {
    let operation = match case.pattern {
        Pattern::Echo => Operation::Send,
        Pattern::Read => Operation::Read,
        Pattern::Write => Operation::Write,
        _ => return Err(Status::invalid_argument("the devices alone do echo (SEND), read and write")),
    };
    if case.connections != 1 || case.rate.is_some() {
        return Err(Status::invalid_argument(
            "the devices alone are measured with one connection, and without a rate",
        ));
    }
    // Both were checked against less than 2^32. A value beyond the plan's own limit stays beyond it.
    let in_flight = u16::try_from(case.in_flight).unwrap_or(u16::MAX);
    let plan = Plan { operation, size: case.size as u32, in_flight };
    plan.check().map_err(|why| Status::invalid_argument(why.to_string()))?;
    Ok(plan)
}

/// Has the devices work until the end, on a thread that polls.
async fn work(mut asking: Asking, mut contacts: Streaming<Contact>, run: Arc<Run>) {
    let counted = Arc::clone(&run);
    let asked = move || {
        let (mut answers, mut told, end) = (Vec::with_capacity(TOGETHER), Instant::now(), counted.end());
        let result = asking.run(|begun, ended| {
            answers.push((begun, ended));
            if answers.len() == TOGETHER || ended - told >= LATEST {
                told = ended;
                counted.answered(answers.drain(..));
            }
            ended < end
        });
        counted.answered(answers);
        result
    };
    if let Err(why) = blocking(asked).await.and_then(|result| result.map_err(refused)) {
        let theirs = timeout(REASON, contacts.message()).await.ok().and_then(Result::err);
        let theirs = theirs.map_or_else(String::new, |theirs| format!("; {theirs}"));
        // It fails once. Whenever that is, it ends what is counted.
        run.failed(run.end(), format!("{why}{theirs}"));
    }
}

fn refused(why: Failed) -> Status {
    Status::failed_precondition(format!("this machine's device: {why}"))
}

#[cfg(test)]
mod tests {
    use super::super::case::Link;
    use super::*;

    fn case(pattern: Pattern, size: usize, in_flight: usize) -> Case {
        Case { by: Link::Verbs, pattern, size, in_flight, connections: 1, rate: None }
    }

    #[test]
    fn the_devices_alone_do_three_things_within_limits() {
        for (pattern, operation) in [
            (Pattern::Echo, Operation::Send),
            (Pattern::Read, Operation::Read),
            (Pattern::Write, Operation::Write),
        ] {
            assert_eq!(plan(&case(pattern, 64, 8)), Ok(Plan { operation, size: 64, in_flight: 8 }));
            assert!(plan(&case(pattern, 64, 100_000)).is_err());
        }
        let beyond = [
            case(Pattern::Lend, 64, 1),
            case(Pattern::Echo, 64 << 20, 1),
            Case { connections: 2, ..case(Pattern::Read, 64, 2) },
            Case { rate: Some(1000), ..case(Pattern::Read, 64, 1) },
        ];
        for case in beyond {
            assert!(plan(&case).is_err(), "{}", case.name());
        }
    }
}
