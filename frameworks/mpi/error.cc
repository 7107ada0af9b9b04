#include "frameworks/mpi/error.h"

#include <iterator>

namespace annulus_mpi {
namespace {

struct Latest {
  int code = kSUCCESS;
  std::string text;
};

thread_local Latest latest;

constexpr const char* kMissing[] = {
#define DONE(name)
#define NUMBERS(name)
#define MISSING(name) "MPI_" #name,
#include "frameworks/mpi/functions.inc"
#undef DONE
#undef NUMBERS
#undef MISSING
};

enum MissingFunction : int {
#define DONE(name)
#define NUMBERS(name)
#define MISSING(name) kMissing##name,
#include "frameworks/mpi/functions.inc"
#undef DONE
#undef NUMBERS
#undef MISSING
};

// Codes from here on name a missing function. Above all classes, below MPI_ERR_LASTCODE.
constexpr int kFirstMissing = 1000;
static_assert(kFirstMissing + std::size(kMissing) < kERR_LASTCODE && kFirstMissing > kERR_WIN);

constexpr struct {
  int value;
  const char* name;
} kClasses[] = {
    {kERR_ARG, "MPI_ERR_ARG"},         {kERR_BUFFER, "MPI_ERR_BUFFER"},
    {kERR_COMM, "MPI_ERR_COMM"},       {kERR_COUNT, "MPI_ERR_COUNT"},
    {kERR_INTERN, "MPI_ERR_INTERN"},   {kERR_NO_MEM, "MPI_ERR_NO_MEM"},
    {kERR_OP, "MPI_ERR_OP"},           {kERR_OTHER, "MPI_ERR_OTHER"},
    {kERR_RANK, "MPI_ERR_RANK"},       {kERR_ROOT, "MPI_ERR_ROOT"},
    {kERR_TAG, "MPI_ERR_TAG"},         {kERR_TYPE, "MPI_ERR_TYPE"},
    {kERR_REQUEST, "MPI_ERR_REQUEST"}, {kERR_UNSUPPORTED_OPERATION, "MPI_ERR_UNSUPPORTED_OPERATION"},
};

}  // namespace

// What a missing function does, whatever its arguments are: the caller removes those.
#define DONE(name)
#define NUMBERS(name)
#define MISSING(name) \
  ANNULUS_MPI_EXPORT int MPIABI_##name() { return kFirstMissing + kMissing##name; }
#include "frameworks/mpi/functions.inc"
#undef DONE
#undef NUMBERS
#undef MISSING

int Fail(const char* function, int error_class, const char* text) noexcept {
  latest.code = error_class;
  latest.text.clear();
  try {
    latest.text.append(function).append(": ").append(text);
  } catch (const std::bad_alloc&) {
    latest.code = kSUCCESS;
  }
  return error_class;
}

void Require(bool condition, intptr_t error_class, const std::string& text) {
  if (!condition) throw Error(error_class, text);
}

std::string TextOf(int code) {
  if (code == kSUCCESS) return "no error";
  const int missing = code - kFirstMissing;
  if (missing >= 0 && missing < static_cast<int>(std::size(kMissing))) {
    return std::string(kMissing[missing]) + ": Annulus does not have this function of MPI (it has those that XLA uses)";
  }
  if (code == latest.code) return latest.text;
  for (const auto& [value, name] : kClasses) {
    if (value == code) return name;
  }
  return "error " + std::to_string(code);
}

int ClassOf(int code) { return code >= kFirstMissing ? static_cast<int>(kERR_UNSUPPORTED_OPERATION) : code; }

int ClassOfStatus(annulus_status_t status) {
  switch (status) {
    case ANNULUS_INVALID_ARGUMENT:
      return kERR_ARG;
    case ANNULUS_OUT_OF_MEMORY:
      return kERR_NO_MEM;
    case ANNULUS_UNSUPPORTED:
      return kERR_UNSUPPORTED_OPERATION;
    case ANNULUS_INTERNAL:
      return kERR_INTERN;
    default:
      return kERR_OTHER;
  }
}

}  // namespace annulus_mpi
