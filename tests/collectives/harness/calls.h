// Calls: a list of calls as data, made in short form and submitted together. And the latest failures, in words.
//
// Threads: Calls one at a time; the functions from any.
#pragma once

#include <annulus.h>

#include <string>
#include <vector>

namespace annulus {

// The message of this thread's latest failed call.
inline std::string LastMessage() {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  return annulus_last_error(&error) == ANNULUS_OK ? error.message : "no last error";
}

class Calls {
 public:
  // Adds a call; what the short forms do not take is set in back().
  annulus_call_t& Add(annulus_kind_t kind, const void* sendbuf, void* recvbuf, size_t count, annulus_type_t type) {
    annulus_call_t call{};
    call.struct_bytes = sizeof call;
    call.kind = kind;
    call.sendbuf = sendbuf;
    call.recvbuf = recvbuf;
    call.count = count;
    call.type = type;
    return calls_.emplace_back(call);
  }
  annulus_call_t& Allreduce(const void* sendbuf, void* recvbuf, size_t count, annulus_type_t type, annulus_op_t op) {
    annulus_call_t& call = Add(ANNULUS_CALL_ALLREDUCE, sendbuf, recvbuf, count, type);
    call.op = op;
    return call;
  }
  annulus_call_t& Rooted(annulus_kind_t kind, const void* sendbuf, void* recvbuf, size_t count, annulus_type_t type,
                         int root) {
    annulus_call_t& call = Add(kind, sendbuf, recvbuf, count, type);
    call.root = root;
    return call;
  }

  const annulus_call_t& front() const { return calls_.front(); }
  annulus_call_t& back() { return calls_.back(); }
  size_t size() const { return calls_.size(); }

  annulus_status_t Submit(annulus_comm_t* comm, annulus_request_t** request) const {
    return annulus_submit(comm, calls_.data(), calls_.size(), request);
  }
  // Submits them, waits, and returns the outcome.
  annulus_status_t Do(annulus_comm_t* comm) const {
    annulus_request_t* request = nullptr;
    annulus_status_t status = Submit(comm, &request);
    if (status == ANNULUS_OK) status = annulus_request_wait(request, -1);
    annulus_request_free(request);
    return status;
  }

 private:
  std::vector<annulus_call_t> calls_;
};

}  // namespace annulus
