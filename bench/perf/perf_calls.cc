// The calls by kind and mode.
//
// Threads: see perf_calls.h.
#include "bench/perf/perf_calls.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace annulus::perf {
namespace {

constexpr std::array kModeNames = {"blocking", "async", "group", "overlap"};
static_assert(kModeNames.size() == kAllModes.size());

annulus_status_t Block(annulus_comm_t* comm, const CallSpec& spec, const CallBuffers& buffers) {
  const auto& [send, recv] = buffers;
  switch (spec.kind) {
    case Kind::kAllreduce:
      return annulus_allreduce(comm, send, recv, spec.count, spec.type, spec.op);
    case Kind::kReduceScatter:
      return annulus_reduce_scatter(comm, send, recv, spec.count, spec.type, spec.op);
    case Kind::kAllgather:
      return annulus_allgather(comm, send, recv, spec.count, spec.type);
    case Kind::kBroadcast:
      return annulus_broadcast(comm, send, recv, spec.count, spec.type, spec.root);
    case Kind::kReduce:
      return annulus_reduce(comm, send, recv, spec.count, spec.type, spec.op, spec.root);
    case Kind::kGather:
      return annulus_gather(comm, send, recv, spec.count, spec.type, spec.root);
    case Kind::kScatter:
      return annulus_scatter(comm, send, recv, spec.count, spec.type, spec.root);
    case Kind::kAlltoall:
      return annulus_alltoall(comm, send, recv, spec.count, spec.type);
    case Kind::kSendrecv:  // Messages are more than one call.
    case Kind::kPingpong:
    case Kind::kBarrier:
      break;
  }
  return annulus_barrier(comm);
}

annulus_status_t BlockWithCounts(annulus_comm_t* comm, const CallSpec& spec, const size_t* counts,
                                 const CallBuffers& buffers) {
  const auto& [send, recv] = buffers;
  switch (spec.kind) {
    case Kind::kReduceScatter:
      return annulus_reduce_scatterv(comm, send, counts, nullptr, recv, spec.count, spec.type, spec.op);
    case Kind::kAllgather:
      return annulus_allgatherv(comm, send, spec.count, recv, counts, nullptr, spec.type);
    case Kind::kGather:
      return annulus_gatherv(comm, send, spec.count, recv, counts, nullptr, spec.type, spec.root);
    case Kind::kScatter:
      return annulus_scatterv(comm, send, counts, nullptr, recv, spec.count, spec.type, spec.root);
    default:
      return annulus_alltoallv(comm, send, counts, nullptr, recv, counts, nullptr, spec.type);
  }
}

annulus_status_t StartCollective(annulus_comm_t* comm, const CallSpec& spec, const CallBuffers& buffers,
                                 annulus_request_t** request) {
  const auto& [send, recv] = buffers;
  switch (spec.kind) {
    case Kind::kAllreduce:
      return annulus_allreduce_async(comm, send, recv, spec.count, spec.type, spec.op, request);
    case Kind::kReduceScatter:
      return annulus_reduce_scatter_async(comm, send, recv, spec.count, spec.type, spec.op, request);
    case Kind::kAllgather:
      return annulus_allgather_async(comm, send, recv, spec.count, spec.type, request);
    case Kind::kBroadcast:
      return annulus_broadcast_async(comm, send, recv, spec.count, spec.type, spec.root, request);
    case Kind::kReduce:
      return annulus_reduce_async(comm, send, recv, spec.count, spec.type, spec.op, spec.root, request);
    case Kind::kGather:
      return annulus_gather_async(comm, send, recv, spec.count, spec.type, spec.root, request);
    case Kind::kScatter:
      return annulus_scatter_async(comm, send, recv, spec.count, spec.type, spec.root, request);
    case Kind::kAlltoall:
      return annulus_alltoall_async(comm, send, recv, spec.count, spec.type, request);
    case Kind::kSendrecv:  // Messages are more than one call.
    case Kind::kPingpong:
    case Kind::kBarrier:
      break;
  }
  return annulus_barrier_async(comm, request);
}

annulus_status_t StartWithCounts(annulus_comm_t* comm, const CallSpec& spec, const size_t* counts,
                                 const CallBuffers& buffers, annulus_request_t** request) {
  const auto& [send, recv] = buffers;
  switch (spec.kind) {
    case Kind::kReduceScatter:
      return annulus_reduce_scatterv_async(comm, send, counts, nullptr, recv, spec.count, spec.type, spec.op, request);
    case Kind::kAllgather:
      return annulus_allgatherv_async(comm, send, spec.count, recv, counts, nullptr, spec.type, request);
    case Kind::kGather:
      return annulus_gatherv_async(comm, send, spec.count, recv, counts, nullptr, spec.type, spec.root, request);
    case Kind::kScatter:
      return annulus_scatterv_async(comm, send, counts, nullptr, recv, spec.count, spec.type, spec.root, request);
    default:
      return annulus_alltoallv_async(comm, send, counts, nullptr, recv, counts, nullptr, spec.type, request);
  }
}

int32_t CallKindWithCounts(Kind kind) {
  switch (kind) {
    case Kind::kReduceScatter:
      return ANNULUS_CALL_REDUCE_SCATTERV;
    case Kind::kAllgather:
      return ANNULUS_CALL_ALLGATHERV;
    case Kind::kGather:
      return ANNULUS_CALL_GATHERV;
    case Kind::kScatter:
      return ANNULUS_CALL_SCATTERV;
    default:
      return ANNULUS_CALL_ALLTOALLV;
  }
}

int32_t CallKind(Kind kind) {
  switch (kind) {
    case Kind::kAllreduce:
      return ANNULUS_CALL_ALLREDUCE;
    case Kind::kReduceScatter:
      return ANNULUS_CALL_REDUCE_SCATTER;
    case Kind::kAllgather:
      return ANNULUS_CALL_ALLGATHER;
    case Kind::kBroadcast:
      return ANNULUS_CALL_BROADCAST;
    case Kind::kReduce:
      return ANNULUS_CALL_REDUCE;
    case Kind::kGather:
      return ANNULUS_CALL_GATHER;
    case Kind::kScatter:
      return ANNULUS_CALL_SCATTER;
    case Kind::kAlltoall:
      return ANNULUS_CALL_ALLTOALL;
    case Kind::kSendrecv:
    case Kind::kPingpong:
    case Kind::kBarrier:
      break;
  }
  return ANNULUS_CALL_BARRIER;
}

annulus_call_t CallOf(const CallSpec& spec, const CallBuffers& buffers, int32_t kind, int root) {
  annulus_call_t call{};
  call.struct_bytes = sizeof call;
  call.kind = kind;
  call.type = spec.type;
  call.op = spec.op;
  call.root = root;
  call.sendbuf = buffers.send;
  call.recvbuf = buffers.recv;
  call.count = spec.count;
  return call;
}

}  // namespace

