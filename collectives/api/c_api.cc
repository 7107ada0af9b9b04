// The C API: library, communicators and requests. c_collectives.cc has the collectives.

#include "collectives/api/c_api.h"

#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>

#include "base/log.h"
#include "base/version.h"
#include "collectives/annulus.h"
#include "collectives/api/config.h"
#include "collectives/api/last_error.h"
#include "collectives/api/process_state.h"
#include "collectives/api/structs.h"
#include "collectives/comm/communicator.h"
#include "collectives/comm/introduction.h"
#include "collectives/comm/split.h"
#include "collectives/core/options.h"
#include "cuda_kernels/reduce_types.h"

namespace {

using annulus::Code;
using annulus::Communicator;
using annulus::DataType;
using annulus::ReduceOp;
using annulus::RequestHandle;
using annulus::RequestTable;
using annulus::SetLogLevel;
using annulus::Status;
using annulus::c_api::FillStruct;
using annulus::c_api::Guarded;
using annulus::c_api::OfProcess;
using annulus::c_api::Outcome;
using annulus::c_api::Reject;
using annulus::c_api::ToC;
using annulus::c_api::Unwrap;

static_assert(annulus::kLibraryVersion ==
              annulus::LibraryVersion{ANNULUS_VERSION_MAJOR, ANNULUS_VERSION_MINOR, ANNULUS_VERSION_PATCH});
static_assert(static_cast<int>(Code::kInProgress) == ANNULUS_IN_PROGRESS);
static_assert(static_cast<int>(Code::kInvalidArgument) == ANNULUS_INVALID_ARGUMENT);
static_assert(static_cast<int>(Code::kMismatch) == ANNULUS_MISMATCH);
static_assert(static_cast<int>(Code::kTimeout) == ANNULUS_TIMEOUT);
static_assert(static_cast<int>(Code::kPeerLost) == ANNULUS_PEER_LOST);
static_assert(static_cast<int>(Code::kProtocol) == ANNULUS_PROTOCOL_ERROR);
static_assert(static_cast<int>(Code::kAuth) == ANNULUS_AUTH_FAILED);
static_assert(static_cast<int>(Code::kAborted) == ANNULUS_ABORTED);
static_assert(static_cast<int>(Code::kSystem) == ANNULUS_SYSTEM_ERROR);
static_assert(static_cast<int>(Code::kOutOfMemory) == ANNULUS_OUT_OF_MEMORY);
static_assert(static_cast<int>(Code::kUnsupported) == ANNULUS_UNSUPPORTED);
static_assert(static_cast<int>(Code::kInternal) == ANNULUS_INTERNAL);
#define ANNULUS_ELEMENT_TYPE(Name, name, NAME, number, ...) static_assert(number == ANNULUS_##NAME);
#define ANNULUS_DERIVED_TYPE ANNULUS_ELEMENT_TYPE
#include "cuda_kernels/reduce_types.inc"
#undef ANNULUS_ELEMENT_TYPE
static_assert(static_cast<int>(ReduceOp::kAvg) == ANNULUS_AVG);
static_assert(static_cast<int>(ReduceOp::kBxor) == ANNULUS_BXOR);

annulus_status_t GetInt(const annulus_comm_t* comm, int* out, int (Communicator::*getter)() const) {
  if (comm == nullptr || out == nullptr) return Reject(comm == nullptr ? "comm is null" : "the output is null");
  *out = (Unwrap(comm)->*getter)();
  return ANNULUS_OK;
}

// What of the user's text travels to all ranks, so that all have the same: up to the last whole character of UTF-8.
constexpr size_t kMostReasonBytes = 900;
std::string Cut(const char* text) {
  size_t bytes = strnlen(text, kMostReasonBytes + 1);
  if (bytes > kMostReasonBytes) {
    bytes = kMostReasonBytes;
    while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  }
  return {text, bytes};
}

// Outcome of `call` on the communicator that owns this request.
template <class Call>
annulus_status_t WithOwner(annulus_request_t* request, Call call) {
  const RequestTable& table = OfProcess().requests;
  Communicator* const owner = table.OwnerOf(Unwrap(request));
  annulus::FailedCall failed;
  if (owner == nullptr) return Reject(table.WhyNot(Unwrap(request)));
  const Status status = call(owner, &failed);
  return Outcome(owner, status, failed.kind, failed.label.c_str());
}

// Where the communicator has ended, so has the split, but perhaps by the loss of another rank than the verdict names:
// the one of this colour.
annulus_status_t SplitFailure(Communicator* comm, const Status& status) {
  const annulus::Verdict* const verdict = comm->verdict();
  if (status.message().empty()) return Outcome(comm, status);
  if (verdict == nullptr) {
    // What other ranks have done meanwhile is not known, so there is no advice.
    annulus::c_api::RecordRefusal(status, comm->rank(), "", "", "");
    return ToC(status.code());
  }
  annulus::Verdict own = *verdict;
  own.code = status.code();
  own.rank = status.peer();
  own.os_errno = status.os_errno();
  own.message = status.message();
  annulus::c_api::RecordVerdict(own, "");
  return ToC(own.code);
}

}  // namespace

