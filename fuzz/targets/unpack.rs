//! Feeds `farcall_fuzz::unpack`.
#![cfg_attr(fuzzing, no_main)]

farcall_fuzz::target!(farcall_fuzz::unpack);
