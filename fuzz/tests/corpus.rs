//! Replays the corpus without the fuzzer: inputs that reach all code that the fuzzer ever reached, and every finding.

use std::fs;
use std::panic;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use farcall_fuzz::TARGETS;

/// Panics of any thread and task. A runtime catches those of its tasks.
static PANICS: AtomicUsize = AtomicUsize::new(0);

#[test]
fn every_target_keeps_its_promises_on_its_corpus() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        report(info);
    }));
    for (name, target) in TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let files = fs::read_dir(&directory).unwrap_or_else(|why| panic!("{}: {why}", directory.display()));
        let mut inputs = 0;
        for file in files {
            let path = file.expect("the directory can be read").path();
            target(&fs::read(&path).expect("the file can be read"));
            assert_eq!(PANICS.load(Ordering::Relaxed), 0, "{}", path.display());
            inputs += 1;
        }
        assert!(inputs > 10, "{name} has {inputs} inputs");
    }
}
