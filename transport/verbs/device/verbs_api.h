// VerbsApi: the functions of libibverbs that links use, found when the program runs, so that one build of the library
// serves machines with and without it.
//
// Posting and polling are no functions of the library but of a device's driver; verbs.h calls them through the device's
// context. So a stand-in for the library fills this table, and the operations of the contexts that it opens.
//
// Threads: constant once it is loaded.
#pragma once

#include <infiniband/verbs.h>

#include <string>

namespace annulus {

struct VerbsApi {
  decltype(&ibv_get_device_list) get_device_list;
  decltype(&ibv_free_device_list) free_device_list;
  decltype(&ibv_get_device_name) get_device_name;
  decltype(&ibv_open_device) open_device;
  decltype(&ibv_close_device) close_device;
  decltype(&ibv_query_device) query_device;
  int (*query_port)(ibv_context*, uint8_t, _compat_ibv_port_attr*);
  decltype(&_ibv_query_gid_table) query_gid_table;
  decltype(&ibv_query_pkey) query_pkey;
  decltype(&ibv_get_async_event) get_async_event;
  decltype(&ibv_ack_async_event) ack_async_event;
  decltype(&ibv_alloc_pd) alloc_pd;
  decltype(&ibv_dealloc_pd) dealloc_pd;
  ibv_mr* (*reg_mr)(ibv_pd*, void*, size_t, int);
  decltype(&ibv_dereg_mr) dereg_mr;
  decltype(&ibv_create_comp_channel) create_comp_channel;
  decltype(&ibv_destroy_comp_channel) destroy_comp_channel;
  decltype(&ibv_create_cq) create_cq;
  decltype(&ibv_destroy_cq) destroy_cq;
  decltype(&ibv_get_cq_event) get_cq_event;
  decltype(&ibv_ack_cq_events) ack_cq_events;
  decltype(&ibv_create_qp) create_qp;
  decltype(&ibv_modify_qp) modify_qp;
  decltype(&ibv_destroy_qp) destroy_qp;
  // Null where the library lacks them.
  decltype(&ibv_reg_dmabuf_mr) reg_dmabuf_mr = nullptr;  // Since rdma-core 34.
  decltype(&ibv_fork_init) fork_init = nullptr;
  decltype(&ibv_is_fork_initialized) is_fork_initialized = nullptr;  // Since rdma-core 35.
};

// The machine's library, opened by the first call and never closed; null when there is none, and *why says so.
const VerbsApi* LoadVerbs(std::string* why);

// "transport retry counter exceeded", in the words of this library.
const char* VerbsStatusText(ibv_wc_status status);

}  // namespace annulus
