#include "tests/collectives/c_call.h"

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

}  // namespace annulus
