//! Test programs as processes of their own, which can be stopped and killed, and what is left of them.

#![allow(dead_code, clippy::allow_attributes, reason = "each test uses a part of it")]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The variable that tells a process its part, and what it needs to know for that.
const PART: &str = "TEST_PART";

/// This test program again, as a process that plays a part: runs the one test `part`.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(part: &str, argument: &str) -> Self {
        Self::start_by(&[], part, argument)
    }

    /// Starts it by a command that runs another one, which is given as its last arguments: `nice`, for example.
    pub(crate) fn start_by(command: &[&str], part: &str, argument: &str) -> Self {
        Self::start_as(command, part, argument, |_| {})
    }

    /// Starts it by a command that runs another one, after `change` has adjusted the whole.
    pub(crate) fn start_as(
        command: &[&str],
        part: &str,
        argument: &str,
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let this = std::env::current_exe().unwrap();
        let mut words = command.iter().map(AsRef::as_ref).chain([this.as_os_str()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(["--exact", part, "--nocapture"]).env(PART, argument);
        change(command.stdout(Stdio::piped()));
        Self(command.spawn().unwrap())
    }

    /// Returns its number.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns the next line that the process [says](say).
    pub(crate) fn said(&mut self) -> String {
        let mut stdout = BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap());
        let mut line = String::new();
        while stdout.read_line(&mut line).unwrap() > 0 {
            if let Some((_, said)) = line.split_once("SAYS ") {
                return said.trim().to_owned();
            }
            line.clear();
        }
        panic!("the process ended and had nothing to say");
    }

    /// Returns the lines that the process [says](say) from now on, until its end.
    pub(crate) fn words(&mut self) -> impl Iterator<Item = String> + Send + use<> {
        let stdout = BufReader::new(self.0.stdout.take().unwrap());
        let said = |line: String| line.split_once("SAYS ").map(|(_, said)| said.trim().to_owned());
        stdout.lines().map_while(Result::ok).filter_map(said)
    }

    /// Sends it a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let command = format!("kill -{name} {}", self.0.id());
        assert!(Command::new("bash").args(["-c", &command]).status().unwrap().success());
    }

    /// Stops it. None of its threads runs when this returns: the signal alone leaves them a moment.
    pub(crate) fn stop(&self) {
        self.signal("STOP");
        while self.runs() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether any of its threads is neither stopped nor dead, as the kernel tells it, see proc_pid_stat(5). Other systems do not tell.
    fn runs(&self) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.0.id())) else { return false };
        let stats = threads.flatten().map(|thread| std::fs::read_to_string(thread.path().join("stat")));
        stats.flatten().any(|stat| {
            let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
            state.is_some_and(|state| !"TZX".contains(state))
        })
    }

    /// Kills it and waits until nothing is left of it.
    pub(crate) async fn kill(mut self) {
        self.0.kill().unwrap();
        let gone = async {
            while self.0.try_wait().unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // One whose queue pairs are destroyed with windows bound takes 50 s and more. This is slow, but not like that.
        tokio::time::timeout(Duration::from_secs(20), gone).await.expect("the killed process stays");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the words for a process that plays a part; `None` where the tests run.
pub(crate) fn told() -> Option<String> {
    std::env::var(PART).ok()
}

/// Tells who started this process.
pub(crate) fn say(what: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "SAYS {what}").unwrap();
    out.flush().unwrap();
}

/// Returns the memory of a process that is resident, in bytes.
pub(crate) fn resident(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// The holdings of this process.
#[derive(Debug)]
pub(crate) struct Holdings {
    pub(crate) queue_pairs: usize,
    pub(crate) regions: usize,
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
}

impl Holdings {
    pub(crate) fn now() -> Self {
        let count = |path: &str| std::fs::read_dir(path).unwrap().count();
        Self {
            queue_pairs: resources("qp"),
            regions: resources("mr"),
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
        }
    }

    /// Whether this is no more, of anything, than that.
    pub(crate) fn within(&self, other: &Self) -> bool {
        self.regions <= other.regions && self.threads <= other.threads && self.ends_within(other)
    }

    /// Whether this holds no more than `other` of what each peer has alone.
    pub(crate) fn ends_within(&self, other: &Self) -> bool {
        self.queue_pairs <= other.queue_pairs && self.descriptors <= other.descriptors
    }
}

/// How many RDMA objects of a kind this process has, as the kernel counts.
fn resources(kind: &str) -> usize {
    let output = Command::new("rdma").args(["resource", "show", kind]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mine = format!(" pid {} ", std::process::id());
    String::from_utf8(output.stdout).unwrap().lines().filter(|line| line.contains(&mine)).count()
}
