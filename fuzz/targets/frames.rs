//! Feeds `farcall_fuzz::frames`.
#![cfg_attr(fuzzing, no_main)]

farcall_fuzz::target!(farcall_fuzz::frames);
