// Messages of MPI from one rank to another. A receive's count must be that of its message, where MPI allows more.
//
// Threads: any; messages of several threads to one peer need an order of their own.

#include <annulus.h>

#include <climits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frameworks/mpi/abi.h"
#include "frameworks/mpi/elements.h"
#include "frameworks/mpi/error.h"
#include "frameworks/mpi/job.h"

namespace annulus_mpi {
namespace {

struct Ends {
  int peer;
  int tag;
};

annulus_call_t Message(annulus_kind_t kind, void* buffer, size_t bytes, Ends ends,
                       annulus_received_t* received = nullptr) {
  annulus_call_t call{};
  call.struct_bytes = sizeof call;
  call.kind = kind;
  call.type = ANNULUS_UINT8;
  call.count = bytes;
  call.root = ends.peer;
  call.tag = ends.tag;
  call.received = received;
  if (received != nullptr) *received = {sizeof *received, kPROC_NULL, kANY_TAG, 0};
  if (kind == ANNULUS_CALL_SEND) {
    call.sendbuf = buffer;
  } else {
    call.recvbuf = buffer;
  }
  call.label = "MPI";
  return call;
}

static_assert(kANY_SOURCE == ANNULUS_ANY_PEER && kANY_TAG == ANNULUS_ANY_TAG);

// `least`: of ranks and tags; -1 where any may be asked for.
void RequireEnds(Ends ends, int least, const Communicator& communicator) {
  Require(ends.peer == kPROC_NULL || (ends.peer >= least && ends.peer < communicator.size()), kERR_RANK,
          "rank is " + std::to_string(ends.peer) + "; allowed: 0 to " + std::to_string(communicator.size() - 1));
  Require(ends.tag >= least, kERR_TAG,
          "tag is " + std::to_string(ends.tag) + "; allowed: " + std::to_string(least) + " or more");
}
void RequireReceiver(Ends ends, const Communicator& communicator) { RequireEnds(ends, 0, communicator); }
void RequireSender(Ends ends, const Communicator& communicator) { RequireEnds(ends, -1, communicator); }

std::shared_ptr<Communicator> Living(Handle comm) {
  std::shared_ptr<Communicator> communicator = Job::Own().CommunicatorOf(comm);
  communicator->RequireUsable();
  return communicator;
}

// As MPI wants it where nothing was received.
constexpr annulus_received_t kNothing = {sizeof kNothing, kPROC_NULL, kANY_TAG, 0};

void Fill(Status* status, const annulus_received_t& received) {
  if (status != nullptr) *status = {received.count, {}, received.source, received.tag, kSUCCESS};
}

// Makes the calls at once and waits.
void Run(const Communicator& communicator, const std::vector<annulus_call_t>& calls) {
  const Communicator::Use use(communicator);
  if (calls.empty()) return;
  if (calls.size() == 1) return communicator.Check(annulus_run(use.get(), calls.data()));
  annulus_request_t* request = nullptr;
  communicator.Check(annulus_submit(use.get(), calls.data(), calls.size(), &request));
  const annulus_status_t status = annulus_request_wait(request, -1);
  const auto free = [](annulus_request_t* done) { annulus_request_free(done); };
  const std::unique_ptr<annulus_request_t, decltype(free)> owner(request, free);
  communicator.Check(status);
}

Handle Start(std::shared_ptr<Communicator> communicator, annulus_kind_t kind, void* buffer, size_t bytes, Ends ends) {
  if (ends.peer == kPROC_NULL) return kREQUEST_NULL;
  Request made;
  if (kind == ANNULUS_CALL_RECV) made.received = std::make_shared<annulus_received_t>();
  {
    const Communicator::Use use(*communicator);
    const annulus_call_t call = Message(kind, buffer, bytes, ends, made.received.get());
    communicator->Check(annulus_submit(use.get(), &call, 1, &made.request));
  }
  made.communicator = std::move(communicator);
  try {
    return Job::Own().Add(made);
  } catch (const std::bad_alloc&) {
    annulus_request_free(made.request);  // Waits for it: the library uses the buffer.
    throw;
  }
}

// Waits, or looks once. Returns whether it is done; then the request is gone.
bool Finish(Handle* handle, int64_t timeout_ms, Status* status) {
  Require(handle != nullptr, kERR_REQUEST, "the request is NULL");
  if (*handle == kREQUEST_NULL) {
    Fill(status, kNothing);
    return true;
  }
  const Request request = Job::Own().RequestOf(*handle);
  const auto forget = [&] {
    Job::Own().Forget(*handle);
    *handle = kREQUEST_NULL;
  };
  std::optional<Communicator::Use> use;
  try {
    use.emplace(*request.communicator);
  } catch (const Error&) {  // It leaves meanwhile, with its requests.
    forget();
    throw;
  }
  const annulus_status_t outcome = annulus_request_wait(request.request, timeout_ms);
  if (outcome == ANNULUS_IN_PROGRESS) return false;
  forget();
  const auto free = [](annulus_request_t* done) { annulus_request_free(done); };
  const std::unique_ptr<annulus_request_t, decltype(free)> owner(request.request, free);
  request.communicator->Check(outcome);
  Fill(status, request.received != nullptr ? *request.received : kNothing);
  return true;
}

}  // namespace

ANNULUS_MPI_EXPORT int MPIABI_Send(const void* buffer, int count, Handle datatype, int dest, int tag, Handle comm) {
  return Guarded("MPI_Send", [&] {
    const std::shared_ptr<Communicator> communicator = Living(comm);
    RequireReceiver({dest, tag}, *communicator);
    const size_t bytes = BytesOf(count, datatype);
    if (dest == kPROC_NULL) return;
    Run(*communicator, {Message(ANNULUS_CALL_SEND, const_cast<void*>(buffer), bytes, {dest, tag})});
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Recv(void* buffer, int count, Handle datatype, int source, int tag, Handle comm,
                                   Status* status) {
  return Guarded("MPI_Recv", [&] {
    const std::shared_ptr<Communicator> communicator = Living(comm);
    RequireSender({source, tag}, *communicator);
    const size_t bytes = BytesOf(count, datatype);
    annulus_received_t received = kNothing;
    if (source != kPROC_NULL) Run(*communicator, {Message(ANNULUS_CALL_RECV, buffer, bytes, {source, tag}, &received)});
    Fill(status, received);
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Sendrecv(const void* send, int sendcount, Handle sendtype, int dest, int sendtag,
                                       void* recv, int recvcount, Handle recvtype, int source, int recvtag, Handle comm,
                                       Status* status) {
  return Guarded("MPI_Sendrecv", [&] {
    const std::shared_ptr<Communicator> communicator = Living(comm);
    RequireReceiver({dest, sendtag}, *communicator);
    RequireSender({source, recvtag}, *communicator);
    const size_t sent = BytesOf(sendcount, sendtype);
    const size_t bytes = BytesOf(recvcount, recvtype);
    annulus_received_t received = kNothing;
    std::vector<annulus_call_t> calls;
    if (source != kPROC_NULL) calls.push_back(Message(ANNULUS_CALL_RECV, recv, bytes, {source, recvtag}, &received));
    if (dest != kPROC_NULL) calls.push_back(Message(ANNULUS_CALL_SEND, const_cast<void*>(send), sent, {dest, sendtag}));
    Run(*communicator, calls);
    Fill(status, received);
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Isend(const void* buffer, int count, Handle datatype, int dest, int tag, Handle comm,
                                    Handle* request) {
  return Guarded("MPI_Isend", [&] {
    const std::shared_ptr<Communicator> communicator = Living(comm);
    RequireReceiver({dest, tag}, *communicator);
    const size_t bytes = BytesOf(count, datatype);
    *request = Start(communicator, ANNULUS_CALL_SEND, const_cast<void*>(buffer), bytes, {dest, tag});
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Irecv(void* buffer, int count, Handle datatype, int source, int tag, Handle comm,
                                    Handle* request) {
  return Guarded("MPI_Irecv", [&] {
    const std::shared_ptr<Communicator> communicator = Living(comm);
    RequireSender({source, tag}, *communicator);
    const size_t bytes = BytesOf(count, datatype);
    *request = Start(communicator, ANNULUS_CALL_RECV, buffer, bytes, {source, tag});
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Wait(Handle* request, Status* status) {
  return Guarded("MPI_Wait", [&] { Finish(request, -1, status); });
}

ANNULUS_MPI_EXPORT int MPIABI_Waitall(int count, Handle* requests, Status* statuses) {
  return Guarded("MPI_Waitall", [&] {
    Require(count >= 0, kERR_COUNT, "the count is " + std::to_string(count));
    // All are waited for, also after a failure, so that no buffer is in use afterwards. The first failure is told.
    std::optional<Error> first;
    for (int i = 0; i < count; ++i) {
      Status* const status = statuses == nullptr ? nullptr : &statuses[i];
      try {
        Finish(&requests[i], -1, status);
      } catch (const Error& error) {
        if (status != nullptr) status->error = error.error_class();
        if (!first.has_value()) first.emplace(error);
      }
    }
    if (first.has_value()) throw Error(*first);
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Test(Handle* request, int* flag, Status* status) {
  return Guarded("MPI_Test", [&] { *flag = Finish(request, 0, status) ? 1 : 0; });
}

ANNULUS_MPI_EXPORT int MPIABI_Request_free(Handle* request) {
  return Guarded("MPI_Request_free", [&] { Finish(request, -1, nullptr); });
}

ANNULUS_MPI_EXPORT int MPIABI_Get_count(const Status* status, Handle datatype, int* count) {
  return Guarded("MPI_Get_count", [&] {
    const size_t element = annulus_type_bytes(TypeOf(datatype));
    const size_t elements = status->bytes / element;
    const bool is_count = status->bytes % element == 0 && elements <= INT_MAX;
    *count = static_cast<int>(is_count ? static_cast<intptr_t>(elements) : kUNDEFINED);
  });
}

}  // namespace annulus_mpi
