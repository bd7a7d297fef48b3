//! A device that is connected with itself.

use std::sync::Arc;

use super::{
    CreateQpError, Device, DeviceError, LocalPath, QpSize, QpTuning, QueuePair, Queues, RemoteQp, random_psn,
};

/// Returns two queue pairs of a device that are connected with each other. Blocks for milliseconds.
pub(crate) fn connect_with_itself(
    device: &dyn Device,
    queues: &dyn Queues,
    size: QpSize,
    path: &LocalPath,
) -> Result<[Arc<dyn QueuePair>; 2], DeviceError> {
    let refused = |operation, errno| DeviceError { device: device.name().to_owned(), operation, errno };
    let create = || {
        let qp = queues.create_qp(size).map_err(|error| match error {
            CreateQpError::Device(error) => error,
            CreateQpError::CqBudget => refused("ibv_create_qp", libc::ENOMEM),
        })?;
        qp.to_init(path)?;
        let psn = random_psn().map_err(|_| refused("getrandom", libc::EIO))?;
        let name = RemoteQp { qp_num: qp.number(), psn, gid: path.gid, lid: path.status.lid };
        Ok::<_, DeviceError>((qp, name))
    };
    let ((one, first), (other, second)) = (create()?, create()?);
    let tuning = QpTuning::new(path.status.active_mtu);
    one.to_rtr(path, &second, &tuning)?;
    other.to_rtr(path, &first, &tuning)?;
    one.to_rts(first.psn, &tuning)?;
    other.to_rts(second.psn, &tuning)?;
    Ok([one, other])
}
