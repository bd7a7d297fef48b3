//! The beginning of a connection: HELLO, and the choice of a link.

use std::sync::Arc;
use std::sync::OnceLock;

use bytes::Bytes;

use super::link_receiver::LinkReceiver;
use super::{Connection, Phase, Registry, Role, Settings, Upgrading, keepalive, required};
use crate::call_streams;
use crate::class::TrafficClass;
use crate::compress::Compression;
use crate::config::Policy;
use crate::memory::Account;
use crate::proto::wire::{self, CloseCode, FrameType, Hello, VERSION, WireError};
use crate::status::{Blame, Executed, Status};
use crate::transport::{Link, Reason, Unavailable};

impl Connection {
    /// Begins a session as its client. Sends HELLO, and returns when the link for calls is decided. Must be called
    /// within a tokio runtime. Dropping the future gives the connection up.
    pub(crate) async fn connect(
        stream: Arc<dyn Link>,
        class: TrafficClass,
        settings: Arc<Settings>,
    ) -> Result<Arc<Self>, Status> {
        stream.mark(class);
        let account = Account::unlimited(stream.description().peer);
        let guard = CloseOnDrop(Some(Self::start(Role::Client, class, stream, settings, account, None)));
        guard.greeted().await?;
        guard.decided().await?;
        Ok(guard.keep())
    }

    /// Begins a session as its server, with calls going to `registry`. Must be called within a tokio runtime.
    pub(crate) fn accept(
        stream: Arc<dyn Link>,
        settings: Arc<Settings>,
        account: Arc<Account>,
        registry: Arc<Registry>,
    ) -> Arc<Self> {
        let class = TrafficClass::Normal; // Until its HELLO says otherwise.
        Self::start(Role::Server, class, stream, settings, account, Some(registry))
    }

    /// Server: waits until the client's HELLO has arrived. Closes the connection, if `leaves` ends first, for the reason that it gives.
    pub(crate) async fn greeted_unless(
        &self,
        leaves: impl Future<Output = (CloseCode, String)>,
    ) -> Result<(), Status> {
        tokio::select! {
            // A connection whose HELLO has arrived is no handshake any more.
            biased;
            greeted = self.greeted() => greeted,
            (code, why) = leaves => {
                let status = self.status(why, Executed::No, Blame::Environment);
                self.close_as(code, status.clone());
                self.sender.stream().abort();
                Err(status)
            }
        }
    }

    /// Tells a client that it can't be served, without reading what it sends. Returns when it was told, or its link has given up.
    pub(crate) async fn refuse(stream: Arc<dyn Link>, settings: &Arc<Settings>, why: &str) {
        let account = Account::unlimited(stream.description().peer);
        let connection =
            Self::new(Role::Server, TrafficClass::Normal, stream, settings.clone(), account, None);
        let handler = LinkReceiver::stream(connection.clone());
        connection.sender.stream().clone().start(Arc::new(handler));
        let status = connection.status(why, Executed::No, Blame::Environment);
        connection.close_as(CloseCode::Overloaded, status);
        connection.gone().await;
    }

    fn start(
        role: Role,
        class: TrafficClass,
        stream: Arc<dyn Link>,
        settings: Arc<Settings>,
        account: Arc<Account>,
        registry: Option<Arc<Registry>>,
    ) -> Arc<Self> {
        let connection = Self::new(role, class, stream, settings, account, registry);
        connection.runtime.spawn(connection.clone().greet());
        connection.runtime.spawn(keepalive::keep(connection.clone()));
        connection.sender.start();
        connection
    }