const char* ModeName(Mode mode) { return kModeNames[static_cast<size_t>(mode)]; }

std::optional<Mode> ParseMode(std::string_view name) {
  const auto found = std::find(kModeNames.begin(), kModeNames.end(), name);
  if (found == kModeNames.end()) return std::nullopt;
  return static_cast<Mode>(found - kModeNames.begin());
}

bool HasMode(Kind kind, Mode mode) {
  return kind != Kind::kPingpong || mode == Mode::kBlocking || mode == Mode::kAsync;
}

CallPass::CallPass(const Group& group, const CallSpec& spec, Mode mode, std::vector<CallBuffers> buffers, Gpu* gpu)
    : group_(group),
      spec_(spec),
      mode_(mode),
      buffers_(std::move(buffers)),
      gpu_(gpu),
      sender_(SenderTo(spec.kind, group.rank(), group.size())),
      receiver_(ReceiverOf(spec.kind, group.rank(), group.size())),
      counts_(spec.has_counts ? static_cast<size_t>(group.size()) : 0, spec.count) {
  if (mode != Mode::kGroup) return;
  for (const CallBuffers& each : buffers_) {
    if (IsMessages(spec.kind)) {
      calls_.push_back(CallOf(spec, each, ANNULUS_CALL_RECV, sender_));
      calls_.push_back(CallOf(spec, each, ANNULUS_CALL_SEND, receiver_));
    } else {
      const int32_t kind = spec.has_counts ? CallKindWithCounts(spec.kind) : CallKind(spec.kind);
      calls_.push_back(CallOf(spec, each, kind, spec.root));
      if (spec.has_counts) calls_.back().sendcounts = calls_.back().recvcounts = counts_.data();
    }
  }
}

