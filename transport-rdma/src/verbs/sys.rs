//! The part of `<infiniband/verbs.h>` that is used, in C's names.
//!
//! Generated once with bindgen from rdma-core 44 and then cut down by hand: libibverbs promises that its structures grow
//! at the end only, and only behind pointers it allocates itself. C enums are plain integers here, because a newer library
//! may return a value this file has no name for. Unions of which one member is used, or none, are arrays of their size. A
//! test compares every size and offset with what the C compiler says.

use std::mem::MaybeUninit;

use libc::{c_char, c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

/// Structures for which all zeroes is a valid value, and what libibverbs expects in fields one does not set.
///
/// # Safety
/// Implement only for `repr(C)` types made of integers, raw pointers, `Option<extern fn>` and arrays and unions of these.
pub(super) unsafe trait Plain: Copy {
    fn zeroed() -> Self {
        let value = MaybeUninit::zeroed();
        // SAFETY: the implementor says that all zeroes is a valid value.
        unsafe { value.assume_init() }
    }
}

macro_rules! plain {
    ($($name:ident)*) => { $(
        // SAFETY: integers, raw pointers, optional function pointers, and arrays and unions of these only.
        unsafe impl Plain for $name {}
    )* };
}

plain! {
    ibv_ah_attr ibv_async_event ibv_device_attr ibv_port_attr ibv_qp_attr ibv_qp_init_attr ibv_recv_wr
    ibv_send_wr ibv_srq_init_attr ibv_wc
}

/// Never looked into: [`super::load::Verbs::ibv_get_device_name`] names it.
#[repr(C)]
pub(super) struct ibv_device {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_device_attr {
    pub(super) fw_ver: [c_char; 64],
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    pub(super) max_ee_rd_atom: c_int,
    pub(super) max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    pub(super) max_ee_init_rd_atom: c_int,
    pub(super) atomic_cap: c_uint,
    pub(super) max_ee: c_int,
    pub(super) max_rdd: c_int,
    pub(super) max_mw: c_int,
    pub(super) max_raw_ipv6_qp: c_int,
    pub(super) max_raw_ethy_qp: c_int,
    pub(super) max_mcast_grp: c_int,
    pub(super) max_mcast_qp_attach: c_int,
    pub(super) max_total_mcast_qp_attach: c_int,
    pub(super) max_ah: c_int,
    pub(super) max_fmr: c_int,
    pub(super) max_map_per_fmr: c_int,
    pub(super) max_srq: c_int,
    pub(super) max_srq_wr: c_int,
    pub(super) max_srq_sge: c_int,
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// The exported `ibv_query_port` writes up to `flags` only; what comes after keeps its old content.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_port_attr {
    pub(super) state: c_uint,
    pub(super) max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    pub(super) port_cap_flags2: u16,
}

/// `port_num` and the pointers overlap; `event_type` says which is meant.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union ibv_async_event_element {
    pub(super) cq: *mut ibv_cq,
    pub(super) qp: *mut ibv_qp,
    pub(super) srq: *mut ibv_srq,
    pub(super) port_num: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_async_event {
    pub(super) element: ibv_async_event_element,
    pub(super) event_type: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_wc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

#[repr(C)]
pub(super) struct ibv_pd {
    pub(super) context: *mut ibv_context,
    pub(super) handle: u32,
}

#[repr(C)]
pub(super) struct ibv_mr {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_global_route {
    pub(super) dgid: [u64; 2],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_ah_attr {
    pub(super) grh: ibv_global_route,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_srq_attr {
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_srq_init_attr {
    pub(super) srq_context: *mut c_void,
    pub(super) attr: ibv_srq_attr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_qp_cap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_qp_init_attr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut ibv_srq,
    pub(super) cap: ibv_qp_cap,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_qp_attr {
    pub(super) qp_state: c_uint,
    pub(super) cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    pub(super) path_mig_state: c_uint,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: ibv_qp_cap,
    pub(super) ah_attr: ibv_ah_attr,
    pub(super) alt_ah_attr: ibv_ah_attr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// C's union `wr`, which has no name there.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union ibv_send_wr_one_sided {
    pub(super) rdma: ibv_send_wr_rdma,
    pub(super) atomic: ibv_send_wr_atomic,
}

/// As READs and WRITEs use the union.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_send_wr_rdma {
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
}

/// As atomic operations use the union.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_send_wr_atomic {
    pub(super) remote_addr: u64,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) rkey: u32,
}

/// C's last union, as a bind uses it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_send_wr_bind_mw {
    pub(super) mw: *mut ibv_mw,
    pub(super) rkey: u32,
    pub(super) bind_info: ibv_mw_bind_info,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_mw_bind_info {
    pub(super) mr: *mut ibv_mr,
    pub(super) addr: u64,
    pub(super) length: u64,
    pub(super) mw_access_flags: c_uint,
}

#[repr(C)]
pub(super) struct ibv_mw {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) rkey: u32,
    pub(super) handle: u32,
    /// C calls it `type`.
    pub(super) kind: c_uint,
}

/// `wr`, `qp_type` and `bind_mw` are unions: for one-sided operations, XRC and memory windows. A SEND uses none.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_send_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    pub(super) invalidate_rkey: u32,
    pub(super) wr: ibv_send_wr_one_sided,
    pub(super) qp_type: u32,
    pub(super) bind_mw: ibv_send_wr_bind_mw,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_recv_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
}

#[repr(C)]
pub(super) struct ibv_srq {
    pub(super) context: *mut ibv_context,
    pub(super) srq_context: *mut c_void,
    pub(super) pd: *mut ibv_pd,
    pub(super) handle: u32,
    pub(super) mutex: pthread_mutex_t,
    pub(super) cond: pthread_cond_t,
    pub(super) events_completed: u32,
}

#[repr(C)]
pub(super) struct ibv_qp {
    pub(super) context: *mut ibv_context,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut ibv_pd,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut ibv_srq,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
    pub(super) state: c_uint,
    pub(super) qp_type: c_uint,
    pub(super) mutex: pthread_mutex_t,
    pub(super) cond: pthread_cond_t,
    pub(super) events_completed: u32,
}

#[repr(C)]
pub(super) struct ibv_comp_channel {
    pub(super) context: *mut ibv_context,
    pub(super) fd: c_int,
    pub(super) refcnt: c_int,
}

#[repr(C)]
pub(super) struct ibv_cq {
    pub(super) context: *mut ibv_context,
    pub(super) channel: *mut ibv_comp_channel,
    pub(super) cq_context: *mut c_void,
    pub(super) handle: u32,
    pub(super) cqe: c_int,
    pub(super) mutex: pthread_mutex_t,
    pub(super) cond: pthread_cond_t,
    pub(super) comp_events_completed: u32,
    pub(super) async_events_completed: u32,
}

/// The function table that the inline functions of the header call through. Entries that are not used are counted, so that
/// the others stand at their offsets.
#[repr(C)]
pub(super) struct ibv_context_ops {
    _query_device_to_dereg_mr: [*mut c_void; 7],
    pub(super) alloc_mw: Option<AllocMw>,
    _bind_mw: *mut c_void,
    pub(super) dealloc_mw: Option<DeallocMw>,
    _create_cq: *mut c_void,
    pub(super) poll_cq: Option<PollCq>,
    pub(super) req_notify_cq: Option<ReqNotifyCq>,
    _cq_event_to_destroy_srq: [*mut c_void; 7],
    pub(super) post_srq_recv: Option<PostSrqRecv>,
    _create_qp_to_destroy_qp: [*mut c_void; 4],
    pub(super) post_send: Option<PostSend>,
    _post_recv_to_async_event: [*mut c_void; 6],
}

#[repr(C)]
pub(super) struct ibv_context {
    pub(super) device: *mut ibv_device,
    pub(super) ops: ibv_context_ops,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
    pub(super) mutex: pthread_mutex_t,
    pub(super) abi_compat: *mut c_void,
}

pub(super) type AllocMw = unsafe extern "C" fn(*mut ibv_pd, c_uint) -> *mut ibv_mw;
pub(super) type DeallocMw = unsafe extern "C" fn(*mut ibv_mw) -> c_int;
pub(super) type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
pub(super) type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
pub(super) type PostSrqRecv =
    unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
pub(super) type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;

pub(super) const IBV_LINK_LAYER_INFINIBAND: u8 = 1;

pub(super) const IBV_EVENT_CQ_ERR: c_uint = 0;
pub(super) const IBV_EVENT_QP_FATAL: c_uint = 1;
pub(super) const IBV_EVENT_QP_REQ_ERR: c_uint = 2;
pub(super) const IBV_EVENT_QP_ACCESS_ERR: c_uint = 3;
pub(super) const IBV_EVENT_DEVICE_FATAL: c_uint = 8;
pub(super) const IBV_EVENT_PORT_ACTIVE: c_uint = 9;
pub(super) const IBV_EVENT_PORT_ERR: c_uint = 10;
pub(super) const IBV_EVENT_LID_CHANGE: c_uint = 11;
pub(super) const IBV_EVENT_PKEY_CHANGE: c_uint = 12;
pub(super) const IBV_EVENT_SM_CHANGE: c_uint = 13;
pub(super) const IBV_EVENT_SRQ_ERR: c_uint = 14;
pub(super) const IBV_EVENT_CLIENT_REREGISTER: c_uint = 17;
pub(super) const IBV_EVENT_GID_CHANGE: c_uint = 18;

pub(super) const IBV_DEVICE_MEM_WINDOW_TYPE_2B: c_uint = 1 << 24;

pub(super) const IBV_MW_TYPE_2: c_uint = 2;

pub(super) const IBV_ATOMIC_NONE: c_uint = 0;

pub(super) const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const IBV_ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const IBV_ACCESS_REMOTE_READ: c_int = 1 << 2;
pub(super) const IBV_ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;
pub(super) const IBV_ACCESS_MW_BIND: c_int = 1 << 4;
/// The first of the flags that a library or kernel may ignore; only `ibv_reg_mr_iova2` takes it.
pub(super) const IBV_ACCESS_RELAXED_ORDERING: c_int = 1 << 20;

pub(super) const IBV_QPT_RC: c_uint = 2;

pub(super) const IBV_QPS_INIT: c_uint = 1;
pub(super) const IBV_QPS_RTR: c_uint = 2;
pub(super) const IBV_QPS_RTS: c_uint = 3;
pub(super) const IBV_QPS_ERR: c_uint = 6;

pub(super) const IBV_QP_STATE: c_int = 1 << 0;
pub(super) const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const IBV_QP_PORT: c_int = 1 << 5;
pub(super) const IBV_QP_AV: c_int = 1 << 7;
pub(super) const IBV_QP_PATH_MTU: c_int = 1 << 8;
pub(super) const IBV_QP_TIMEOUT: c_int = 1 << 9;
pub(super) const IBV_QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const IBV_QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const IBV_QP_RQ_PSN: c_int = 1 << 12;
pub(super) const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const IBV_QP_SQ_PSN: c_int = 1 << 16;
pub(super) const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const IBV_QP_DEST_QPN: c_int = 1 << 20;

pub(super) const IBV_WC_WITH_IMM: c_uint = 1 << 1;
pub(super) const IBV_WC_WITH_INV: c_uint = 1 << 3;

pub(super) const IBV_WR_RDMA_WRITE: c_uint = 0;
pub(super) const IBV_WR_SEND: c_uint = 2;
pub(super) const IBV_WR_RDMA_READ: c_uint = 4;
pub(super) const IBV_WR_ATOMIC_CMP_AND_SWP: c_uint = 5;
pub(super) const IBV_WR_ATOMIC_FETCH_AND_ADD: c_uint = 6;
pub(super) const IBV_WR_LOCAL_INV: c_uint = 7;
pub(super) const IBV_WR_BIND_MW: c_uint = 8;

pub(super) const IBV_SEND_SIGNALED: c_uint = 1 << 1;
pub(super) const IBV_SEND_SOLICITED: c_uint = 1 << 2;
pub(super) const IBV_SEND_INLINE: c_uint = 1 << 3;

#[cfg(test)]
mod tests;
