//! Clocks of nodes that can be set, by libfaketime. The clock that never goes backwards stays as it is, as on a machine whose time
//! of day is set.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory below which Debian installs libfaketime, by architecture.
const LIBRARIES: &str = "/usr/lib";

/// In seconds.
const DAY: i64 = 24 * 3600;

/// The time of day of one node.
pub(crate) struct Clock {
    library: PathBuf,
    /// How far the clock is from this machine's.
    offset: PathBuf,
}

impl Clock {
    /// Returns a clock that keeps what it is set to in the file `offset`. Returns none where libfaketime is not installed.
    pub(crate) fn new(offset: PathBuf) -> Option<Self> {
        let clock = Self { library: library()?, offset };
        clock.set(-DAY);
        let mut date = Command::new("date");
        clock.apply_to(date.arg("+%s"));
        let told: i64 = String::from_utf8(date.output().unwrap().stdout).unwrap().trim().parse().unwrap();
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs().cast_signed();
        assert!((now - DAY - told).abs() < 3600, "libfaketime must set clocks");
        clock.set(0);
        Some(clock)
    }

    /// Has a program that is about to start take its time of day from this clock.
    pub(crate) fn apply_to(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("FAKETIME_TIMESTAMP_FILE", &self.offset);
        command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }

    /// Sets the clock to so many seconds after this machine's.
    pub(crate) fn set(&self, seconds: i64) {
        // A program that reads while this writes must find one time or the other.
        let new = self.offset.with_extension("new");
        fs::write(&new, format!("{seconds:+}\n")).unwrap();
        fs::rename(new, &self.offset).unwrap();
    }
}

fn library() -> Option<PathBuf> {
    let of_machines = fs::read_dir(Path::new(LIBRARIES)).ok()?.flatten();
    of_machines.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1")).find(|library| library.exists())
}