    /// Sends HELLO and starts to receive. Runs as a task, because it may take a moment to find out what to announce.
    async fn greet(self: Arc<Self>) {
        // Made first: if this task is dropped or panics, the handler's end is the connection's.
        let handler = Arc::new(LinkReceiver::stream(self.clone()));
        let upgrade = self.announce().await;
        let limits = &self.settings().limits;
        let hello = Hello {
            version_min: VERSION,
            version_max: VERSION,
            features: wire::features::DESCRIBED
                | wire::features::STREAMS
                | wire::features::METADATA
                | wire::features::ACCESS
                | wire::features::GRANTS
                | wire::features::LOAN_GRANTS
                | Compression::features(),
            max_frame: self.sender.stream().max_frame() as u32,
            max_message: limits.max_message,
            max_assembly: limits.max_assembly,
            max_calls: limits.concurrent_calls,
            max_metadata: limits.max_metadata,
            class: self.class() as u8,
            security: 0,
            instance: instance(),
            upgrades: vec![upgrade],
            auth: Bytes::new(),
            stream_items: call_streams::FIRST.items as u32,
            stream_bytes: call_streams::FIRST.bytes as u32,
        };
        if !self.is_closed() {
            self.sender.send_link(FrameType::HELLO, |out| hello.encode(out));
        }
        self.sender.stream().clone().start(handler);
    }

    /// Returns the part of HELLO about the upgraded link.
    async fn announce(&self) -> wire::Upgrade {
        let (name, why) = match &self.settings().upgrade {
            Err(why) => ("rdma", why.clone()),
            Ok(upgrade) if self.settings().policy == Policy::Tcp => {
                (upgrade.name(), Unavailable::new(Reason::Disabled, ""))
            }
            Ok(upgrade) => {
                // The peer's patience ends with ours, so half of it is left for everything else.
                let announced = tokio::time::timeout(self.patience() / 2, upgrade.announce()).await;
                match announced.unwrap_or_else(|_| Err(self.too_slow(self.patience() / 2))) {
                    Ok(data) if data.len() > wire::MAX_ANNOUNCED => {
                        let detail =
                            format!("it announces {} bytes, more than a HELLO has room for", data.len());
                        (upgrade.name(), Unavailable::new(Reason::Other, detail))
                    }
                    Ok(data) => return wire::Upgrade { name: upgrade.name().into(), reason: 0, data },
                    Err(why) => (upgrade.name(), why),
                }
            }
        };
        let reason = why.reason as u8;
        self.stay_on_stream(why);
        wire::Upgrade { name: name.into(), reason, data: Bytes::new() }
    }

    /// Waits for the peer's HELLO.
    async fn greeted(&self) -> Result<(), Status> {
        let mut phase = self.phase.subscribe();
        let greeted = phase.wait_for(|p| !matches!(p, Phase::Greeting));
        let patience = self.patience();
        if tokio::time::timeout(patience, greeted).await.is_err() {
            let detail = format!(
                "the peer accepted the connection but sent no HELLO within {patience:?} (liveness.connect_ms); \
                 is it a farcall server?"
            );
            self.close_as(CloseCode::Silent, self.status(detail, Executed::No, Blame::Peer));
            self.sender.stream().abort();
        }
        self.not_closed()
    }

    /// Client: waits until the link for calls is decided. Under policy `rdma`, fails if that is not RDMA.
    async fn decided(&self) -> Result<(), Status> {
        let mut upgrading = self.upgrading.subscribe();
        // The end of the connection also decides this; an error means the same.
        let decision = upgrading.wait_for(|u| !matches!(u, Upgrading::Undecided)).await.map(|u| u.clone());
        self.not_closed()?;
        if let (Ok(Upgrading::Stream { why, .. }), Policy::Rdma) = (decision, self.settings().policy) {
            let status = required(&self.diagnosed(why).await);
            self.close_as(CloseCode::Required, status.clone());
            return Err(status);
        }
        Ok(())
    }

