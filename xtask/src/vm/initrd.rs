//! The guest's initial RAM file system: busybox, the kernel's modules and the scripts, as a cpio archive.

use std::fs;
use std::path::Path;

use super::kernel::Kernel;
use crate::failure::{Context, Result};

const INIT: &str = include_str!("init.sh");
const GUEST: &str = include_str!("guest.sh");

/// Where Debian's busybox-static puts its program; one that is linked dynamically would not start.
const BUSYBOX: &str = "/bin/busybox";
const APPLETS: &[&str] = &["sh", "mount", "mkdir", "insmod", "cp", "switch_root"];

/// Writes the archive for one guest to `path`. `settings` is what tells it from the others, and `command`
/// what it runs, both in shell.
pub(super) fn write(path: &Path, kernel: &Kernel, settings: &str, command: &str) -> Result<()> {
    let mut archive = Archive::default();
    for dir in ["bin", "proc", "sys", "dev", "modules", "guest"] {
        archive.add(dir, DIRECTORY, &[]);
    }
    archive.add("bin/busybox", PROGRAM, &fs::read(BUSYBOX).context(BUSYBOX)?);
    for applet in APPLETS {
        archive.add(&format!("bin/{applet}"), SYMLINK, b"busybox");
    }
    let mut order = String::new();
    for (index, module) in kernel.modules()?.iter().enumerate() {
        let name = format!("modules/{index}.ko");
        archive.add(&name, FILE, &fs::read(module).context(module.display())?);
        order += &format!("/{name}\n");
    }
    archive.add("modules/order", FILE, order.as_bytes());
    archive.add("guest/guest.sh", FILE, GUEST.as_bytes());
    archive.add("guest/settings", FILE, settings.as_bytes());
    archive.add("guest/command", FILE, command.as_bytes());
    archive.add("init", PROGRAM, INIT.as_bytes());
    fs::write(path, archive.finish()).context(path.display())
}

/// Type and permission bits, as in `st_mode`.
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const SYMLINK: u32 = 0o120_777;

/// A cpio archive in the "newc" format, which the kernel unpacks. Every file belongs to root.
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    files: u32,
}

impl Archive {
    /// Adds a file; of a symlink, `data` is the target. A directory comes before what is in it.
    fn add(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.files += 1;
        let links = 1;
        let fields =
            [self.files, mode, 0, 0, links, 0, data.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(data);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_layout_that_the_kernel_reads() {
        let mut archive = Archive::default();
        archive.add("ab", FILE, b"hello");
        let bytes = archive.finish();
        let header = "070701000000010000\
             81a400000000000000000000000100000000000000050000000000000000000000000000000000000003\
             00000000ab\0\0\0\0hello\0\0\x00070701";
        assert_eq!(String::from_utf8_lossy(&bytes[..header.len()]), header);
        assert!(bytes.len().is_multiple_of(4));
        assert!(bytes.windows(11).any(|window| window == b"TRAILER!!!\0"));
    }
}
