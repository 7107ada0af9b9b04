// The C API: collectives by name, blocking and asynchronous. Each function fills in its arguments; Communicator does
// the rest.

#include "collectives/annulus.h"
#include "collectives/api/c_api.h"
#include "collectives/api/c_calls.h"

namespace {

using annulus::CallArguments;
using annulus::CollectiveKind;
using annulus::Layout;
using annulus::Status;
using annulus::c_api::Guarded;
using annulus::c_api::Reject;
using annulus::c_api::SetOp;
using annulus::c_api::TypeOf;

CallArguments Make(CollectiveKind kind, const void* sendbuf, void* recvbuf, size_t count, annulus_type_t type) {
  CallArguments arguments;
  arguments.kind = kind;
  arguments.sendbuf = sendbuf;
  arguments.recvbuf = recvbuf;
  arguments.count = count;
  arguments.type = TypeOf(type);
  return arguments;
}

CallArguments WithOp(CallArguments arguments, annulus_op_t op) {
  SetOp(op, &arguments);
  return arguments;
}

CallArguments WithRoot(CallArguments arguments, int root) {
  arguments.root = root;
  return arguments;
}

CallArguments WithLayouts(CallArguments arguments, const Layout& send, const Layout& recv) {
  arguments.send_layout = send;
  arguments.recv_layout = recv;
  return arguments;
}

annulus_status_t RejectSubmission(annulus_comm_t* comm, const CallArguments& arguments) {
  if (comm == nullptr) return Reject("comm is null");
  return Guarded([&] {
    const Status status = Status::Invalid("request is null");
    return annulus::c_api::Refuse(comm, status, {&arguments, 1}, arguments, false);
  });
}

// Inlined, so that each function knows its kind.
[[gnu::always_inline]] inline annulus_status_t Submit(annulus_comm_t* comm, const CallArguments& arguments,
                                                      annulus_request_t** request) {
  if (request != nullptr) *request = nullptr;
  if (comm == nullptr || request == nullptr) return RejectSubmission(comm, arguments);
  return annulus::c_api::Submit(comm, {&arguments, 1}, request);
}

[[gnu::always_inline]] inline annulus_status_t Run(annulus_comm_t* comm, const CallArguments& arguments) {
  return annulus::c_api::Run(comm, arguments);
}

}  // namespace

annulus_status_t annulus_allreduce(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                   annulus_type_t type, annulus_op_t op) {
  return Run(comm, WithOp(Make(CollectiveKind::kAllreduce, sendbuf, recvbuf, count, type), op));
}

annulus_status_t annulus_reduce_scatter(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t recvcount,
                                        annulus_type_t type, annulus_op_t op) {
  return Run(comm, WithOp(Make(CollectiveKind::kReduceScatter, sendbuf, recvbuf, recvcount, type), op));
}

annulus_status_t annulus_allgather(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t sendcount,
                                   annulus_type_t type) {
  return Run(comm, Make(CollectiveKind::kAllgather, sendbuf, recvbuf, sendcount, type));
}

annulus_status_t annulus_broadcast(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                   annulus_type_t type, int root) {
  return Run(comm, WithRoot(Make(CollectiveKind::kBroadcast, sendbuf, recvbuf, count, type), root));
}

annulus_status_t annulus_reduce(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                annulus_type_t type, annulus_op_t op, int root) {
  return Run(comm, WithRoot(WithOp(Make(CollectiveKind::kReduce, sendbuf, recvbuf, count, type), op), root));
}

annulus_status_t annulus_barrier(annulus_comm_t* comm) {
  return Run(comm, Make(CollectiveKind::kBarrier, nullptr, nullptr, 0, ANNULUS_INT32));
}

annulus_status_t annulus_gather(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                annulus_type_t type, int root) {
  return Run(comm, WithRoot(Make(CollectiveKind::kGather, sendbuf, recvbuf, count, type), root));
}

annulus_status_t annulus_scatter(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                 annulus_type_t type, int root) {
  return Run(comm, WithRoot(Make(CollectiveKind::kScatter, sendbuf, recvbuf, count, type), root));
}

annulus_status_t annulus_alltoall(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                  annulus_type_t type) {
  return Run(comm, Make(CollectiveKind::kAlltoall, sendbuf, recvbuf, count, type));
}

