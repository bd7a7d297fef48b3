use std::sync::Mutex;
use std::thread::ThreadId;

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

fn control() -> Control {
    Control::start("test", ()).unwrap()
}

/// A call that does not return before the sender is dropped.
fn stuck() -> (Sender<()>, impl FnOnce() + Send) {
    let (release, wait) = channel::<()>();
    (release, move || assert!(wait.recv().is_err()))
}

async fn threads(control: &Control, count: usize) {
    while control.setups.queue().threads != count {
        tokio::task::yield_now().await;
    }
}

#[test]
fn jobs_run_in_order_on_one_thread_of_their_own() {
    let control = control();
    let log = Arc::new(Mutex::new(Vec::new()));
    for i in 0..100 {
        let log = Arc::clone(&log);
        control.spawn(move || log.lock().unwrap().push((i, thread::current().id())));
    }
    let (sender, last) = channel();
    control.spawn(move || sender.send(thread::current().id()).unwrap());
    let there = last.recv().unwrap();
    assert_ne!(there, thread::current().id());
    let expected: Vec<(i32, ThreadId)> = (0..100).map(|i| (i, there)).collect();
    assert_eq!(*log.lock().unwrap(), expected);
}

#[test]
fn offloaded_value_is_dropped_on_the_thread() {
    struct Witness(Sender<ThreadId>);
    impl Drop for Witness {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().id());
        }
    }
    let control = control();
    let (sender, dropped) = channel();
    drop(DropOnControlThread::new(Arc::new(Witness(sender.clone())), control.clone()));
    control.spawn(move || sender.send(thread::current().id()).unwrap());
    assert_eq!(dropped.recv().unwrap(), dropped.recv().unwrap());
}

#[tokio::test]
async fn panic_of_a_call_is_told_to_those_who_wait() {
    let control = control();
    assert_eq!(control.set_up(Part::Connect, "it", || panic!("on purpose")).await, Err(Failed::Panicked));
    assert_eq!(control.set_up(Part::Connect, "it", || 1).await, Ok(1));
}

#[tokio::test]
async fn call_for_which_there_is_no_thread_says_so_and_what_to_do() {
    let control = control();
    // None is started while there are so many.
    control.setups.queue().threads = SETUPS;
    let mut call = Box::pin(control.set_up(Part::Connect, "it", || ()));
    tokio::select! {
        biased;
        result = &mut call => panic!("{result:?}"),
        () = std::future::ready(()) => {}
    }
    control.setups.queue().give_up(&io::Error::from_raw_os_error(11));
    let why = transport::Unavailable::from(call.await.unwrap_err());
    assert_eq!(why.reason, Reason::Device);
    for part in ["test: starting a thread failed", "ulimit -u", "pids.max"] {
        assert!(why.to_string().contains(part), "{part}: {why}");
    }
}

#[tokio::test]
async fn threads_that_set_up_are_few_and_end_with_their_work() {
    let control = control();
    let running = Arc::new(Mutex::new((0, 0)));
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let (control, running) = (control.clone(), Arc::clone(&running));
            tokio::spawn(async move {
                let enter = move || {
                    let mut now = running.lock().unwrap();
                    now.0 += 1;
                    now.1 = now.0.max(now.1);
                    drop(now);
                    thread::yield_now();
                    running.lock().unwrap().0 -= 1;
                };
                control.set_up(Part::Connect, "it", enter).await.unwrap();
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    assert!((1..=SETUPS).contains(&running.lock().unwrap().1));
    tokio::time::timeout(LIMIT, threads(&control, 0)).await.expect("threads must end");
}

#[tokio::test]
async fn call_that_hangs_is_given_up_and_its_result_dropped_when_it_returns() {
    let control = control();
    let (release, hang) = stuck();
    let made = Arc::new(());
    let result = Arc::clone(&made);
    let call = move || {
        hang();
        result
    };
    let failed = control.set_up(Part::Connect, "ibv_modify_qp (to RTR)", call).await.unwrap_err();
    let why = transport::Unavailable::from(failed);
    assert_eq!(why.reason, Reason::TimedOut);
    assert!(why.detail.contains("test: ibv_modify_qp (to RTR) has not returned within 2s"), "{why}");
    drop(release);
    while Arc::strong_count(&made) > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn connecting_goes_before_creating() {
    let control = control();
    let (release, hang) = stuck();
    let (release_too, hang_too) = stuck();
    let creations = [
        tokio::spawn({
            let control = control.clone();
            async move { control.set_up(Part::Create, "it", hang).await }
        }),
        tokio::spawn({
            let control = control.clone();
            async move { control.set_up(Part::Create, "it", hang_too).await }
        }),
    ];
    threads(&control, CREATIONS).await;
    // As many are created at once as may be; there is still a thread that connects.
    let third = tokio::spawn({
        let control = control.clone();
        async move { control.set_up(Part::Create, "it", || ()).await }
    });
    for _ in 0..10 {
        assert_eq!(control.set_up(Part::Connect, "it", || 1).await, Ok(1));
    }
    assert!(!third.is_finished());
    drop((release, release_too));
    for creation in creations.into_iter().chain([third]) {
        creation.await.unwrap().unwrap();
    }
    tokio::time::timeout(LIMIT, threads(&control, 0)).await.expect("threads must end");
}

#[tokio::test]
async fn calls_that_hang_hold_up_neither_the_others_nor_what_takes_links_down() {
    let control = control();
    let mut stuck_ones = Vec::new();
    for _ in 1..SETUPS {
        let (release, hang) = stuck();
        let control = control.clone();
        stuck_ones
            .push((release, tokio::spawn(async move { control.set_up(Part::Connect, "it", hang).await })));
    }
    threads(&control, SETUPS - 1).await;
    assert_eq!(control.set_up(Part::Connect, "it", || 1).await, Ok(1));
    threads(&control, SETUPS - 1).await;
    // All of them hang: what is to be taken down goes on.
    let (_release, hang) = stuck();
    let last = tokio::spawn({
        let control = control.clone();
        async move { control.set_up(Part::Connect, "it", hang).await }
    });
    threads(&control, SETUPS).await;
    let (sender, done) = oneshot::channel();
    control.spawn(move || sender.send(()).unwrap());
    tokio::time::timeout(LIMIT, done).await.expect("the other lane must be free").unwrap();
    // A caller that loses patience in the queue leaves no trace.
    let called = Arc::new(Mutex::new(false));
    let call = Arc::clone(&called);
    let waiting = control.set_up(Part::Connect, "it", move || *call.lock().unwrap() = true);
    assert!(tokio::time::timeout(Duration::from_millis(10), waiting).await.is_err());
    drop((_release, stuck_ones));
    last.await.unwrap().unwrap();
    tokio::time::timeout(LIMIT, threads(&control, 0)).await.expect("threads must end");
    assert!(!*called.lock().unwrap());
}
