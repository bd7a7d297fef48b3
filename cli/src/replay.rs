//! `farcall replay`: recorded calls against another server, and their answers compared.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use farcall::Channel;
use farcall::admin::{Captured, Message, Outcome};
use farcall::dynamic::{Client, Failed, Payload};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::describe::Told;
use crate::output::{self, BAD, BOLD, FAINT, Failure, GOOD};
use crate::target::{By, Target};
use crate::{call, number};

/// Calls that begin so much later than they should do not load the server as the recorded ones did.
const LATE: Duration = Duration::from_millis(200);

/// Replay recorded calls against a server, and compare the answers.
///
/// The calls are made again as they are, whatever they change: use a server that may be changed. They begin at the times of the record,
/// or at the rate that you choose.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farcall replay localhost calls.jsonl
  farcall replay localhost calls.jsonl --rate 5000
  farcall replay localhost calls.jsonl --speed 10 --show 50

Exit status: 0 all answers are as recorded, 1 some differ or failed, 64 wrong arguments

The server needs `Server::builder().with_reflection()`.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The file that `farcall record` has written
    file: PathBuf,
    /// Begin so many calls a second
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: Option<u32>,
    /// So many times as fast as they were recorded
    #[arg(long, conflicts_with = "rate", default_value_t = 1.0, value_parser = number(0.001..=1e6))]
    speed: f64,
    /// Calls at a time, at most
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    in_flight: u32,
    /// Show so many differences
    #[arg(long, default_value_t = 10)]
    show: usize,
}

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let calls = read(&arguments.file)?;
    crate::runtime(1)?.block_on(async {
        let channel = arguments.target.connect(By::Auto).await?;
        let told = Told::by(&channel).await?;
        let mut sum = Sum::default();
        let clients = clients(&calls, &told, &channel, &mut sum);
        let compared = replay(arguments, calls, &clients).await;
        compared?.into_iter().for_each(|compared| sum.add(compared, &told));
        output::print(&sum.render(arguments.show, &told))?;
        Ok(if sum.same > 0 && sum.others.is_empty() && sum.refused.is_empty() { 0 } else { 1 })
    })
}

fn read(file: &PathBuf) -> Result<Vec<Captured>, Failure> {
    let unusable = |why: String| Failure::usage(format!("{}: {why}", file.display()));
    parse(BufReader::new(File::open(file).map_err(|error| unusable(error.to_string()))?)).map_err(unusable)
}

fn parse(recording: impl BufRead) -> Result<Vec<Captured>, String> {
    let parse = |(index, line): (usize, std::io::Result<String>)| {
        let wrong = |why: String| format!("line {}: {why}", index + 1);
        let line = line.map_err(|error| wrong(error.to_string()))?;
        serde_json::from_str(&line).map_err(|error| wrong(format!("it is none of `farcall record`: {error}")))
    };
    let mut calls = recording.lines().enumerate().map(parse).collect::<Result<Vec<Captured>, String>>()?;
    // They were written in the order of their answers.
    calls.sort_by_key(|call| call.at_us);
    Ok(calls)
}

/// Returns a client for each path that was recorded. The others are refused, with the reason.
fn clients(calls: &[Captured], told: &Told, channel: &Channel, sum: &mut Sum) -> HashMap<String, Client> {
    let mut clients = HashMap::new();
    for recorded in calls {
        if clients.contains_key(&recorded.path) || sum.refused.contains_key(&recorded.path) {
            continue;
        }
        let found = told.find(&recorded.path).map_err(|why| why.text().to_owned());
        let found = found.and_then(|(service, method)| {
            let is_understood =
                method.fingerprint == recorded.fingerprint || method.accepts.contains(&recorded.fingerprint);
            match (is_understood, service.codec == recorded.codec) {
                (true, true) => Ok(Client::new(channel, call::info(service, method, recorded.fingerprint))),
                _ => Err(format!("its signature is another: `{}`", method.signature)),
            }
        });
        match found {
            Ok(client) => drop(clients.insert(recorded.path.clone(), client)),
            Err(why) => drop(sum.refused.insert(recorded.path.clone(), why)),
        }
    }
    clients
}

/// A call that was made again.
struct Compared {
    recorded: Captured,
    outcome: Outcome,
    took: Duration,
    /// How long after its turn it began.
    late: Duration,
}