annulus_status_t annulus::c_api::Reject(const Status& status) noexcept {
  try {
    RecordRefusal(status, Status::kNoRank, "", "", AdviceWithout(status.code()));
  } catch (...) {
    RecordWithoutWords(status.code());
  }
  return ToC(status.code());
}

annulus_status_t annulus::c_api::Reject(const char* message) noexcept {
  try {
    return Reject(Status::Invalid(message));
  } catch (...) {
    RecordWithoutWords(Code::kInvalidArgument);
    return ANNULUS_INVALID_ARGUMENT;
  }
}

annulus_status_t annulus::c_api::RejectException() noexcept {
  try {
    try {
      std::rethrow_exception(std::current_exception());
    } catch (const std::bad_alloc&) {
      return Reject({Code::kOutOfMemory, "no memory"});
    } catch (const std::system_error& error) {
      return Reject({Code::kSystem, error.what(), Status::kNoRank, error.code().value()});
    } catch (const std::exception& error) {
      return Reject({Code::kInternal, error.what()});
    }
  } catch (...) {
    RecordWithoutWords(Code::kOutOfMemory);
    return ANNULUS_OUT_OF_MEMORY;
  }
}

annulus_status_t annulus::c_api::Fail(Communicator* comm, const Status& status, CollectiveKind kind,
                                      const char* label) {
  if (status.code() == Code::kInProgress) return ANNULUS_IN_PROGRESS;
  const bool has_ended = status.message().empty();
  try {
    const Verdict* const verdict = has_ended ? comm->verdict() : nullptr;
    if (verdict != nullptr) {
      RecordVerdict(*verdict, label);
    } else {
      // What ranks do not agree on may be the fault of none in particular.
      const int refuser = status.code() == Code::kMismatch ? Status::kNoRank : comm->rank();
      RecordRefusal(status, refuser, KindName(kind), label, AdviceFor(status.code()));
    }
  } catch (const std::bad_alloc&) {
    RecordWithoutWords(status.code(), has_ended ? ANNULUS_SCOPE_COMMUNICATOR : ANNULUS_SCOPE_CALL);
  }
  return ToC(status.code());
}

#define ANNULUS_TEXT_(x) #x
#define ANNULUS_TEXT(x) ANNULUS_TEXT_(x)

const char* annulus_version(void) {
  return ANNULUS_TEXT(ANNULUS_VERSION_MAJOR) "." ANNULUS_TEXT(ANNULUS_VERSION_MINOR) "." ANNULUS_TEXT(
      ANNULUS_VERSION_PATCH);
}

