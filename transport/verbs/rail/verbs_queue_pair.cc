#include "transport/verbs/rail/verbs_queue_pair.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "transport/verbs/device/verbs_route.h"

namespace annulus {
namespace {

// Payloads that are asked for, the largest first; devices refuse what they cannot.
constexpr uint32_t kInlineBytes[] = {kVerbsCellBytes, 128, kVerbsHeaderBytes, 0};

// Time that a sender pauses for a receiver that is not ready, 0.64 ms, and how often. Credits see to it that a receive
// is always posted; what remains are pauses of the device itself.
constexpr uint8_t kNotReadyTimer = 12;
constexpr uint8_t kNotReadyRetries = 6;

// Pieces that a request gathers: a header, and data that lies elsewhere.
constexpr uint32_t kPieces = 2;

constexpr uint32_t kKeepalives = 1;

}  // namespace

Status VerbsQueuePair::Refused(const char* what, int error) const {
  const Status refused = Status::System(std::string("verbs: ") + what + " on " + hub_->device().Describe(), error);
  return {refused.code(), refused.message() + hub_->AdviceOn(error), Status::kNoRank, error};
}

uint8_t VerbsQueuePair::MostReads() const {
  return static_cast<uint8_t>(path_.reads ? std::clamp<int>(hub_->device().most_reads(), 0, kMostVerbsReads) : 0);
}

uint8_t VerbsQueuePair::MostAnswers() const {
  return static_cast<uint8_t>(path_.reads ? std::clamp<int>(hub_->device().most_answers(), 0, kMostVerbsReads) : 0);
}

Status VerbsQueuePair::Create() {
  int error = 0;
  for (const uint32_t inline_bytes : kInlineBytes) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = hub_->queue();
    wanted.cap = {.max_send_wr = depth_ + MostReads() + kKeepalives,
                  .max_recv_wr = depth_,
                  .max_send_sge = kPieces,
                  .max_recv_sge = 1,
                  .max_inline_data = inline_bytes};
    wanted.qp_type = IBV_QPT_RC;
    pair_ = hub_->api().create_qp(hub_->domain(), &wanted);
    if (pair_ != nullptr) {
      inline_bytes_ = wanted.cap.max_inline_data;
      break;
    }
    error = errno;
  }
  if (pair_ == nullptr) return Refused("a queue pair", error);
  uint32_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != static_cast<ssize_t>(sizeof(random))) {
    return Status::System("getrandom", errno);
  }
  first_packet_ = random & 0xffffff;
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_INIT;
  to.pkey_index = path_.pkey_index;
  to.port_num = hub_->device().port();
  to.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (MostAnswers() > 0 ? IBV_ACCESS_REMOTE_READ : 0);
  error = hub_->api().modify_qp(pair_, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return error == 0 ? Status() : Refused("setting up a queue pair", error);
}

void VerbsQueuePair::Greet(VerbsRailGreeting* greeting) const {
  const VerbsDevice& device = hub_->device();
  greeting->queue_pair = pair_->qp_num;
  greeting->first_packet = first_packet_;
  greeting->lid = device.lid();
  greeting->ethernet = device.ethernet();
  greeting->mtu = static_cast<uint8_t>(device.mtu());
  greeting->pkey = device.pkey();
  greeting->gid = device.gid();
  greeting->reads = MostReads();
  greeting->answers = MostAnswers();
}

Status VerbsQueuePair::Connect(const VerbsRailGreeting& peer) {
  reads_ = std::min(MostReads(), peer.answers);
  answers_ = std::min(MostAnswers(), peer.reads);
  ANNULUS_RETURN_IF_ERROR(ToReceive(peer));
  return ToSend();
}

Status VerbsQueuePair::ToReceive(const VerbsRailGreeting& peer) {
  const VerbsDevice& device = hub_->device();
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = std::min(device.mtu(), static_cast<ibv_mtu>(peer.mtu));
  to.dest_qp_num = peer.queue_pair;
  to.rq_psn = peer.first_packet;
  to.min_rnr_timer = kNotReadyTimer;
  to.max_dest_rd_atomic = static_cast<uint8_t>(answers_);
  ANNULUS_RETURN_IF_ERROR(RouteTo(device, {peer.ethernet, peer.lid, peer.pkey, peer.gid}, &to.ah_attr));
  to.ah_attr.sl = path_.service_level;
  if (to.ah_attr.is_global != 0) to.ah_attr.grh.traffic_class = path_.traffic_class;
  const int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  const int error = hub_->api().modify_qp(pair_, &to, mask);
  return error == 0 ? Status() : Refused("connecting a queue pair", error);
}

Status VerbsQueuePair::ToSend() {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RTS;
  to.sq_psn = first_packet_;
  to.timeout = path_.timeout;
  to.retry_cnt = path_.retries;
  to.rnr_retry = kNotReadyRetries;
  to.max_rd_atomic = static_cast<uint8_t>(reads_);
  const int mask =
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  const int error = hub_->api().modify_qp(pair_, &to, mask);
  return error == 0 ? Status() : Refused("connecting a queue pair", error);
}

void VerbsQueuePair::MakeReceive(uint32_t cell, std::byte* data, uint32_t key, Receive* receive) const {
  *receive = {};
  receive->piece = {reinterpret_cast<uint64_t>(data), kVerbsCellBytes, key};
  receive->request.wr_id = VerbsHub::IdOf(number_, VerbsRequest::kReceive, cell);
  receive->request.sg_list = &receive->piece;
  receive->request.num_sge = 1;
}

void VerbsQueuePair::MakeRead(uint32_t value, const VerbsPlace& from, std::byte* to, uint32_t bytes, uint32_t key,
                              Read* read) const {
  *read = {};
  read->piece = {reinterpret_cast<uint64_t>(to), bytes, key};
  ibv_send_wr& request = read->request;
  request.wr_id = VerbsHub::IdOf(number_, VerbsRequest::kRead, value);
  request.sg_list = &read->piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = from.address;
  request.wr.rdma.rkey = from.key;
}

int VerbsQueuePair::PostReceives(ibv_recv_wr* first, ibv_recv_wr** bad) { return ibv_post_recv(pair_, first, bad); }

int VerbsQueuePair::PostSends(ibv_send_wr* first, ibv_send_wr** bad) { return ibv_post_send(pair_, first, bad); }

int VerbsQueuePair::PostKeepalive(uint64_t remote_address, uint32_t remote_key) {
  ibv_send_wr request{};
  request.wr_id = VerbsHub::IdOf(number_, VerbsRequest::kKeepalive, 0);
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = remote_address;
  request.wr.rdma.rkey = remote_key;
  ibv_send_wr* bad = nullptr;
  return PostSends(&request, &bad);
}

bool VerbsQueuePair::Fail() {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_ERR;
  return pair_ != nullptr && hub_->api().modify_qp(pair_, &to, IBV_QP_STATE) == 0;
}

int VerbsQueuePair::Destroy() {
  if (pair_ == nullptr) return 0;
  const int error = hub_->api().destroy_qp(pair_);
  // EIO: the device is gone, and the kernel has released what it had; see ibv_open_device(3).
  if (error != 0 && error != EIO) return error;
  pair_ = nullptr;
  return 0;
}

}  // namespace annulus