async fn replay(
    arguments: &Arguments,
    calls: Vec<Captured>,
    clients: &HashMap<String, Client>,
) -> Result<Vec<Compared>, Failure> {
    let (begin, first) = (Instant::now(), calls.first().map_or(0, |call| call.at_us));
    let places = Arc::new(Semaphore::new(arguments.in_flight as usize));
    let mut tasks = Vec::new();
    let understood = calls.into_iter().filter_map(|call| Some((clients.get(&call.path)?.clone(), call)));
    for (index, (client, recorded)) in understood.enumerate() {
        let due = begin + due(arguments.rate, arguments.speed, index, &recorded, first);
        tokio::time::sleep_until(due).await;
        // Nobody closes it.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
        tasks.push(tokio::spawn(async move {
            let began = Instant::now();
            let late = began - due;
            let call = client.unary(0, recorded.arguments.payload()).timeout(PATIENCE);
            let call = recorded.metadata.iter().fold(call, |call, (name, value)| call.metadata(name, value));
            let outcome = outcome(call.await);
            drop(place);
            Compared { recorded, outcome, took: began.elapsed(), late }
        }));
    }
    let mut compared = Vec::new();
    for task in tasks {
        compared.push(task.await.map_err(Failure::no)?);
    }
    Ok(compared)
}

/// Returns when a call begins, counted from the first one, which was recorded at `first`.
fn due(rate: Option<u32>, speed: f64, index: usize, recorded: &Captured, first: u64) -> Duration {
    match rate {
        Some(rate) => Duration::from_secs_f64(index as f64 / f64::from(rate)),
        None => Duration::from_micros(recorded.at_us.saturating_sub(first)).div_f64(speed),
    }
}

fn outcome(answer: Result<Payload, Failed>) -> Outcome {
    match answer {
        Ok(payload) => Outcome::Answer(Message::of(&payload)),
        Err(Failed::Application(payload)) => Outcome::Error(Message::of(&payload)),
        Err(Failed::Status(status)) => {
            Outcome::Status(status.code().name().to_owned(), status.message().to_owned())
        }
    }
}

/// The results of a replay.
#[derive(Default)]
struct Sum {
    same: usize,
    /// Calls whose answer differs.
    others: Vec<Compared>,
    /// Paths that could not be called, each with the reason.
    refused: HashMap<String, String>,
    /// The times then, and now.
    then: Vec<Duration>,
    now: Vec<Duration>,
    /// How late a call began at most.
    latest: Duration,
}

impl Sum {
    fn add(&mut self, compared: Compared, told: &Told) {
        let Compared { recorded, outcome, took, late } = &compared;
        self.latest = self.latest.max(*late);
        self.then.push(Duration::from_micros(recorded.took_us));
        self.now.push(*took);
        let is_same = call::is_same(told, &recorded.path, &recorded.outcome, outcome);
        if is_same { self.same += 1 } else { self.others.push(compared) }
    }

