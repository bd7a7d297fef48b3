//! Compiles each case in `tests/ui`, and compares the compiler's messages with the ones in the file beside it.

/// Every misuse has a message at the tokens to change.
#[test]
fn misuse() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");

    // Here it is the compiler that complains, of what the types lack, in words that change from version to version.
    let rustc = std::process::Command::new("rustc").arg("--version").output().unwrap();
    let version = String::from_utf8(rustc.stdout).unwrap();
    if version.starts_with("rustc 1.95.") {
        cases.compile_fail("tests/ui/types/*.rs");
    } else {
        println!("tests/ui/types holds the words of rustc 1.95; this is {version}");
    }
}
