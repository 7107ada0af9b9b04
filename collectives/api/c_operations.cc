// The C API: user-defined operations.

#include "collectives/annulus.h"
#include "collectives/api/c_api.h"

namespace {

using annulus::Operations;
using annulus::Status;
using annulus::c_api::Guarded;
using annulus::c_api::Outcome;
using annulus::c_api::Reject;
using annulus::c_api::Unwrap;

// Creates an operation of `comm` with `create`, and returns its number to the caller.
template <class Create>
annulus_status_t Make(annulus_comm_t* comm, annulus_op_t* op, Create create) {
  if (comm == nullptr) return Reject("comm is null");
  return Guarded([&] {
    int number = 0;
    const Status status = Unwrap(comm)->ChangeOperations([&](Operations* operations) {
      return op != nullptr ? create(operations, &number) : Status::Invalid("op is null");
    });
    if (status.ok()) *op = static_cast<annulus_op_t>(number);
    return Outcome(Unwrap(comm), status);
  });
}

}  // namespace

annulus_status_t annulus_op_create_premul_sum(annulus_comm_t* comm, double factor, annulus_op_t* op) {
  return Make(comm, op,
              [&](Operations* operations, int* number) { return operations->CreatePremulSum(factor, number); });
}

annulus_status_t annulus_op_create(annulus_comm_t* comm, annulus_reduce_fn fn, void* context,
                                   void (*release)(void* context), annulus_op_t* op) {
  return Make(comm, op,
              [&](Operations* operations, int* number) { return operations->Create(fn, context, release, number); });
}

annulus_status_t annulus_op_destroy(annulus_comm_t* comm, annulus_op_t op) {
  if (comm == nullptr) return Reject("comm is null");
  return Guarded([&] {
    return Outcome(Unwrap(comm),
                   Unwrap(comm)->ChangeOperations([&](Operations* operations) { return operations->Destroy(op); }));
  });
}