    fn render(&mut self, show: usize, told: &Told) -> String {
        let style = if self.others.is_empty() { GOOD } else { BAD };
        let mut text = format!(
            "{BOLD}{}{BOLD:#} calls, {} as recorded, {style}{} different{style:#}\n",
            self.now.len(),
            self.same,
            self.others.len()
        );
        if self.latest > LATE {
            let latest = self.latest.as_secs_f64();
            text += &format!(
                "{BAD}calls began up to {latest:.1} s late{BAD:#}: the server is too slow for this rate, or --in-flight too low\n"
            );
        }
        for (name, times) in [("then", &mut self.then), ("now", &mut self.now)] {
            times.sort_unstable();
            let at = |share: usize| {
                times
                    .get((times.len() * share / 100).min(times.len().saturating_sub(1)))
                    .copied()
                    .unwrap_or_default()
            };
            text += &format!("{name:<5} p50 {:?}, p99 {:?}\n", at(50), at(99));
        }
        for (path, why) in &self.refused {
            text += &format!("{BAD}not called{BAD:#}  {path}: {why}\n");
        }
        for Compared { recorded, outcome, .. } in self.others.iter().take(show) {
            let shown = |outcome: &Outcome| call::shown(told, &recorded.path, outcome);
            text += &format!(
                "\n{BOLD}{}{BOLD:#} {}\n",
                recorded.path,
                call::shown_arguments(told, &recorded.path, &recorded.arguments)
            );
            text += &format!("  then  {}\n  now   {}\n", shown(&recorded.outcome), shown(outcome));
        }
        if self.others.len() > show {
            text += &format!("{FAINT}and {} more (--show){FAINT:#}\n", self.others.len() - show);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use clap::Parser;
    use farcall::Status;
    use farcall::dynamic::{Method, ServiceInfo};
    use farcall::middleware::{Next, Request, Response};

    use super::*;
    use crate::call::protobuf::Messages;
    use crate::mutations;
    use crate::perf::service::{PerfServer, Service};

    /// Calls as `farcall record` writes them.
    fn recording() -> String {
        let call = |number: u64, outcome: serde_json::Value| {
            let arguments = serde_json::json!({ "body": [1, 97], "attachments": [[1, 2, 3], []] });
            serde_json::json!({
                "at_us": number * 1000, "path": "shop.v1.Kv/put", "codec": "postcard", "fingerprint": 1234567890123456789_u64,
                "metadata": [["tenant", "a"]], "arguments": arguments, "took_us": 17, "outcome": outcome, "missed": 0,
            })
            .to_string()
        };
        let message = serde_json::json!({ "body": [0], "attachments": [] });
        let outcomes = [
            serde_json::json!({ "Answer": message }),
            serde_json::json!({ "Error": message }),
            serde_json::json!({ "Status": ["NOT_FOUND", "nothing"] }),
        ];
        outcomes.into_iter().zip(1..).map(|(outcome, number)| call(number, outcome) + "\n").collect()
    }

    /// Replays so many calls, recorded one a second, with these arguments. Returns when each began, from the beginning.
    async fn begun(calls: u64, more: &[&str]) -> Vec<Duration> {
        let noted = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&noted);
        let note = move |_: Request, _: Next| {
            notes.lock().unwrap().push(Instant::now());
            std::future::ready(Err::<Response, _>(Status::unavailable("noted")))
        };
        let server = PerfServer::new(Service::new(1, farcall::Config::default()));
        let channel = farcall::in_process(server).intercept(note);
        let methods = vec![Method::unary("note", "note()")];
        let info = ServiceInfo { name: "test.v1.Unasked".into(), codec: "postcard".into(), methods };
        let clients = HashMap::from([("test.v1.Unasked/note".to_owned(), Client::new(&channel, info))]);
        let recorded = |second: u64| {
            let mut call = parse(recording().as_bytes()).unwrap().remove(0);
            call.at_us = second * 1_000_000;
            call.path = "test.v1.Unasked/note".to_owned();
            call
        };
        let line = [&["farcall", "replay", "host", "file"], more].concat();
        let Ok(crate::Command::Replay(arguments)) =
            crate::Arguments::try_parse_from(line).map(|all| all.command)
        else {
            panic!("{more:?}")
        };
        let begin = Instant::now();
        let compared = replay(&arguments, (0..calls).map(recorded).collect(), &clients).await;
        let Ok(compared) = compared else { panic!("a task has panicked") };
        assert_eq!(compared.len() as u64, calls);
        let noted = noted.lock().unwrap();
        noted.iter().map(|at| *at - begin).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn calls_begin_at_the_rate_that_is_asked_for() {
        // The runtime's clock counts in milliseconds.
        const TICK: Duration = Duration::from_millis(1);
        for (calls, more, interval) in [
            (2000, &["--rate", "5000"][..], Duration::from_micros(200)),
            (20, &["--rate", "2"], Duration::from_millis(500)),
            (20, &["--speed", "10"], Duration::from_millis(100)),
            (20, &[], Duration::from_secs(1)),
        ] {
            let begun = begun(calls, more).await;
            assert_eq!(begun.len() as u64, calls, "{more:?}");
            for (at, number) in begun.into_iter().zip(0..) {
                let due = interval * number;
                assert!(
                    (due..=due + TICK).contains(&at),
                    "{more:?}: call {number} at {at:?}, due at {due:?}"
                );
            }
        }
    }

    #[test]
    fn no_recording_panics() {
        let original = parse(recording().as_bytes()).unwrap();
        assert_eq!(original.len(), 3);
        let told = Told { services: Vec::new(), messages: Messages::of(Ok(Vec::new())) };
        let mut accepted = 0;
        for mutation in mutations::of(&recording(), 1).take(10_000) {
            let Ok(calls) = parse(mutation.as_bytes()) else { continue };
            accepted += 1;
            let mut sum = Sum::default();
            for (recorded, original) in calls.into_iter().zip(original.iter().cycle()) {
                let due = due(None, 0.001, 0, &recorded, 0);
                assert!(Instant::now().checked_add(due).is_some(), "{due:?}");
                let outcome = original.outcome.clone();
                let compared = Compared { recorded, outcome, took: Duration::MAX, late: Duration::MAX };
                sum.add(compared, &told);
            }
            assert!(sum.render(2, &told).contains("calls"));
        }
        assert!(accepted > 500, "{accepted}");
    }
}
