//! Structures and constants of libibverbs, as far as this crate uses them.
//!
//! They are written here because the library is opened at run time (ADR 0014). Each has the C name and the C layout: a test compares
//! sizes, offsets and values with `tests/abi.c`, and a C compiler compares that file with the library's header
//! (`tests/rdma/run abi`). Structures that the library allocates end after the last field that is read here.
#![allow(non_camel_case_types, reason = "the names of the C library")]
#![allow(dead_code, reason = "fields that only the library and its drivers read or write")]
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

pub(crate) const IBV_FORK_DISABLED: u32 = 0;

pub(crate) const IBV_EVENT_DEVICE_FATAL: u32 = 8;
pub(crate) const IBV_EVENT_PORT_ACTIVE: u32 = 9;
pub(crate) const IBV_EVENT_PORT_ERR: u32 = 10;
pub(crate) const IBV_EVENT_LID_CHANGE: u32 = 11;
pub(crate) const IBV_EVENT_PKEY_CHANGE: u32 = 12;
pub(crate) const IBV_EVENT_SM_CHANGE: u32 = 13;
pub(crate) const IBV_EVENT_CLIENT_REREGISTER: u32 = 17;
pub(crate) const IBV_EVENT_GID_CHANGE: u32 = 18;

pub(crate) const IBV_PORT_DOWN: u32 = 1;
pub(crate) const IBV_PORT_INIT: u32 = 2;
pub(crate) const IBV_PORT_ARMED: u32 = 3;
pub(crate) const IBV_PORT_ACTIVE: u32 = 4;

pub(crate) const IBV_LINK_LAYER_ETHERNET: u8 = 2;

pub(crate) const IBV_ACCESS_LOCAL_WRITE: u32 = 1;
pub(crate) const IBV_ACCESS_REMOTE_WRITE: u32 = 1 << 1;
pub(crate) const IBV_ACCESS_REMOTE_READ: u32 = 1 << 2;

pub(crate) const IBV_QPT_RC: u32 = 2;

pub(crate) const IBV_QPS_INIT: u32 = 1;
pub(crate) const IBV_QPS_RTR: u32 = 2;
pub(crate) const IBV_QPS_RTS: u32 = 3;

pub(crate) const IBV_QP_STATE: u32 = 1;
pub(crate) const IBV_QP_ACCESS_FLAGS: u32 = 1 << 3;
pub(crate) const IBV_QP_PKEY_INDEX: u32 = 1 << 4;
pub(crate) const IBV_QP_PORT: u32 = 1 << 5;
pub(crate) const IBV_QP_AV: u32 = 1 << 7;
pub(crate) const IBV_QP_PATH_MTU: u32 = 1 << 8;
pub(crate) const IBV_QP_TIMEOUT: u32 = 1 << 9;
pub(crate) const IBV_QP_RETRY_CNT: u32 = 1 << 10;
pub(crate) const IBV_QP_RNR_RETRY: u32 = 1 << 11;
pub(crate) const IBV_QP_RQ_PSN: u32 = 1 << 12;
pub(crate) const IBV_QP_MAX_QP_RD_ATOMIC: u32 = 1 << 13;
pub(crate) const IBV_QP_MIN_RNR_TIMER: u32 = 1 << 15;
pub(crate) const IBV_QP_SQ_PSN: u32 = 1 << 16;
pub(crate) const IBV_QP_MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
pub(crate) const IBV_QP_DEST_QPN: u32 = 1 << 20;

pub(crate) const IBV_WR_RDMA_WRITE: u32 = 0;
pub(crate) const IBV_WR_RDMA_WRITE_WITH_IMM: u32 = 1;
pub(crate) const IBV_WR_RDMA_READ: u32 = 4;

pub(crate) const IBV_SEND_SIGNALED: u32 = 1 << 1;

pub(crate) const IBV_WC_SUCCESS: u32 = 0;
pub(crate) const IBV_WC_WR_FLUSH_ERR: u32 = 5;
pub(crate) const IBV_WC_REM_ACCESS_ERR: u32 = 10;
pub(crate) const IBV_WC_RETRY_EXC_ERR: u32 = 12;

/// Set in the operation of each completion of a message.
pub(crate) const IBV_WC_RECV: u32 = 1 << 7;
pub(crate) const IBV_WC_WITH_IMM: u32 = 1 << 1;

/// A device of the list.
#[repr(C)]
pub(crate) struct ibv_device([u8; 0]);
/// A protection domain.
#[repr(C)]
pub(crate) struct ibv_pd([u8; 0]);
/// A completion queue.
#[repr(C)]
pub(crate) struct ibv_cq([u8; 0]);

