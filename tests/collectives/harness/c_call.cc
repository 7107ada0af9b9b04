#include "tests/collectives/harness/c_call.h"

namespace annulus {

annulus_status_t RunCall(annulus_comm_t* comm, const Call& call, const void* in, void* out) {
  const auto type = static_cast<annulus_type_t>(call.type);
  const auto op = static_cast<annulus_op_t>(call.op);
  switch (call.kind) {
    case CollectiveKind::kAllreduce:
      return annulus_allreduce(comm, in, out, call.count, type, op);
    case CollectiveKind::kReduceScatter:
      return annulus_reduce_scatter(comm, in, out, call.count, type, op);
    case CollectiveKind::kAllgather:
      return annulus_allgather(comm, in, out, call.count, type);
    case CollectiveKind::kBroadcast:
      return annulus_broadcast(comm, in, out, call.count, type, call.root);
    case CollectiveKind::kReduce:
      return annulus_reduce(comm, in, out, call.count, type, op, call.root);
    default:
      return annulus_barrier(comm);
  }
}

annulus_status_t SubmitCall(annulus_comm_t* comm, const Call& call, const void* in, void* out,
                            annulus_request_t** request) {
  const auto type = static_cast<annulus_type_t>(call.type);
  const auto op = static_cast<annulus_op_t>(call.op);
  switch (call.kind) {
    case CollectiveKind::kAllreduce:
      return annulus_allreduce_async(comm, in, out, call.count, type, op, request);
    case CollectiveKind::kReduceScatter:
      return annulus_reduce_scatter_async(comm, in, out, call.count, type, op, request);
    case CollectiveKind::kAllgather:
      return annulus_allgather_async(comm, in, out, call.count, type, request);
    case CollectiveKind::kBroadcast:
      return annulus_broadcast_async(comm, in, out, call.count, type, call.root, request);
    case CollectiveKind::kReduce:
      return annulus_reduce_async(comm, in, out, call.count, type, op, call.root, request);
    default:
      return annulus_barrier_async(comm, request);
  }
}

annulus_status_t RunPartsCall(annulus_comm_t* comm, const PartsCall& p) {
  const Call& call = p.call;
  const auto type = static_cast<annulus_type_t>(call.type);
  const auto op = static_cast<annulus_op_t>(call.op);
  switch (call.kind) {
    case CollectiveKind::kGather:
      return annulus_gather(comm, p.in, p.out, call.count, type, call.root);
    case CollectiveKind::kScatter:
      return annulus_scatter(comm, p.in, p.out, call.count, type, call.root);
    case CollectiveKind::kAlltoall:
      return annulus_alltoall(comm, p.in, p.out, call.count, type);
    case CollectiveKind::kAllgatherv:
      return annulus_allgatherv(comm, p.in, call.count, p.out, p.recv_counts, p.recv_offsets, type);
    case CollectiveKind::kReduceScatterv:
      return annulus_reduce_scatterv(comm, p.in, p.send_counts, p.send_offsets, p.out, call.count, type, op);
    case CollectiveKind::kGatherv:
      return annulus_gatherv(comm, p.in, call.count, p.out, p.recv_counts, p.recv_offsets, type, call.root);
    case CollectiveKind::kScatterv:
      return annulus_scatterv(comm, p.in, p.send_counts, p.send_offsets, p.out, call.count, type, call.root);
    case CollectiveKind::kAlltoallv:
      return annulus_alltoallv(comm, p.in, p.send_counts, p.send_offsets, p.out, p.recv_counts, p.recv_offsets, type);
    default:
      return ANNULUS_INVALID_ARGUMENT;
  }
}

annulus_status_t SubmitPartsCall(annulus_comm_t* comm, const PartsCall& p, annulus_request_t** request) {
  const Call& call = p.call;
  const auto type = static_cast<annulus_type_t>(call.type);
  const auto op = static_cast<annulus_op_t>(call.op);
  switch (call.kind) {
    case CollectiveKind::kGather:
      return annulus_gather_async(comm, p.in, p.out, call.count, type, call.root, request);
    case CollectiveKind::kScatter:
      return annulus_scatter_async(comm, p.in, p.out, call.count, type, call.root, request);
    case CollectiveKind::kAlltoall:
      return annulus_alltoall_async(comm, p.in, p.out, call.count, type, request);
    case CollectiveKind::kAllgatherv:
      return annulus_allgatherv_async(comm, p.in, call.count, p.out, p.recv_counts, p.recv_offsets, type, request);
    case CollectiveKind::kReduceScatterv:
      return annulus_reduce_scatterv_async(comm, p.in, p.send_counts, p.send_offsets, p.out, call.count, type, op,
                                           request);
    case CollectiveKind::kGatherv:
      return annulus_gatherv_async(comm, p.in, call.count, p.out, p.recv_counts, p.recv_offsets, type, call.root,
                                   request);
    case CollectiveKind::kScatterv:
      return annulus_scatterv_async(comm, p.in, p.send_counts, p.send_offsets, p.out, call.count, type, call.root,
                                    request);
    case CollectiveKind::kAlltoallv:
      return annulus_alltoallv_async(comm, p.in, p.send_counts, p.send_offsets, p.out, p.recv_counts, p.recv_offsets,
                                     type, request);
    default:
      return ANNULUS_INVALID_ARGUMENT;
  }
}

}  // namespace annulus
