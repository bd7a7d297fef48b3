//! Feeds `farcall_fuzz::payloads`.
#![cfg_attr(fuzzing, no_main)]

farcall_fuzz::target!(farcall_fuzz::payloads);