/// An open device, up to the last field that is read here.
#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
}

/// The driver's functions for the data path. The library exports none for these; its header calls them through the context.
#[repr(C)]
pub(crate) struct ibv_context_ops {
    pub(crate) before_poll_cq: [*const c_void; 11],
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub(crate) before_post_send: [*const c_void; 12],
    pub(crate) post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub(crate) post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub(crate) after_post_recv: [*const c_void; 5],
}

/// A completion channel, up to the last field that is read here.
#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
}

/// A registration.
#[repr(C)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// A queue pair, up to the last field that is read here.
#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
}

/// Limits of a device.
#[repr(C)]
pub(crate) struct ibv_device_attr {
    pub(crate) fw_ver: [u8; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: u32,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) before_max_pkeys: [c_int; 16],
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// State of a port, up to the last field that the library's function writes: the header's structure has grown since.
#[repr(C)]
pub(crate) struct ibv_port_attr {
    pub(crate) state: u32,
    pub(crate) max_mtu: u32,
    pub(crate) active_mtu: u32,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
}

/// An address of a port.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct ibv_gid {
    pub(crate) raw: [u8; 16],
}

/// An address of a port, with its place and kind.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_gid_entry {
    pub(crate) gid: ibv_gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

/// An event of a device.
#[repr(C)]
pub(crate) struct ibv_async_event {
    pub(crate) element: *mut c_void,
    pub(crate) event_type: u32,
}

/// Sizes of a queue pair.
#[repr(C)]
pub(crate) struct ibv_qp_cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// A queue pair to be made.
#[repr(C)]
pub(crate) struct ibv_qp_init_attr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut c_void,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: c_int,
}

/// Part of the way to a peer that routed packets carry.
#[repr(C)]
pub(crate) struct ibv_global_route {
    pub(crate) dgid: ibv_gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// The way to a peer.
#[repr(C)]
pub(crate) struct ibv_ah_attr {
    pub(crate) grh: ibv_global_route,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// State of a queue pair.
#[repr(C)]
pub(crate) struct ibv_qp_attr {
    pub(crate) qp_state: u32,
    pub(crate) cur_qp_state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) path_mig_state: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// A piece of local memory.
#[repr(C)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// A request. The C structure has unions: of those, `wr` has its longest member's length, and `rest` the others.
#[repr(C)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_send_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: u32,
    pub(crate) send_flags: u32,
    pub(crate) imm_data: u32,
    pub(crate) wr: ibv_send_wr_union,
    pub(crate) rest: [u64; 7],
}

/// Fields of a request that depend on its operation.
#[repr(C)]
pub(crate) struct ibv_send_wr_union {
    pub(crate) rdma: ibv_send_wr_rdma,
    pub(crate) rest: [u64; 2],
}

/// The peer's memory in a one-sided request.
#[repr(C)]
pub(crate) struct ibv_send_wr_rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// Room for a message.
#[repr(C)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_recv_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

/// A completion.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

macro_rules! zeros_by_default {
    ($($name:ident)*) => {$(
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: all fields are numbers and raw pointers, which may be zero.
                unsafe { std::mem::zeroed() }
            }
        }
    )*};
}

