//! Feeds `farcall_fuzz::values`.
#![cfg_attr(fuzzing, no_main)]

farcall_fuzz::target!(farcall_fuzz::values);