annulus_status_t annulus_allgatherv(annulus_comm_t* comm, const void* sendbuf, size_t sendcount, void* recvbuf,
                                    const size_t* recvcounts, const size_t* recvoffsets, annulus_type_t type) {
  return Run(comm, WithLayouts(Make(CollectiveKind::kAllgatherv, sendbuf, recvbuf, sendcount, type), {},
                               {recvcounts, recvoffsets}));
}

annulus_status_t annulus_reduce_scatterv(annulus_comm_t* comm, const void* sendbuf, const size_t* sendcounts,
                                         const size_t* sendoffsets, void* recvbuf, size_t recvcount,
                                         annulus_type_t type, annulus_op_t op) {
  return Run(comm, WithLayouts(WithOp(Make(CollectiveKind::kReduceScatterv, sendbuf, recvbuf, recvcount, type), op),
                               {sendcounts, sendoffsets}, {}));
}

annulus_status_t annulus_gatherv(annulus_comm_t* comm, const void* sendbuf, size_t sendcount, void* recvbuf,
                                 const size_t* recvcounts, const size_t* recvoffsets, annulus_type_t type, int root) {
  return Run(comm, WithLayouts(WithRoot(Make(CollectiveKind::kGatherv, sendbuf, recvbuf, sendcount, type), root), {},
                               {recvcounts, recvoffsets}));
}

annulus_status_t annulus_scatterv(annulus_comm_t* comm, const void* sendbuf, const size_t* sendcounts,
                                  const size_t* sendoffsets, void* recvbuf, size_t recvcount, annulus_type_t type,
                                  int root) {
  return Run(comm, WithLayouts(WithRoot(Make(CollectiveKind::kScatterv, sendbuf, recvbuf, recvcount, type), root),
                               {sendcounts, sendoffsets}, {}));
}

annulus_status_t annulus_alltoallv(annulus_comm_t* comm, const void* sendbuf, const size_t* sendcounts,
                                   const size_t* sendoffsets, void* recvbuf, const size_t* recvcounts,
                                   const size_t* recvoffsets, annulus_type_t type) {
  return Run(comm, WithLayouts(Make(CollectiveKind::kAlltoallv, sendbuf, recvbuf, 0, type), {sendcounts, sendoffsets},
                               {recvcounts, recvoffsets}));
}

annulus_status_t annulus_allreduce_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                         annulus_type_t type, annulus_op_t op, annulus_request_t** request) {
  return Submit(comm, WithOp(Make(CollectiveKind::kAllreduce, sendbuf, recvbuf, count, type), op), request);
}

annulus_status_t annulus_reduce_scatter_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf,
                                              size_t recvcount, annulus_type_t type, annulus_op_t op,
                                              annulus_request_t** request) {
  return Submit(comm, WithOp(Make(CollectiveKind::kReduceScatter, sendbuf, recvbuf, recvcount, type), op), request);
}

annulus_status_t annulus_allgather_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t sendcount,
                                         annulus_type_t type, annulus_request_t** request) {
  return Submit(comm, Make(CollectiveKind::kAllgather, sendbuf, recvbuf, sendcount, type), request);
}

annulus_status_t annulus_broadcast_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                         annulus_type_t type, int root, annulus_request_t** request) {
  return Submit(comm, WithRoot(Make(CollectiveKind::kBroadcast, sendbuf, recvbuf, count, type), root), request);
}

annulus_status_t annulus_reduce_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                      annulus_type_t type, annulus_op_t op, int root, annulus_request_t** request) {
  return Submit(comm, WithRoot(WithOp(Make(CollectiveKind::kReduce, sendbuf, recvbuf, count, type), op), root),
                request);
}

annulus_status_t annulus_barrier_async(annulus_comm_t* comm, annulus_request_t** request) {
  return Submit(comm, Make(CollectiveKind::kBarrier, nullptr, nullptr, 0, ANNULUS_INT32), request);
}

annulus_status_t annulus_gather_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                      annulus_type_t type, int root, annulus_request_t** request) {
  return Submit(comm, WithRoot(Make(CollectiveKind::kGather, sendbuf, recvbuf, count, type), root), request);
}

annulus_status_t annulus_scatter_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                       annulus_type_t type, int root, annulus_request_t** request) {
  return Submit(comm, WithRoot(Make(CollectiveKind::kScatter, sendbuf, recvbuf, count, type), root), request);
}

