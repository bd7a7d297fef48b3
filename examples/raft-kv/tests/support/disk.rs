//! Disks that can be filled: file systems in memory, which only root can mount.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system. It is gone when this is dropped.
pub(crate) struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Mounts a disk of 64 MiB. Returns none where the test may not mount.
    pub(crate) fn mount(path: &Path) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=64m", "raft-kv-test"]).arg(path).output();
        mounted.is_ok_and(|mounted| mounted.status.success()).then(|| Self { path: path.to_owned() })
    }

    fn ballast(&self) -> PathBuf {
        self.path.join("ballast")
    }

    /// Leaves no room.
    pub(crate) fn fill(&self) {
        let mut ballast = File::create(self.ballast()).unwrap();
        for len in [1 << 20, 4096] {
            let full = loop {
                if let Err(why) = ballast.write_all(&vec![0; len]) {
                    break why;
                }
            };
            assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
        }
    }

    /// Makes room again.
    pub(crate) fn empty(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The data of a test that fails are there to look at.
        if !std::thread::panicking() {
            let unmounted = Command::new("umount").arg(&self.path).status();
            assert!(unmounted.is_ok_and(|status| status.success()), "{} stays mounted", self.path.display());
        }
    }
}
