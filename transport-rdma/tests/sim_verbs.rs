//! The simulated device does what a real one does: the scenarios of `vm_verbs.rs`, without a device.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod common;

use common::{Machine, atomics, keys, scenarios, windows, words};
use farcall_rdma::testing::device::RdmaConfig;
use farcall_rdma::testing::sim::Fabric;

fn machine() -> Machine {
    let host = Fabric::new(1).host([10, 0, 0, 1].into());
    Machine::open(&host, &RdmaConfig::default())
}

macro_rules! on_the_simulated_device {
    ($($module:ident { $($scenario:ident)* })*) => { $($(
        #[test]
        fn $scenario() {
            $module::$scenario(machine());
        }
    )*)* };
}

on_the_simulated_device! {
    scenarios {
        ping_pong_by_polling
        ping_pong_by_events
        completion_before_arming_makes_no_event
        missing_receive_fails_the_send_at_once
        missing_peer_fails_the_send_after_its_retries
        marker_comes_after_every_outstanding_send
        completions_are_asked_for_every_so_often
        full_send_queue_takes_what_fits
        copied_messages_arrive_between_others
        message_of_two_parts_arrives_as_one
        only_small_messages_may_lie_anywhere
        message_larger_than_a_slot_fails_both_ends
        posting_before_the_connection_is_refused
        send_completion_queue_cannot_be_oversubscribed
        undrained_queue_pair_leaves_nothing_behind
        views_outlive_the_device
    }
    windows {
        exposed_bytes_are_read_whole_and_in_parts
        more_reads_than_the_device_serves_wait_for_each_other
        memory_is_kept_until_its_exposure_is_over
        grant_that_is_over_grants_nothing
        bytes_beside_a_grant_are_out_of_reach
        exposed_bytes_are_nobodys_to_write
        arena_is_removed_once_nothing_of_it_is_used
        windows_run_out_and_come_back
        exposure_that_is_over_does_nothing
        only_what_lies_in_an_arena_is_exposed
        read_beyond_its_landing_is_refused
        failed_read_gives_its_landing_back
        queue_pairs_with_bound_windows_go_at_once
        extents_outlive_the_device
        device_says_what_it_can_read_and_expose
    }
    keys {
        keys_of_a_window_come_round
    }
    words {
        words_are_read_as_they_are_until_the_grant_is_over
        words_beside_a_grant_are_out_of_reach
        a_part_of_words_has_bounds_of_its_own
        words_of_this_side_are_read_into_and_written_from
        windows_serve_words_and_messages
        words_of_queue_pairs_that_are_gone_are_free
        empty_words_are_not_exposed
        words_are_written_until_the_grant_is_over
        words_in_an_arena_are_written_until_the_grant_is_over
        words_beside_a_grant_are_not_written
        a_grant_gives_the_rights_that_it_names
    }
    atomics {
        numbers_are_changed_until_the_grant_is_over
        no_addition_is_lost
        numbers_beside_a_grant_are_not_changed
        numbers_are_changed_by_right
    }
}

#[test]
fn bound_windows_leave_nothing_behind() {
    let fabric = Fabric::new(1);
    let machine = Machine::open(&fabric.host([10, 0, 0, 1].into()), &RdmaConfig::default());
    let ends = windows::with_bound_windows(&machine);
    assert_eq!(fabric.windows(), (16, 14));
    drop((ends, machine));
    assert_eq!((fabric.windows(), fabric.queue_pairs()), ((0, 0), vec![]));
    assert_eq!(farcall_rdma::testing::verbs::leaks(), 0);
}

#[test]
fn key_of_another_connection_reads_nothing() {
    keys::key_of_another_connection_reads_nothing(&machine(), 100);
}

#[test]
fn guessed_keys_open_nothing() {
    keys::guessed_keys_open_nothing(&machine(), 1000);
}
