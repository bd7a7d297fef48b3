//! The state of a channel that does not balance, for those who watch it.

use std::pin::pin;
use std::sync::{Arc, Weak};

use tokio::sync::watch;

use super::balance::EndpointState;
use super::class_connection::ClassConnection;
use super::connector::Shared;
use crate::class::TrafficClass;

type States = Arc<[EndpointState]>;

impl Shared {
    /// Returns the state of the connection of a class, and of each change. `None`: there is no runtime.
    pub(super) fn states(self: &Arc<Self>, class: TrafficClass) -> Option<watch::Receiver<States>> {
        let of_class = &self.classes[class as usize];
        let (sender, receiver) = watch::channel(self.state(of_class));
        let followed = follow(Arc::downgrade(self), Arc::clone(of_class), sender);
        self.runtime.as_ref()?.spawn(followed);
        Some(receiver)
    }

    fn state(&self, of_class: &ClassConnection) -> States {
        let (readiness, next_attempt) = (of_class.readiness(), of_class.next_attempt());
        Arc::from([EndpointState { name: self.connector.target().into(), readiness, next_attempt }])
    }
}

/// Tells each change of state, until the channel or all who watch it are gone.
async fn follow(shared: Weak<Shared>, of_class: Arc<ClassConnection>, sender: watch::Sender<States>) {
    loop {
        // Before the state is read, so that no change is missed.
        let mut changed = pin!(of_class.changed());
        changed.as_mut().enable();
        let connection = of_class.connected();
        let Some(state) = shared.upgrade().map(|shared| shared.state(&of_class)) else { return };
        sender.send_replace(state);
        let ended = async {
            match connection {
                Some(connection) => connection.not_open().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => {}
            () = ended => {}
            () = sender.closed() => return,
        }
    }
}