annulus_status_t annulus_alltoall_async(annulus_comm_t* comm, const void* sendbuf, void* recvbuf, size_t count,
                                        annulus_type_t type, annulus_request_t** request) {
  return Submit(comm, Make(CollectiveKind::kAlltoall, sendbuf, recvbuf, count, type), request);
}

annulus_status_t annulus_allgatherv_async(annulus_comm_t* comm, const void* sendbuf, size_t sendcount, void* recvbuf,
                                          const size_t* recvcounts, const size_t* recvoffsets, annulus_type_t type,
                                          annulus_request_t** request) {
  return Submit(
      comm,
      WithLayouts(Make(CollectiveKind::kAllgatherv, sendbuf, recvbuf, sendcount, type), {}, {recvcounts, recvoffsets}),
      request);
}

annulus_status_t annulus_reduce_scatterv_async(annulus_comm_t* comm, const void* sendbuf, const size_t* sendcounts,
                                               const size_t* sendoffsets, void* recvbuf, size_t recvcount,
                                               annulus_type_t type, annulus_op_t op, annulus_request_t** request) {
  return Submit(comm,
                WithLayouts(WithOp(Make(CollectiveKind::kReduceScatterv, sendbuf, recvbuf, recvcount, type), op),
                            {sendcounts, sendoffsets}, {}),
                request);
}

annulus_status_t annulus_gatherv_async(annulus_comm_t* comm, const void* sendbuf, size_t sendcount, void* recvbuf,
                                       const size_t* recvcounts, const size_t* recvoffsets, annulus_type_t type,
                                       int root, annulus_request_t** request) {
  return Submit(comm,
                WithLayouts(WithRoot(Make(CollectiveKind::kGatherv, sendbuf, recvbuf, sendcount, type), root), {},
                            {recvcounts, recvoffsets}),
                request);
}

annulus_status_t annulus_scatterv_async(annulus_comm_t* comm, const void* sendbuf, const size_t* sendcounts,
                                        const size_t* sendoffsets, void* recvbuf, size_t recvcount, annulus_type_t type,
                                        int root, annulus_request_t** request) {
  return Submit(comm,
                WithLayouts(WithRoot(Make(CollectiveKind::kScatterv, sendbuf, recvbuf, recvcount, type), root),
                            {sendcounts, sendoffsets}, {}),
                request);
}

annulus_status_t annulus_alltoallv_async(annulus_comm_t* comm, const void* sendbuf, const size_t* sendcounts,
                                         const size_t* sendoffsets, void* recvbuf, const size_t* recvcounts,
                                         const size_t* recvoffsets, annulus_type_t type, annulus_request_t** request) {
  return Submit(comm,
                WithLayouts(Make(CollectiveKind::kAlltoallv, sendbuf, recvbuf, 0, type), {sendcounts, sendoffsets},
                            {recvcounts, recvoffsets}),
                request);
}

annulus_status_t annulus_send(annulus_comm_t* comm, const void* sendbuf, size_t count, annulus_type_t type, int peer) {
  return Run(comm, WithRoot(Make(CollectiveKind::kSend, sendbuf, nullptr, count, type), peer));
}

annulus_status_t annulus_send_async(annulus_comm_t* comm, const void* sendbuf, size_t count, annulus_type_t type,
                                    int peer, annulus_request_t** request) {
  return Submit(comm, WithRoot(Make(CollectiveKind::kSend, sendbuf, nullptr, count, type), peer), request);
}

annulus_status_t annulus_recv(annulus_comm_t* comm, void* recvbuf, size_t count, annulus_type_t type, int peer) {
  return Run(comm, WithRoot(Make(CollectiveKind::kRecv, nullptr, recvbuf, count, type), peer));
}

annulus_status_t annulus_sendrecv(annulus_comm_t* comm, const void* sendbuf, size_t sendcount, int dest, void* recvbuf,
                                  size_t recvcount, int source, annulus_type_t type) {
  return annulus::c_api::Exchange(comm, WithRoot(Make(CollectiveKind::kSend, sendbuf, nullptr, sendcount, type), dest),
                                  WithRoot(Make(CollectiveKind::kRecv, nullptr, recvbuf, recvcount, type), source));
}

annulus_status_t annulus_recv_async(annulus_comm_t* comm, void* recvbuf, size_t count, annulus_type_t type, int peer,
                                    annulus_request_t** request) {
  return Submit(comm, WithRoot(Make(CollectiveKind::kRecv, nullptr, recvbuf, count, type), peer), request);
}
