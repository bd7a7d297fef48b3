//! Compares this file's structures and constants with the C compiler's, on machines that have the header.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use super::*;
use crate::device::WcStatus;

/// Expressions to ask the C compiler for, and their values in this file.
type Claims = Vec<(String, u64)>;

macro_rules! layout {
    ($claims:ident; $($name:ident { $($field:ident $(= $c:literal)?),* })*) => { $(
        $claims.push((format!("sizeof(struct {})", stringify!($name)), size_of::<$name>() as u64));
        $(
            $claims.push((
                format!("offsetof(struct {}, {})", stringify!($name), layout!(@c $field $($c)?)),
                offset_of!($name, $field) as u64,
            ));
        )*
    )* };
    (@c $field:ident) => { stringify!($field) };
    (@c $field:ident $c:literal) => { $c };
}

macro_rules! constants {
    ($claims:ident; $($name:ident)*) => { $(
        $claims.push((stringify!($name).to_owned(), $name as u64));
    )* };
}

#[rustfmt::skip]
fn claims() -> Claims {
    let mut claims = Claims::new();
    layout! { claims;
        ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
            max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
            max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd,
            max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach,
            max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
            phys_port_cnt
        }
        ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
            pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
            active_speed, phys_state, link_layer, flags, port_cap_flags2
        }
        ibv_async_event { element, event_type }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits
        }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        ibv_srq_init_attr { srq_context, attr }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit
        }
        ibv_sge { addr, length, lkey }
        ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, invalidate_rkey, wr, qp_type, bind_mw
        }
        ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        ibv_mw { context, pd, rkey, handle, kind = "type" }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed
        }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed
        }
        ibv_context_ops {
            _query_device_to_dereg_mr = "_compat_query_device", alloc_mw, _bind_mw = "bind_mw", dealloc_mw,
            _create_cq = "_compat_create_cq", poll_cq, req_notify_cq,
            _cq_event_to_destroy_srq = "_compat_cq_event", post_srq_recv,
            _create_qp_to_destroy_qp = "_compat_create_qp", post_send, _post_recv_to_async_event = "post_recv"
        }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
    }
    for (field, offset) in [
        ("wr.rdma.remote_addr", offset_of!(ibv_send_wr, wr.rdma.remote_addr)),
        ("wr.rdma.rkey", offset_of!(ibv_send_wr, wr.rdma.rkey)),
        ("wr.atomic.remote_addr", offset_of!(ibv_send_wr, wr.atomic.remote_addr)),
        ("wr.atomic.compare_add", offset_of!(ibv_send_wr, wr.atomic.compare_add)),
        ("wr.atomic.swap", offset_of!(ibv_send_wr, wr.atomic.swap)),
        ("wr.atomic.rkey", offset_of!(ibv_send_wr, wr.atomic.rkey)),
        ("bind_mw.mw", offset_of!(ibv_send_wr, bind_mw.mw)),
        ("bind_mw.rkey", offset_of!(ibv_send_wr, bind_mw.rkey)),
        ("bind_mw.bind_info", offset_of!(ibv_send_wr, bind_mw.bind_info)),
    ] {
        claims.push((format!("offsetof(struct ibv_send_wr, {field})"), offset as u64));
    }
    constants! { claims;
        IBV_LINK_LAYER_INFINIBAND
        IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR IBV_EVENT_DEVICE_FATAL
        IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR IBV_EVENT_LID_CHANGE IBV_EVENT_PKEY_CHANGE IBV_EVENT_SM_CHANGE
        IBV_EVENT_SRQ_ERR IBV_EVENT_CLIENT_REREGISTER IBV_EVENT_GID_CHANGE
        IBV_DEVICE_MEM_WINDOW_TYPE_2B IBV_MW_TYPE_2 IBV_ATOMIC_NONE
        IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE IBV_ACCESS_REMOTE_READ IBV_ACCESS_REMOTE_ATOMIC
        IBV_ACCESS_MW_BIND IBV_ACCESS_RELAXED_ORDERING
        IBV_QPT_RC IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QPS_ERR
        IBV_QP_STATE IBV_QP_ACCESS_FLAGS IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_AV IBV_QP_PATH_MTU IBV_QP_TIMEOUT
        IBV_QP_RETRY_CNT IBV_QP_RNR_RETRY IBV_QP_RQ_PSN IBV_QP_MAX_QP_RD_ATOMIC IBV_QP_MIN_RNR_TIMER IBV_QP_SQ_PSN
        IBV_QP_MAX_DEST_RD_ATOMIC IBV_QP_DEST_QPN
        IBV_WC_WITH_IMM IBV_WC_WITH_INV
        IBV_WR_RDMA_WRITE IBV_WR_SEND IBV_WR_RDMA_READ IBV_WR_ATOMIC_CMP_AND_SWP IBV_WR_ATOMIC_FETCH_AND_ADD
        IBV_WR_LOCAL_INV IBV_WR_BIND_MW IBV_SEND_SIGNALED IBV_SEND_SOLICITED IBV_SEND_INLINE
    }
    for (name, status) in [
        ("LOC_LEN_ERR", WcStatus::LOC_LEN_ERR),
        ("LOC_QP_OP_ERR", WcStatus::LOC_QP_OP_ERR),
        ("LOC_PROT_ERR", WcStatus::LOC_PROT_ERR),
        ("WR_FLUSH_ERR", WcStatus::WR_FLUSH_ERR),
        ("REM_ACCESS_ERR", WcStatus::REM_ACCESS_ERR),
        ("REM_OP_ERR", WcStatus::REM_OP_ERR),
        ("RETRY_EXC_ERR", WcStatus::RETRY_EXC_ERR),
        ("RNR_RETRY_EXC_ERR", WcStatus::RNR_RETRY_EXC_ERR),
        ("FATAL_ERR", WcStatus::FATAL_ERR),
    ] {
        claims.push((format!("IBV_WC_{name}"), status.0.into()));
    }
    claims
}

