//! The services that this side has announced to its peer.

use std::sync::{Arc, OnceLock};

use bytes::BytesMut;

use crate::interface::ServiceInfo;
use crate::proto::message::Message;
use crate::proto::wire::{Bind, BindMethod, FrameType, MAX_BIND_BYTES, counted_bind};
use crate::refusal::{refusal, too_large};
use crate::session::Sender;
use crate::status::{Code, Status};
use crate::sync::{Mutex, rank};

/// The services that were announced to the peer.
#[derive(Debug, Default)]
pub(super) struct AnnouncedServices {
    list: Mutex<rank::Services, List>,
    /// The first service, which on many connections is the only one.
    first: OnceLock<Arc<ServiceInfo>>,
}

#[derive(Debug, Default)]
struct List {
    /// The services by their index on the wire.
    services: Vec<Arc<ServiceInfo>>,
    /// As how many bytes their BINDs count.
    bytes: usize,
}

impl AnnouncedServices {
    /// Returns the index of a service on this connection, and announces it if necessary.
    pub(super) fn index(&self, service: &Arc<ServiceInfo>, sender: &Sender) -> Result<u16, Status> {
        if self.first.get().is_some_and(|first| Arc::ptr_eq(first, service)) {
            return Ok(0);
        }
        let mut announced = self.list.lock();
        let known = announced.services.iter().position(|s| Arc::ptr_eq(s, service) || **s == **service);
        if let Some(index) = known {
            return Ok(index as u16);
        }
        // Fewer than fit, because each counts.
        let index = announced.services.len() as u16;
        service.check().map_err(|why| refusal(Code::InvalidArgument, why))?;
        let methods = service.methods.iter().map(|m| BindMethod {
            hash: m.hash(),
            kind: m.kind as u8,
            fingerprint: m.fingerprint,
        });
        let bind = Bind {
            service: index,
            name: service.name.to_string(),
            codec: service.codec.clone().into_owned(),
            methods: methods.collect(),
        };
        let mut head = BytesMut::new();
        bind.encode(&mut head);
        let max_message = sender.terms().max_message();
        if head.len() as u64 > max_message {
            let what = format!("the names and methods of service `{}`", service.name);
            return Err(too_large(&what, head.len(), max_message, "the server's"));
        }
        let counted = counted_bind(head.len());
        if announced.bytes + counted > MAX_BIND_BYTES {
            let message = "the services called on one connection are more than 1024, or have more than 1 MiB of names and methods";
            return Err(refusal(Code::ResourceExhausted, message));
        }
        announced.bytes += counted;
        announced.services.push(service.clone());
        // Queued under this lock, so that no call can use the index before its BIND is in the queue.
        if sender.enqueue(Message::new(FrameType::BIND, 0, head.freeze())) == 1 {
            sender.flush_soon();
        }
        self.first.get_or_init(|| service.clone());
        Ok(index)
    }
}