const char* annulus_status_string(annulus_status_t status) { return annulus::CodeName(static_cast<Code>(status)); }

annulus_status_t annulus_last_error(annulus_error_t* error) {
  if (error == nullptr) return ANNULUS_INVALID_ARGUMENT;
  // A failure of this call is not recorded: it would take the place of what the caller asks for.
  try {
    return ToC(FillStruct(annulus::c_api::LastError(), "annulus_error_t", error).code());
  } catch (...) {
    return ANNULUS_INVALID_ARGUMENT;  // Only the words for that need memory.
  }
}

size_t annulus_type_bytes(annulus_type_t type) {
  const int number = static_cast<int>(type);
  return number < 0 || number >= annulus::kNumDataTypes ? 0 : annulus::TypeBytes(static_cast<DataType>(number));
}

annulus_status_t annulus_config_init(annulus_config_t* config, size_t struct_bytes, uint32_t sources) {
  if (config == nullptr) return Reject("config is null");
  return Guarded([&] { return Outcome(annulus::InitConfig(config, struct_bytes, sources)); });
}

annulus_status_t annulus_config_value(const annulus_config_t* config, const char* name, char* value,
                                      size_t value_bytes) {
  if (name == nullptr || value == nullptr) return Reject(name == nullptr ? "name is null" : "value is null");
  return Guarded([&] {
    std::string text;
    Status status = annulus::ConfigValue(config, annulus::ProcessVariable, name, &text);
    if (status.ok() && text.size() >= value_bytes) {
      status = Status::Invalid("value_bytes is " + std::to_string(value_bytes) + "; the value of " + name + " takes " +
                               std::to_string(text.size() + 1));
    }
    if (status.ok()) std::memcpy(value, text.c_str(), text.size() + 1);
    return Outcome(status);
  });
}

annulus_status_t annulus_comm_create(const annulus_config_t* config, annulus_comm_t** comm) {
  if (comm == nullptr) return Reject("comm is null");
  *comm = nullptr;
  return Guarded([&] {
    annulus::Options options;
    Status status = annulus::ToOptions(config, annulus::ProcessVariable, &options);
    annulus::Introduction introduction;
    if (status.ok()) status = annulus::ToIntroduction(config, &introduction);
    std::unique_ptr<Communicator> communicator;
    if (status.ok()) SetLogLevel(options.log_level);
    annulus::c_api::ProcessState& process = OfProcess();
    process.FindDevices();
    if (status.ok() && options.device >= 0) status = process.UseDevice(static_cast<int>(options.device));
    const annulus::Resources resources{&process.requests, &process.memory, &process.domains};
    if (status.ok()) status = annulus::Introduce(introduction, options, resources, &communicator);
    if (!status.ok()) return Reject(status);
    *comm = reinterpret_cast<annulus_comm_t*>(communicator.release());
    return ANNULUS_OK;
  });
}

annulus_status_t annulus_comm_split(annulus_comm_t* comm, int colour, int key, annulus_comm_t** newcomm) {
  if (newcomm != nullptr) *newcomm = nullptr;
  if (comm == nullptr || newcomm == nullptr) return Reject(comm == nullptr ? "comm is null" : "newcomm is null");
  return Guarded([&] {
    std::unique_ptr<Communicator> child;
    const Status status = annulus::Split(Unwrap(comm), colour, key, &child);
    if (!status.ok()) return SplitFailure(Unwrap(comm), status);
    *newcomm = reinterpret_cast<annulus_comm_t*>(child.release());
    return ANNULUS_OK;
  });
}

annulus_status_t annulus_comm_dup(annulus_comm_t* comm, annulus_comm_t** newcomm) {
  return annulus_comm_split(comm, 0, 0, newcomm);
}

