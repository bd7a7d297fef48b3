//! Files of tests.

use std::path::PathBuf;

/// Returns the path of a file in a directory for temporary files.
pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}
