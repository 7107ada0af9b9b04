#include "bench/perf/limit/perf_raw_verbs.h"

#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace annulus::perf {
namespace {

constexpr uint32_t kMostWrites = 16;    // Under way to one side.
constexpr uint32_t kMostReceives = 64;  // Posted for one side; a writer that is ahead of them waits in its device.
constexpr uint8_t kTimeout = 14;        // 67 ms.
constexpr uint8_t kRetries = 7;
constexpr uint8_t kRetriesForEver = 7;  // Retries of a write that finds no receive.
constexpr uint8_t kNotReadyTimer = 1;   // 10 us.
constexpr size_t kMostGids = 256;

uint64_t IdOf(size_t side, bool receives, size_t bytes) {
  return uint64_t{bytes} << 2 | (receives ? 2 : 0) | static_cast<uint64_t>(side);
}

bool IsMappedIpv4(const ibv_gid& gid) {
  constexpr std::array<uint8_t, 12> kPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kPrefix.begin(), kPrefix.end(), std::begin(gid.raw));
}

}  // namespace

struct RawVerbsApi {
  decltype(&ibv_get_device_list) get_device_list = nullptr;
  decltype(&ibv_free_device_list) free_device_list = nullptr;
  decltype(&ibv_get_device_name) get_device_name = nullptr;
  decltype(&ibv_open_device) open_device = nullptr;
  decltype(&ibv_close_device) close_device = nullptr;
  int (*query_port)(ibv_context*, uint8_t, _compat_ibv_port_attr*) = nullptr;
  decltype(&_ibv_query_gid_table) query_gid_table = nullptr;
  decltype(&ibv_alloc_pd) alloc_pd = nullptr;
  decltype(&ibv_dealloc_pd) dealloc_pd = nullptr;
  ibv_mr* (*reg_mr)(ibv_pd*, void*, size_t, int) = nullptr;
  decltype(&ibv_dereg_mr) dereg_mr = nullptr;
  decltype(&ibv_create_cq) create_cq = nullptr;
  decltype(&ibv_destroy_cq) destroy_cq = nullptr;
  decltype(&ibv_create_qp) create_qp = nullptr;
  decltype(&ibv_modify_qp) modify_qp = nullptr;
  decltype(&ibv_destroy_qp) destroy_qp = nullptr;

  // Null when there is no library, or one that lacks a function.
  static const RawVerbsApi* Get() {
    static const RawVerbsApi api;
    return api.complete_ ? &api : nullptr;
  }

 private:
  RawVerbsApi() {
    void* const library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    complete_ = true;
    const auto find = [&](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
      complete_ = complete_ && *function != nullptr;
    };
    find("ibv_get_device_list", &get_device_list);
    find("ibv_free_device_list", &free_device_list);
    find("ibv_get_device_name", &get_device_name);
    find("ibv_open_device", &open_device);
    find("ibv_close_device", &close_device);
    find("ibv_query_port", &query_port);
    find("_ibv_query_gid_table", &query_gid_table);
    find("ibv_alloc_pd", &alloc_pd);
    find("ibv_dealloc_pd", &dealloc_pd);
    find("ibv_reg_mr", &reg_mr);
    find("ibv_dereg_mr", &dereg_mr);
    find("ibv_create_cq", &create_cq);
    find("ibv_destroy_cq", &destroy_cq);
    find("ibv_create_qp", &create_qp);
    find("ibv_modify_qp", &modify_qp);
    find("ibv_destroy_qp", &destroy_qp);
  }

  bool complete_ = false;
};

Status RawVerbs::Failed(const char* what, int error) const {
  return Status::System(std::string("limit probe: ") + what, error);
}