annulus_status_t annulus_comm_destroy(annulus_comm_t* comm) {
  if (comm == nullptr) return ANNULUS_OK;
  if (Unwrap(comm)->IsInCallback()) return Reject("a callback cannot destroy its communicator");
  if (Unwrap(comm)->IsInsideReduction())
    return Reject("a reduction function cannot destroy the communicator that called it");
  return Guarded([&] {
    delete Unwrap(comm);
    return ANNULUS_OK;
  });
}

annulus_status_t annulus_comm_abort(annulus_comm_t* comm, const char* reason) {
  if (comm == nullptr) return Reject("comm is null");
  return Guarded([&] {
    Unwrap(comm)->Abort(Cut(reason != nullptr ? reason : ""));
    return ANNULUS_OK;
  });
}

annulus_status_t annulus_comm_rank(const annulus_comm_t* comm, int* rank) {
  return GetInt(comm, rank, &Communicator::rank);
}
annulus_status_t annulus_comm_size(const annulus_comm_t* comm, int* size) {
  return GetInt(comm, size, &Communicator::nranks);
}
annulus_status_t annulus_comm_local_rank(const annulus_comm_t* comm, int* local_rank) {
  return GetInt(comm, local_rank, &Communicator::local_rank);
}
annulus_status_t annulus_comm_local_size(const annulus_comm_t* comm, int* local_size) {
  return GetInt(comm, local_size, &Communicator::local_size);
}

annulus_status_t annulus_comm_verdict(const annulus_comm_t* comm, annulus_error_t* error) {
  if (comm == nullptr || error == nullptr) return Reject(comm == nullptr ? "comm is null" : "error is null");
  return Guarded([&] {
    const annulus::Verdict none;
    const annulus::Verdict* const verdict = const_cast<Communicator*>(Unwrap(comm))->verdict();
    annulus_error_t parts = annulus::c_api::PartsOf(verdict != nullptr ? *verdict : none);
    if (verdict == nullptr) parts.message = parts.advice = "";
    return Outcome(FillStruct(parts, "annulus_error_t", error));
  });
}

namespace {

// What is not over with a look is apart, so that a look needs few registers.
[[gnu::noinline]] annulus_status_t WaitInFull(annulus_request_t* request, int64_t timeout_ms) {
  return WithOwner(request, [&](Communicator* owner, annulus::FailedCall* failed) {
    return owner->Wait(Unwrap(request), timeout_ms, failed);
  });
}

[[gnu::noinline]] annulus_status_t WaitAgain(annulus_request_t* request, int64_t timeout_ms) {
  return Guarded([&] {
    Communicator* const owner = OfProcess().requests.OwnerOf(Unwrap(request));
    if (owner != nullptr) {
      if (const std::optional<Code> again = owner->WaitAgain(Unwrap(request), timeout_ms)) return ToC(*again);
    }
    return WaitInFull(request, timeout_ms);
  });
}

[[gnu::noinline]] annulus_status_t FreeInFull(annulus_request_t* request) {
  Communicator* const owner = OfProcess().requests.OwnerOf(Unwrap(request));
  if (owner != nullptr && owner->FreeDone(Unwrap(request))) return ANNULUS_OK;
  return Guarded([&] {
    return WithOwner(request, [&](Communicator* owner, annulus::FailedCall*) { return owner->Free(Unwrap(request)); });
  });
}

}  // namespace

annulus_status_t annulus_request_wait(annulus_request_t* request, int64_t timeout_ms) {
  if (request == nullptr) return Reject("request is null");
  if (OfProcess().requests.HasEndedWell(Unwrap(request)) && timeout_ms >= -1) return ANNULUS_OK;
  return WaitAgain(request, timeout_ms);
}

annulus_status_t annulus_request_test(annulus_request_t* request) { return annulus_request_wait(request, 0); }

annulus_status_t annulus_request_free(annulus_request_t* request) {
  if (request == nullptr) return ANNULUS_OK;
  const RequestTable& table = OfProcess().requests;
  return table.LetGo(Unwrap(request)) ? ANNULUS_OK : FreeInFull(request);
}