zeros_by_default! {
    ibv_device_attr ibv_port_attr ibv_gid_entry ibv_async_event ibv_qp_init_attr ibv_qp_attr ibv_send_wr ibv_recv_wr ibv_wc
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Each line gives the layout or value that Rust uses, for a C compiler to compare with the header.
    macro_rules! lines {
        ($($name:ident)*) => {
            [$(format!("_Static_assert({} == {}, \"\");\n", stringify!($name), $name)),*].concat()
        };
        (sizeof: $($name:ident)*) => {
            [$(format!("_Static_assert(sizeof(struct {0}) == {1}, \"\");\n", stringify!($name), size_of::<$name>())),*]
                .concat()
        };
        ($name:ident: $($($field:ident).+),*) => {
            [$(format!(
                "_Static_assert(offsetof(struct {}, {}) == {}, \"\");\n",
                stringify!($name),
                stringify!($($field).+),
                offset_of!($name, $($field).+)
            )),*]
            .concat()
        };
    }

    #[test]
    fn sizes_offsets_and_values_are_those_that_a_c_compiler_compares_with_the_header() {
        let written = [
            "#include <stddef.h>\n\n#include <infiniband/verbs.h>\n\n".to_owned(),
            // Structures that this crate allocates, so their whole size must match.
            lines!(sizeof: ibv_device_attr ibv_gid_entry ibv_async_event ibv_qp_cap ibv_qp_init_attr ibv_qp_attr),
            lines!(sizeof: ibv_sge ibv_send_wr ibv_recv_wr ibv_wc),
            // These structures are longer in the library or, like that of ports, may grow.
            lines!(ibv_context: device, ops, cmd_fd, async_fd, num_comp_vectors),
            lines!(ibv_context_ops: poll_cq, req_notify_cq, post_send, post_recv),
            lines!(ibv_comp_channel: context, fd),
            lines!(ibv_mr: context, pd, addr, length, handle, lkey, rkey),
            lines!(ibv_qp: context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num),
            lines!(ibv_device_attr: fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id),
            lines!(ibv_device_attr: hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr),
            lines!(ibv_device_attr: max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_pkeys),
            lines!(ibv_device_attr: local_ca_ack_delay, phys_port_cnt),
            lines!(ibv_port_attr: state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr),
            lines!(ibv_port_attr: qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout),
            lines!(ibv_port_attr: init_type_reply, active_width, active_speed, phys_state, link_layer, flags),
            lines!(ibv_gid_entry: gid.raw, gid_index, port_num, gid_type, ndev_ifindex),
            lines!(ibv_async_event: element, event_type),
            lines!(ibv_qp_cap: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data),
            lines!(ibv_qp_init_attr: qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all),
            lines!(ibv_qp_attr: qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num),
            lines!(ibv_qp_attr: qp_access_flags, cap, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify),
            lines!(ibv_qp_attr: sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt),
            lines!(ibv_qp_attr: rnr_retry, alt_port_num, alt_timeout, rate_limit),
            lines!(ibv_qp_attr: ah_attr.grh.dgid.raw, ah_attr.grh.flow_label, ah_attr.grh.sgid_index, ah_attr.grh.hop_limit),
            lines!(ibv_qp_attr: ah_attr.grh.traffic_class, ah_attr.dlid, ah_attr.sl, ah_attr.src_path_bits),
            lines!(ibv_qp_attr: ah_attr.static_rate, ah_attr.is_global, ah_attr.port_num),
            lines!(ibv_sge: addr, length, lkey),
            lines!(ibv_send_wr: wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr.rdma.remote_addr, wr.rdma.rkey),
            lines!(ibv_recv_wr: wr_id, next, sg_list, num_sge),
            lines!(ibv_wc: wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index),
            lines!(ibv_wc: slid, sl, dlid_path_bits),
            lines!(IBV_FORK_DISABLED IBV_EVENT_DEVICE_FATAL IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR IBV_EVENT_LID_CHANGE),
            lines!(IBV_EVENT_PKEY_CHANGE IBV_EVENT_SM_CHANGE IBV_EVENT_CLIENT_REREGISTER IBV_EVENT_GID_CHANGE),
            lines!(IBV_PORT_DOWN IBV_PORT_INIT IBV_PORT_ARMED IBV_PORT_ACTIVE IBV_LINK_LAYER_ETHERNET),
            lines!(IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE IBV_ACCESS_REMOTE_READ),
            lines!(IBV_QPT_RC IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QP_STATE IBV_QP_ACCESS_FLAGS IBV_QP_PKEY_INDEX),
            lines!(IBV_QP_PORT IBV_QP_AV IBV_QP_PATH_MTU IBV_QP_TIMEOUT IBV_QP_RETRY_CNT IBV_QP_RNR_RETRY IBV_QP_RQ_PSN),
            lines!(IBV_QP_MAX_QP_RD_ATOMIC IBV_QP_MIN_RNR_TIMER IBV_QP_SQ_PSN IBV_QP_MAX_DEST_RD_ATOMIC IBV_QP_DEST_QPN),
            lines!(IBV_WR_RDMA_WRITE IBV_WR_RDMA_WRITE_WITH_IMM IBV_WR_RDMA_READ IBV_SEND_SIGNALED IBV_WC_SUCCESS),
            lines!(IBV_WC_WR_FLUSH_ERR IBV_WC_REM_ACCESS_ERR IBV_WC_RETRY_EXC_ERR IBV_WC_RECV IBV_WC_WITH_IMM),
        ]
        .concat();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/abi.c");
        if std::env::var_os("MC_BLESS").is_some() {
            std::fs::write(path, &written).unwrap();
        }
        assert!(
            std::fs::read_to_string(path).unwrap() == written,
            "to write tests/abi.c: MC_BLESS=1 cargo test -p mc-verbs abi"
        );
    }
}