/// The C compiler's answers, or `None` where there is no C compiler or no header.
fn ask_c(claims: &Claims) -> Option<BTreeMap<usize, u64>> {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return None;
    }
    let mut source = String::from("#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\n");
    source.push_str("int main(void) {\n");
    for (i, (expression, _)) in claims.iter().enumerate() {
        writeln!(source, "printf(\"%d %llu\\n\", {i}, (unsigned long long)({expression}));").unwrap();
    }
    source.push_str("return 0; }\n");
    let stem = std::env::temp_dir().join(format!("farcall-layout-{}", std::process::id()));
    let (file, program) = (stem.with_extension("c"), stem.with_extension("bin"));
    std::fs::write(&file, source).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&program).arg(&file).output();
    let answers = compiled.ok().map(|cc| {
        assert!(cc.status.success(), "cc failed: {}", String::from_utf8_lossy(&cc.stderr));
        let run = Command::new(&program).output().unwrap();
        String::from_utf8(run.stdout).unwrap()
    });
    let _ = (std::fs::remove_file(&file), std::fs::remove_file(&program));
    let parse = |line: &str| {
        let (i, value) = line.split_once(' ').unwrap();
        (i.parse().unwrap(), value.parse().unwrap())
    };
    Some(answers?.lines().map(parse).collect())
}

#[test]
fn layout_is_that_of_the_c_header() {
    let claims = claims();
    let Some(answers) = ask_c(&claims) else {
        eprintln!("skipped: needs cc and infiniband/verbs.h (Debian: libibverbs-dev)");
        return;
    };
    assert_eq!(answers.len(), claims.len());
    for (i, (expression, ours)) in claims.iter().enumerate() {
        assert_eq!(answers[&i], *ours, "{expression}");
    }
}