Status CallPass::operator()() {
  // A rank that has nobody to exchange messages with.
  if (IsMessages(spec_.kind) && receiver_ == group_.rank()) return CopyAll();
  const annulus_status_t status = MakeAll();
  return status == ANNULUS_OK ? Status() : LastFailure(status);
}

Status CallPass::CopyAll() {
  const size_t bytes = spec_.count * annulus_type_bytes(spec_.type);
  for (const auto& [send, recv] : buffers_) {
    if (gpu_ == nullptr) {
      std::memcpy(recv, send, bytes);
    } else {
      ANNULUS_RETURN_IF_ERROR(gpu_->Copy(recv, send, bytes));
    }
  }
  return Status();
}

annulus_status_t CallPass::MakeAll() {
  requests_.clear();
  annulus_status_t status = ANNULUS_OK;
  if (mode_ == Mode::kGroup) return Finish(Submit());
  for (const CallBuffers& each : buffers_) {
    status = mode_ == Mode::kBlocking ? MakeOne(each) : Start(each);
    if (status != ANNULUS_OK) break;
  }
  computing_.Run();
  return mode_ == Mode::kBlocking ? status : Finish(status);
}

annulus_status_t CallPass::MakeOne(const CallBuffers& buffers) {
  if (spec_.kind == Kind::kPingpong) return Bounce(buffers);
  if (spec_.has_counts) return BlockWithCounts(group_.comm(), spec_, counts_.data(), buffers);
  if (spec_.kind != Kind::kSendrecv) return Block(group_.comm(), spec_, buffers);
  return annulus_sendrecv(group_.comm(), buffers.send, spec_.count, receiver_, buffers.recv, spec_.count, sender_,
                          spec_.type);
}

annulus_status_t CallPass::Bounce(const CallBuffers& buffers) const {
  const bool serves = group_.rank() % 2 == 0;
  annulus_status_t status = ANNULUS_OK;
  for (const bool sends : {serves, !serves}) {
    if (status != ANNULUS_OK) return status;
    status = sends ? annulus_send(group_.comm(), buffers.send, spec_.count, spec_.type, receiver_)
                   : annulus_recv(group_.comm(), buffers.recv, spec_.count, spec_.type, sender_);
  }
  return status;
}

annulus_status_t CallPass::Start(const CallBuffers& buffers) {
  if (IsMessages(spec_.kind)) return StartMessages(buffers);
  annulus_request_t* request = nullptr;
  const annulus_status_t status = spec_.has_counts
                                      ? StartWithCounts(group_.comm(), spec_, counts_.data(), buffers, &request)
                                      : StartCollective(group_.comm(), spec_, buffers, &request);
  if (status == ANNULUS_OK) requests_.push_back(request);
  return status;
}

annulus_status_t CallPass::StartMessages(const CallBuffers& buffers) {
  // The receive first: a message that arrives then lands at once.
  annulus_request_t* request = nullptr;
  annulus_status_t status = annulus_recv_async(group_.comm(), buffers.recv, spec_.count, spec_.type, sender_, &request);
  if (status != ANNULUS_OK) return status;
  requests_.push_back(request);
  // An answer waits for its message.
  const bool answers = spec_.kind == Kind::kPingpong && group_.rank() % 2 != 0;
  if (answers) status = annulus_request_wait(request, -1);
  if (status == ANNULUS_OK) {
    status = annulus_send_async(group_.comm(), buffers.send, spec_.count, spec_.type, receiver_, &request);
  }
  if (status == ANNULUS_OK) requests_.push_back(request);
  return status;
}

annulus_status_t CallPass::Submit() {
  annulus_request_t* request = nullptr;
  const annulus_status_t status = annulus_submit(group_.comm(), calls_.data(), calls_.size(), &request);
  if (status == ANNULUS_OK) requests_.push_back(request);
  return status;
}

annulus_status_t CallPass::Finish(annulus_status_t status) {
  for (annulus_request_t* const request : requests_) {
    // Freeing waits for what has not finished.
    if (status == ANNULUS_OK) status = annulus_request_wait(request, -1);
    const annulus_status_t freed = annulus_request_free(request);
    if (status == ANNULUS_OK) status = freed;
  }
  return status;
}

}  // namespace annulus::perf
