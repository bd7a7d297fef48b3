//! This machine: its signals, temporary files and programs.

use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, SystemTime};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Context, Failure, Result};

/// How often a wait looks whether a signal has arrived.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// No piece of output is larger than this, so that a program which never ends its line cannot fill memory.
const LINE_LIMIT: u64 = 64 << 10;

static SIGNAL: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// From here on the signals that ask a process to end only leave a mark, so that every guard's Drop runs.
/// Whatever waits must ask [`check_signals`] again and again.
pub(crate) fn catch_signals() -> Result<()> {
    let mark = SIGNAL.get_or_init(Arc::default);
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register_usize(signal, Arc::clone(mark), signal.unsigned_abs() as usize)
            .context("handling signals")?;
    }
    Ok(())
}

/// Fails once a signal has asked this process to end.
pub(crate) fn check_signals() -> Result<()> {
    match SIGNAL.get().map_or(0, |mark| mark.load(Ordering::Relaxed)) {
        0 => Ok(()),
        signal => Err(Failure::interrupted(signal)),
    }
}

/// A directory that goes, with all that is in it, when this value does.
#[derive(Debug)]
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    /// Makes an empty directory in `parent` that only this user may enter, under a name that never comes back.
    pub(crate) fn new_in(parent: &Path) -> Result<Self> {
        let now = SystemTime::UNIX_EPOCH.elapsed().context("the clock")?;
        let path = parent.join(format!("xtask-{}-{:x}", std::process::id(), now.as_nanos()));
        DirBuilder::new().mode(0o700).create(&path).context(path.display())?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // The directory is useless to anyone else, and there is nobody to tell.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Cargo's target directory: the one that holds this very program, wherever configuration has put it.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?;
    // Cargo tags a directory that it has made itself. In one that was there before, the program is in that of its profile.
    let tagged = program.ancestors().find(|dir| dir.join("CACHEDIR.TAG").exists());
    let target = tagged.or_else(|| program.ancestors().nth(2)).map(Path::to_path_buf);
    target.ok_or_else(|| Failure::failed(format!("{} is not in a target directory", program.display())))
}

/// The directory of the workspace's own Cargo.toml.
pub(crate) fn workspace_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("/"))
}

/// The user this process runs as.
pub(crate) fn user_id() -> Result<u32> {
    Ok(fs::metadata("/proc/self").context("/proc/self")?.uid())
}

/// A program of the system, found even where an ordinary user's PATH leaves out the administrator's programs.
pub(crate) fn system(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin")).env("LC_ALL", "C.UTF-8");
    command
}

/// The cargo that runs this program. It keeps nothing for a next build of changed sources, which is gigabytes.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.env("CARGO_INCREMENTAL", "0");
    cargo
}

/// The target that the compiler builds for by default.
pub(crate) fn triple() -> Result<String> {
    let said = output(Command::new("rustc").arg("-vV"))?;
    let triple = said.lines().find_map(|line| line.strip_prefix("host: "));
    triple.map(str::to_owned).ok_or_else(|| Failure::cannot_run("rustc does not say what it builds for"))
}

/// Runs a program to its end and returns what it wrote; anything but success is a failure that quotes it.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().context(&name)?;
    check_signals()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::failed(format!("{name}: {}\n{}", output.status, said.trim_end())));
    }
    String::from_utf8(output.stdout).context(&name)
}

/// Runs a program whose standard output is handed on line by line.
pub(crate) fn stream(command: &mut Command, mut line: impl FnMut(&[u8])) -> Result<ExitStatus> {
    let name = command.get_program().display().to_string();
    let mut child = Killed(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context(&name)?);
    let (sender, lines) = mpsc::sync_channel(64);
    if let Some(stdout) = child.0.stdout.take() {
        std::thread::spawn(move || read_lines(stdout, |line| sender.send(line.to_vec()).is_ok()));
    }
    loop {
        check_signals()?;
        match lines.recv_timeout(TICK) {
            Ok(text) => line(&text),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return child.0.wait().context(&name),
        }
    }
}

/// Calls `each` with every line of `source`, the newline included, until the end or until `each` says no.
/// A line above 64 KiB comes in pieces.
pub(crate) fn read_lines(source: impl Read, mut each: impl FnMut(&[u8]) -> bool) {
    let mut source = BufReader::with_capacity(LINE_LIMIT as usize, source);
    let mut line = Vec::new();
    loop {
        line.clear();
        // An error is an end like any other: the program at the other side is gone.
        let read = source.by_ref().take(LINE_LIMIT).read_until(b'\n', &mut line);
        if !line.is_empty() && !each(&line) {
            return;
        }
        if !read.is_ok_and(|length| length > 0) {
            return;
        }
    }
}

/// A process that does not outlive this value.
#[derive(Debug)]
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only if the process is gone and waited for already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `text` as one word of a shell's command line.
pub(crate) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_reaches_a_program_unchanged() {
        for text in ["", "a b", "it's", "$(x) `y` \\ \"", "two\nlines", "'"] {
            let script = format!("printf %s {}", quote(text));
            assert_eq!(output(system("sh").args(["-c", &script])).unwrap(), text);
        }
    }

    #[test]
    fn lines_come_whole_and_long_ones_in_pieces() {
        let long = "x".repeat(LINE_LIMIT as usize + 1);
        let text = format!("a\n\n{long}\nend");
        let mut lines = Vec::new();
        read_lines(text.as_bytes(), |line| {
            lines.push(line.to_vec());
            true
        });
        assert_eq!(lines.concat(), text.as_bytes());
        assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, LINE_LIMIT as usize, 2, 3]);
    }

    #[test]
    fn a_temporary_directory_goes_with_its_contents() {
        let dir = TempDir::new_in(&std::env::temp_dir()).unwrap();
        let path = dir.path().to_path_buf();
        fs::create_dir(path.join("inner")).unwrap();
        fs::write(path.join("inner/file"), "x").unwrap();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_failing_program_is_quoted() {
        let failure = output(system("sh").args(["-c", "echo broken >&2; exit 9"])).unwrap_err();
        assert_eq!(failure.status(), 1);
        assert!(failure.to_string().contains("broken"), "{failure}");
    }
}