    /// Returns the reason with what else is found on this machine, if that may be its cause: it is a reason of this side, or packets
    /// between both were lost.
    async fn diagnosed(&self, why: Unavailable) -> Unavailable {
        let Ok(upgrade) = &self.settings().upgrade else { return why };
        let is_loss = matches!(why.reason, Reason::ProbeLost | Reason::TimedOut);
        if why.at_peer && !is_loss || why.reason == Reason::Disabled {
            return why;
        }
        tokio::time::timeout(self.patience(), upgrade.diagnose(why.clone())).await.unwrap_or(why)
    }

    pub(super) fn on_hello(&self, mut hello: Hello) -> Result<(), WireError> {
        if let Some(status) = self.unusable(&hello) {
            let version = hello.version_min > VERSION || hello.version_max < VERSION;
            self.close_as(if version { CloseCode::Version } else { CloseCode::Required }, status);
            return Ok(());
        }
        let describes = hello.features & wire::features::DESCRIBED != 0;
        self.sender.inspect(|sending| {
            sending.outbox.set_max_assembly(hello.max_assembly);
            sending.peer_max_frame = hello.max_frame as usize;
        });
        if describes {
            self.receiving.lock().inbox.allow_described();
        }
        self.calls.admit(hello.max_calls);
        self.keep_what_is_used(&mut hello);
        let upgrades = hello.upgrades.clone();
        if !self.sender.terms().set_peer(hello) {
            return Err(WireError::new("hello", "comes again"));
        }
        if let (Some(dispatch), Some(identity)) = (&self.dispatch, self.sender.stream().identity()) {
            dispatch.set_identity(identity);
        }
        self.enter(|phase| matches!(phase, Phase::Greeting).then_some(Phase::Open));
        match self.role() {
            Role::Client => self.decide(&upgrades),
            Role::Server => {
                self.sender.stream().mark(self.class());
                self.expect_offer(&upgrades);
            }
        }
        Ok(())
    }

    /// Drops what nothing here uses of a HELLO, which may have 128 KiB. The rest is no view of the frame.
    fn keep_what_is_used(&self, hello: &mut Hello) {
        hello.auth = Bytes::new();
        let name = self.upgrade_name();
        let upgrade = std::mem::take(&mut hello.upgrades).into_iter().find(|upgrade| upgrade.name == name);
        hello.upgrades.extend(upgrade.map(|mut upgrade| {
            upgrade.data = match self.role() {
                Role::Client => Bytes::copy_from_slice(&upgrade.data),
                // A client that wants to move sends its own data with the OFFER.
                Role::Server => Bytes::new(),
            };
            upgrade
        }));
    }

    /// Returns why no session is possible with this peer, if so.
    fn unusable(&self, hello: &Hello) -> Option<Status> {
        let detail = if hello.version_min > VERSION || hello.version_max < VERSION {
            format!(
                "no common version: this side speaks wire version {VERSION}, the peer {} to {}; upgrade the older side",
                hello.version_min, hello.version_max
            )
        } else if hello.security != 0 {
            "the peer wants the session secured in a way that this version does not know".to_owned()
        } else if self.role() == Role::Client && hello.max_calls == 0 {
            "the server takes no calls: its HELLO says max_calls 0 (limits.concurrent_calls)".to_owned()
        } else {
            return None;
        };
        Some(self.status(detail, Executed::No, Blame::Environment))
    }
}

/// Returns a number for this process in HELLO. It only serves to distinguish processes in logs.
fn instance() -> u64 {
    static INSTANCE: OnceLock<u64> = OnceLock::new();
    use std::hash::{BuildHasher, RandomState};
    *INSTANCE.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}

/// A guard that closes a connection whose setup was abandoned.
struct CloseOnDrop(Option<Arc<Connection>>);

impl CloseOnDrop {
    fn keep(mut self) -> Arc<Connection> {
        self.0.take().expect("taken once, here")
    }
}

impl std::ops::Deref for CloseOnDrop {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.0.as_deref().expect("present until it is kept")
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            let status = connection.status("given up while connecting", Executed::No, Blame::Caller);
            connection.close_as(CloseCode::Done, status);
        }
    }
}
