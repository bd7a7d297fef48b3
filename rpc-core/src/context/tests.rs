use super::*;

#[tokio::test]
async fn a_scope_is_current_only_while_it_is_polled() {
    let cx = Context::background().with_timeout(Duration::from_secs(5));
    assert!(Context::current().is_none());
    let task = tokio::spawn(cx.scope(async {
        tokio::task::yield_now().await;
        Context::current().and_then(|c| c.deadline())
    }));
    assert!(Context::current().is_none());
    assert_eq!(task.await.unwrap(), cx.deadline());
}

#[test]
fn the_context_before_is_back_after_a_panic() {
    let mut outer = Context::background().with_timeout(Duration::from_secs(9));
    let deadline = outer.deadline();
    outer.enter(|| {
        let caught = std::panic::catch_unwind(|| Context::background().enter(|| panic!("in a handler")));
        assert!(caught.is_err());
        assert_eq!(Context::current().unwrap().deadline(), deadline);
    });
    assert!(Context::current().is_none());
}

#[test]
fn a_timeout_never_extends_a_deadline() {
    let cx = Context::background().with_timeout(Duration::from_secs(1));
    assert_eq!(cx.with_timeout(Duration::from_secs(60)).deadline(), cx.deadline());
}

fn trailers(of: &Context) -> usize {
    let set = of.answered();
    let Some(with) = set else { return 0 };
    with.metadata.trailing.len()
}

#[test]
fn a_setting_of_one_clone_counts_for_all_until_there_is_an_answer() {
    let mut context = Context::background();
    context.enter(|| {
        let set =
            || Context::current().unwrap().reply_trailers(|trailers| trailers.append("k", "v").unwrap());
        let given = Context::background().given();
        given.reply_trailers(|trailers| trailers.append("k", "v").unwrap());
        given.with_timeout(Duration::from_secs(9)).enter(set);
        set();
    });
    assert_eq!((trailers(&context), trailers(&context)), (3, 0));
    context.reply_trailers(|trailers| trailers.append("k", "v").unwrap());
    assert_eq!(trailers(&context), 0);
}

#[test]
fn a_context_that_sets_nothing_has_nothing_to_share() {
    let mut context = Context::background();
    context.enter(|| assert_eq!(Context::current_deadline(), None));
    assert!(context.shared.is_none() && context.metadata().is_empty());
}
