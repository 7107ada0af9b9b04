#include "transport/verbs/device/verbs_api.h"

#include <dlfcn.h>

namespace annulus {
namespace {

constexpr char kLibrary[] = "libibverbs.so.1";

struct Loaded {
  VerbsApi api{};
  std::string why;  // "" when all was found.
};

// Old programs' versions of these functions have the same names, so the version is named.
template <class Function>
void Find(void* library, const char* name, const char* version, Function* function, std::string* why) {
  *function = reinterpret_cast<Function>(dlvsym(library, name, version));
  if (*function == nullptr && why->empty())
    *why = std::string(kLibrary) + " has no " + name + " of " + version + ": rdma-core 32 or newer is needed";
}

Loaded Load() {
  Loaded loaded;
  std::string& why = loaded.why;
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const error = dlerror();
    why = std::string("no ") + kLibrary + " (" + (error != nullptr ? error : "unknown error") +
          "): install libibverbs1 and ibverbs-providers";
    return loaded;
  }
  constexpr char kOld[] = "IBVERBS_1.0";
  constexpr char kUsual[] = "IBVERBS_1.1";
  constexpr char kGidTable[] = "IBVERBS_1.11";
  constexpr char kDmaBuf[] = "IBVERBS_1.12";
  constexpr char kForkStatus[] = "IBVERBS_1.13";
  VerbsApi& api = loaded.api;
  Find(library, "ibv_get_device_list", kUsual, &api.get_device_list, &why);
  Find(library, "ibv_free_device_list", kUsual, &api.free_device_list, &why);
  Find(library, "ibv_get_device_name", kUsual, &api.get_device_name, &why);
  Find(library, "ibv_open_device", kUsual, &api.open_device, &why);
  Find(library, "ibv_close_device", kUsual, &api.close_device, &why);
  Find(library, "ibv_query_device", kUsual, &api.query_device, &why);
  Find(library, "ibv_query_port", kUsual, &api.query_port, &why);
  Find(library, "_ibv_query_gid_table", kGidTable, &api.query_gid_table, &why);
  Find(library, "ibv_query_pkey", kUsual, &api.query_pkey, &why);
  Find(library, "ibv_get_async_event", kUsual, &api.get_async_event, &why);
  Find(library, "ibv_ack_async_event", kUsual, &api.ack_async_event, &why);
  Find(library, "ibv_alloc_pd", kUsual, &api.alloc_pd, &why);
  Find(library, "ibv_dealloc_pd", kUsual, &api.dealloc_pd, &why);
  Find(library, "ibv_reg_mr", kUsual, &api.reg_mr, &why);
  Find(library, "ibv_dereg_mr", kUsual, &api.dereg_mr, &why);
  std::string ignored;
  Find(library, "ibv_reg_dmabuf_mr", kDmaBuf, &api.reg_dmabuf_mr, &ignored);
  Find(library, "ibv_create_comp_channel", kOld, &api.create_comp_channel, &why);
  Find(library, "ibv_destroy_comp_channel", kOld, &api.destroy_comp_channel, &why);
  Find(library, "ibv_create_cq", kUsual, &api.create_cq, &why);
  Find(library, "ibv_destroy_cq", kUsual, &api.destroy_cq, &why);
  Find(library, "ibv_get_cq_event", kUsual, &api.get_cq_event, &why);
  Find(library, "ibv_ack_cq_events", kUsual, &api.ack_cq_events, &why);
  Find(library, "ibv_create_qp", kUsual, &api.create_qp, &why);
  Find(library, "ibv_modify_qp", kUsual, &api.modify_qp, &why);
  Find(library, "ibv_destroy_qp", kUsual, &api.destroy_qp, &why);
  std::string no_matter;
  Find(library, "ibv_fork_init", kUsual, &api.fork_init, &no_matter);
  Find(library, "ibv_is_fork_initialized", kForkStatus, &api.is_fork_initialized, &no_matter);
  return loaded;
}

}  // namespace

const VerbsApi* LoadVerbs(std::string* why) {
  static const Loaded loaded = Load();
  *why = loaded.why;
  return loaded.why.empty() ? &loaded.api : nullptr;
}

const char* VerbsStatusText(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_LOC_LEN_ERR:
      return "a message did not fit its buffer";
    case IBV_WC_LOC_QP_OP_ERR:
      return "the device could not carry out a request";
    case IBV_WC_LOC_PROT_ERR:
      return "a request named memory that is not registered";
    case IBV_WC_WR_FLUSH_ERR:
      return "the queue pair had already failed";
    case IBV_WC_REM_INV_REQ_ERR:
      return "the peer's device refused an invalid request";
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer's device refused access to its memory";
    case IBV_WC_REM_OP_ERR:
      return "the peer's device could not carry out a request";
    case IBV_WC_RETRY_EXC_ERR:
      return "the peer's device did not answer, transport retries exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer had no receive posted, receiver-not-ready retries "
             "exceeded";
    case IBV_WC_FATAL_ERR:
      return "the device failed";
    default:
      return "an error that verbs does not specify further";
  }
}

}  // namespace annulus