// The first address that suits: of RoCE v2 one of IPv4 if there is one, else whatever the port has.
bool RawVerbs::FindAddress(ibv_context* context) {
  if (api_->query_port(context, port_number_, reinterpret_cast<_compat_ibv_port_attr*>(&port_)) != 0) return false;
  if (port_.state != IBV_PORT_ACTIVE) return false;
  std::vector<ibv_gid_entry> entries(kMostGids);
  const ssize_t count = api_->query_gid_table(context, entries.data(), entries.size(), 0, sizeof(ibv_gid_entry));
  bool found = false;
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    if (entry.port_num != port_number_ || entry.gid_type == IBV_GID_TYPE_ROCE_V1) continue;
    if (found && !(IsMappedIpv4(entry.gid) && !IsMappedIpv4(gid_))) continue;
    found = true;
    gid_ = entry.gid;
    gid_index_ = static_cast<int>(entry.gid_index);
  }
  return found;
}

Status RawVerbs::UsePort(const std::string& device) {
  int count = 0;
  ibv_device** const list = api_->get_device_list(&count);
  for (int i = 0; list != nullptr && i < count && context_ == nullptr; ++i) {
    if (!device.empty() && device != api_->get_device_name(list[i])) continue;
    ibv_context* const context = api_->open_device(list[i]);
    if (context == nullptr) continue;
    if (FindAddress(context)) {
      context_ = context;
    } else {
      api_->close_device(context);
    }
  }
  if (list != nullptr) api_->free_device_list(list);
  return context_ != nullptr ? Status()
                             : Status(Code::kUnsupported, "limit probe: no port of an RDMA device is active");
}

Status RawVerbs::Open(const std::string& device, const uint8_t* input, uint8_t* output, size_t bytes,
                      std::unique_ptr<RawVerbs>* made) {
  std::unique_ptr<RawVerbs> opened(new RawVerbs());
  RawVerbs& raw = *opened;
  raw.api_ = RawVerbsApi::Get();
  if (raw.api_ == nullptr) return {Code::kUnsupported, "limit probe: there is no libibverbs"};
  ANNULUS_RETURN_IF_ERROR(raw.UsePort(device));
  raw.domain_ = raw.api_->alloc_pd(raw.context_);
  if (raw.domain_ == nullptr) return raw.Failed("a protection domain", errno);
  raw.input_ = raw.api_->reg_mr(raw.domain_, const_cast<uint8_t*>(input), bytes, 0);
  raw.output_ = raw.api_->reg_mr(raw.domain_, output, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (raw.input_ == nullptr || raw.output_ == nullptr) return raw.Failed("registering its memory", errno);
  raw.queue_ = raw.api_->create_cq(raw.context_, 2 * (kMostWrites + kMostReceives), nullptr, nullptr, 0);
  if (raw.queue_ == nullptr) return raw.Failed("a completion queue", errno);
  for (End& end : raw.sides_) ANNULUS_RETURN_IF_ERROR(raw.MakePair(&end));
  *made = std::move(opened);
  return Status();
}

RawVerbs::~RawVerbs() {
  for (const End& end : sides_) {
    if (end.pair != nullptr) api_->destroy_qp(end.pair);
  }
  if (queue_ != nullptr) api_->destroy_cq(queue_);
  for (ibv_mr* const region : {input_, output_}) {
    if (region != nullptr) api_->dereg_mr(region);
  }
  if (domain_ != nullptr) api_->dealloc_pd(domain_);
  if (context_ != nullptr) api_->close_device(context_);
}

Status RawVerbs::MakePair(End* end) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = queue_;
  wanted.cap = {.max_send_wr = kMostWrites,
                .max_recv_wr = kMostReceives,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
  wanted.qp_type = IBV_QPT_RC;
  end->pair = api_->create_qp(domain_, &wanted);
  if (end->pair == nullptr) return Failed("a queue pair", errno);
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_INIT;
  to.port_num = port_number_;
  to.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (const int error = api_->modify_qp(end->pair, &to, mask); error != 0) return Failed("a queue pair", error);
  for (uint32_t i = 0; i < kMostReceives; ++i) ANNULUS_RETURN_IF_ERROR(PostReceive(end));
  return Status();
}

Status RawVerbs::PostReceive(End* end) {
  ibv_recv_wr request{};
  request.wr_id = IdOf(static_cast<size_t>(end - sides_.data()), true, 0);
  ibv_recv_wr* bad = nullptr;
  const int error = ibv_post_recv(end->pair, &request, &bad);
  return error == 0 ? Status() : Failed("posting a receive", error);
}

RawVerbs::Words RawVerbs::WordsOf(Side side) const {
  const auto address = reinterpret_cast<uint64_t>(output_->addr);
  Words words{static_cast<int32_t>(sides_[side].pair->qp_num),
              static_cast<int32_t>(port_.lid),
              static_cast<int32_t>(port_.active_mtu),
              static_cast<int32_t>(output_->rkey),
              static_cast<int32_t>(address),
              static_cast<int32_t>(address >> 32)};
  std::memcpy(&words[6], gid_.raw, sizeof(gid_.raw));
  return words;
}

Status RawVerbs::Connect(Side side, const Words& peer) {
  End& end = sides_[side];
  end.peer_key = static_cast<uint32_t>(peer[3]);
  end.peer_address = static_cast<uint32_t>(peer[4]) | uint64_t{static_cast<uint32_t>(peer[5])} << 32;
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = static_cast<ibv_mtu>(std::min<int32_t>(peer[2], port_.active_mtu));
  to.dest_qp_num = static_cast<uint32_t>(peer[0]);
  to.min_rnr_timer = kNotReadyTimer;
  to.ah_attr.dlid = static_cast<uint16_t>(peer[1]);
  to.ah_attr.port_num = port_number_;
  if (port_.link_layer == IBV_LINK_LAYER_ETHERNET) {
    to.ah_attr.is_global = 1;
    std::memcpy(to.ah_attr.grh.dgid.raw, &peer[6], sizeof(gid_.raw));
    to.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_index_);
    to.ah_attr.grh.hop_limit = 64;
  }
  int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
             IBV_QP_MIN_RNR_TIMER;
  if (const int error = api_->modify_qp(end.pair, &to, mask); error != 0) return Failed("connecting", error);
  to.qp_state = IBV_QPS_RTS;
  to.timeout = kTimeout;
  to.retry_cnt = kRetries;
  to.rnr_retry = kRetriesForEver;
  mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  const int error = api_->modify_qp(end.pair, &to, mask);
  return error == 0 ? Status() : Failed("connecting", error);
}

Status RawVerbs::Write(Side side, size_t at, size_t bytes, bool* begun) {
  End& end = sides_[side];
  *begun = end.under_way < static_cast<int>(kMostWrites);
  if (!*begun) return Status();
  ibv_sge piece{reinterpret_cast<uint64_t>(input_->addr) + at, static_cast<uint32_t>(bytes), input_->lkey};
  ibv_send_wr request{};
  request.wr_id = IdOf(side, false, bytes);
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = end.peer_address + at;
  request.wr.rdma.rkey = end.peer_key;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(end.pair, &request, &bad); error != 0) return Failed("posting a write", error);
  ++end.under_way;
  return Status();
}

Status RawVerbs::Poll() {
  std::array<ibv_wc, 16> done;
  const int count = ibv_poll_cq(queue_, static_cast<int>(done.size()), done.data());
  if (count < 0) return Failed("polling", EIO);
  for (const ibv_wc& each : std::span(done).first(static_cast<size_t>(count))) {
    if (each.status != IBV_WC_SUCCESS) {
      return {Code::kPeerLost, "limit probe: a write failed with status " + std::to_string(each.status)};
    }
    End& end = sides_[each.wr_id & 1];
    if ((each.wr_id & 2) != 0) {
      end.moved.received += each.byte_len;
      ANNULUS_RETURN_IF_ERROR(PostReceive(&end));
    } else {
      end.moved.sent += each.wr_id >> 2;
      --end.under_way;
    }
  }
  return Status();
}

}  // namespace annulus::perf
