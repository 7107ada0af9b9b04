// Initialisation, communicators, errors and the rest of MPI that moves no data; and what MPItrampoline asks first.
//
// Threads: any.

#include <annulus.h>
#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "frameworks/mpi/abi.h"
#include "frameworks/mpi/elements.h"
#include "frameworks/mpi/error.h"
#include "frameworks/mpi/job.h"
#include "frameworks/mpi/meeting.h"

namespace annulus_mpi {
namespace {

// XLA ignores how these calls ended, so that their reason would be seen much later or, where XLA ends before, never.
int Tell(int code) {
  if (code != kSUCCESS) std::fprintf(stderr, "annulus: %s\n", TextOf(code).c_str());
  return code;
}

// Writes `text` to a buffer of MPI's and its length to *length.
void Give(const std::string& text, size_t room, char* buffer, int* length) {
  const size_t bytes = std::min(text.size(), room - 1);
  std::memcpy(buffer, text.data(), bytes);
  buffer[bytes] = '\0';
  *length = static_cast<int>(bytes);
}

// Forms a communicator. One that fails becomes a handle too, which says why at each use.
int Form(const char* function, Handle comm, Handle* newcomm, int colour, int key) {
  *newcomm = kCOMM_NULL;
  std::string failure;
  const int code = Guarded(function, [&] {
    try {
      std::shared_ptr<Communicator> made = Job::Own().CommunicatorOf(comm)->Split(colour, key);
      if (made != nullptr) *newcomm = Job::Own().Add(std::move(made));
    } catch (const std::exception& error) {
      failure = error.what();
      throw;
    }
  });
  if (code == kSUCCESS) return Tell(code);
  const int kept =
      Guarded(function, [&] { *newcomm = Job::Own().Add(std::make_shared<Communicator>(std::move(failure))); });
  return Tell(kept == kSUCCESS ? code : kept);
}

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

// -- What MPItrampoline asks
// ----------------------------------------------------------------------------------------------

#define ANNULUS_MPI_VALUE extern "C" __attribute__((visibility("default"))) const

ANNULUS_MPI_VALUE int mpiabi_version_major = 2;
ANNULUS_MPI_VALUE int mpiabi_version_minor = 9;
ANNULUS_MPI_VALUE int mpiabi_version_patch = 0;
ANNULUS_MPI_VALUE int mpiwrapper_version_major = 2;
ANNULUS_MPI_VALUE int mpiwrapper_version_minor = 9;
ANNULUS_MPI_VALUE int mpiwrapper_version_patch = 0;
#define CONSTANT(name, value) ANNULUS_MPI_VALUE intptr_t MPIABI_##name = value;
#include "frameworks/mpi/constants.inc"
#undef CONSTANT

// There is no Fortran.
ANNULUS_MPI_EXPORT void mpiwrapper_export_fortran_constants_() {}

#define DONE(name)
#define MISSING(name)
#define NUMBERS(kind)                                                                            \
  ANNULUS_MPI_EXPORT int MPIABI_##kind##_c2f(Handle handle) { return static_cast<int>(handle); } \
  ANNULUS_MPI_EXPORT Handle MPIABI_##kind##_f2c(int number) { return static_cast<Handle>(number); }
#include "frameworks/mpi/functions.inc"
#undef DONE
#undef MISSING
#undef NUMBERS

// Whether buffers may lie in the memory of such devices.
ANNULUS_MPI_EXPORT int MPIXABI_Query_cuda_support() { return 0; }
ANNULUS_MPI_EXPORT int MPIXABI_Query_hip_support() { return 0; }
ANNULUS_MPI_EXPORT int MPIXABI_Query_ze_support() { return 0; }

// -- The process
// ----------------------------------------------------------------------------------------------------------

// For pyannulus.jax: how MPI_Init finds the others. Returns NULL or what is wrong, for ever.
ANNULUS_MPI_EXPORT const char* annulus_mpi_set_meeting(const annulus_mpi_meeting* meeting) {
  static thread_local std::string refusal;
  refusal = Job::Own().SetMeeting(meeting);
  return refusal.empty() ? nullptr : refusal.c_str();
}

ANNULUS_MPI_EXPORT int MPIABI_Init(int*, char***) {
  return Tell(Guarded("MPI_Init", [] { Job::Own().Initialise(); }));
}

ANNULUS_MPI_EXPORT int MPIABI_Init_thread(int*, char***, int, int* provided) {
  if (provided != nullptr) *provided = kTHREAD_MULTIPLE;
  return Tell(Guarded("MPI_Init_thread", [] { Job::Own().Initialise(); }));
}

ANNULUS_MPI_EXPORT int MPIABI_Initialized(int* flag) {
  *flag = Job::Own().is_initialised() ? 1 : 0;
  return kSUCCESS;
}

ANNULUS_MPI_EXPORT int MPIABI_Finalize() {
  return Guarded("MPI_Finalize", [] { Job::Own().Finalise(); });
}

ANNULUS_MPI_EXPORT int MPIABI_Finalized(int* flag) {
  *flag = Job::Own().is_finalised() ? 1 : 0;
  return kSUCCESS;
}

ANNULUS_MPI_EXPORT int MPIABI_Query_thread(int* provided) {
  *provided = kTHREAD_MULTIPLE;
  return kSUCCESS;
}

// Any thread may call; XLA's workers ask this first, and give up where the answer is no.
ANNULUS_MPI_EXPORT int MPIABI_Is_thread_main(int* flag) {
  *flag = 1;
  return kSUCCESS;
}

// Ends the work of all ranks with an error, and leaves it to the program to end.
ANNULUS_MPI_EXPORT int MPIABI_Abort(Handle comm, int code) {
  return Guarded("MPI_Abort", [&] {
    const std::shared_ptr<Communicator> communicator = Job::Own().CommunicatorOf(comm);
    const Communicator::Use use(*communicator);
    communicator->Check(annulus_comm_abort(use.get(), ("MPI_Abort with code " + std::to_string(code)).c_str()));
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Get_version(int* version, int* subversion) {
  *version = 3;
  *subversion = 1;
  return kSUCCESS;
}

ANNULUS_MPI_EXPORT int MPIABI_Get_library_version(char* version, int* length) {
  Give(std::string("Annulus ") + annulus_version() + ", those functions of MPI that XLA uses", kMaxLibraryVersion,
       version, length);
  return kSUCCESS;
}

ANNULUS_MPI_EXPORT int MPIABI_Get_processor_name(char* name, int* length) {
  struct utsname system {};
  Give(uname(&system) == 0 ? system.nodename : "unknown", kMaxProcessorName, name, length);
  return kSUCCESS;
}

ANNULUS_MPI_EXPORT double MPIABI_Wtime() { return Seconds(); }

ANNULUS_MPI_EXPORT double MPIABI_Wtick() { return 1e-9; }

// -- Errors
// ---------------------------------------------------------------------------------------------------------------

ANNULUS_MPI_EXPORT int MPIABI_Error_string(int code, char* text, int* length) {
  Give(TextOf(code), kMaxErrorString, text, length);
  return kSUCCESS;
}

ANNULUS_MPI_EXPORT int MPIABI_Error_class(int code, int* error_class) {
  *error_class = ClassOf(code);
  return kSUCCESS;
}

ANNULUS_MPI_EXPORT int MPIABI_Comm_set_errhandler(Handle comm, Handle handler) {
  return Guarded("MPI_Comm_set_errhandler", [&] {
    Job::Own().CommunicatorOf(comm);
    Require(handler == kERRORS_RETURN, kERR_UNSUPPORTED_OPERATION, "Annulus has MPI_ERRORS_RETURN only");
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Comm_get_errhandler(Handle comm, Handle* handler) {
  return Guarded("MPI_Comm_get_errhandler", [&] {
    Job::Own().CommunicatorOf(comm);
    *handler = kERRORS_RETURN;
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Errhandler_free(Handle* handler) {
  *handler = kERRHANDLER_NULL;
  return kSUCCESS;
}

// -- Communicators
// --------------------------------------------------------------------------------------------------------

// A communicator that failed gives no rank, not even 0: XLA, which ignores how this ended, copies a permutation's own
// part without a call of MPI.
ANNULUS_MPI_EXPORT int MPIABI_Comm_rank(Handle comm, int* rank) {
  *rank = -1;
  return Guarded("MPI_Comm_rank", [&] {
    const std::shared_ptr<Communicator> communicator = Job::Own().CommunicatorOf(comm);
    communicator->RequireUsable();
    *rank = communicator->rank();
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Comm_size(Handle comm, int* size) {
  *size = 0;
  return Guarded("MPI_Comm_size", [&] {
    const std::shared_ptr<Communicator> communicator = Job::Own().CommunicatorOf(comm);
    communicator->RequireUsable();
    *size = communicator->size();
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Comm_split(Handle comm, int colour, int key, Handle* newcomm) {
  return Form("MPI_Comm_split", comm, newcomm, colour, key);
}

ANNULUS_MPI_EXPORT int MPIABI_Comm_dup(Handle comm, Handle* newcomm) {
  *newcomm = kCOMM_NULL;
  int rank = -1;
  const int code = MPIABI_Comm_rank(comm, &rank);
  return code == kSUCCESS ? Form("MPI_Comm_dup", comm, newcomm, 0, rank) : code;
}

ANNULUS_MPI_EXPORT int MPIABI_Comm_free(Handle* comm) {
  return Guarded("MPI_Comm_free", [&] {
    Job::Own().Free(*comm);
    *comm = kCOMM_NULL;
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Comm_test_inter(Handle comm, int* flag) {
  return Guarded("MPI_Comm_test_inter", [&] {
    Job::Own().CommunicatorOf(comm);
    *flag = 0;
  });
}

// -- Types and memory
// -----------------------------------------------------------------------------------------------------

ANNULUS_MPI_EXPORT int MPIABI_Type_size(Handle datatype, int* size) {
  return Guarded("MPI_Type_size", [&] { *size = static_cast<int>(annulus_type_bytes(TypeOf(datatype))); });
}

ANNULUS_MPI_EXPORT int MPIABI_Get_address(const void* location, intptr_t* address) {
  *address = reinterpret_cast<intptr_t>(location);
  return kSUCCESS;
}

ANNULUS_MPI_EXPORT intptr_t MPIABI_Aint_add(intptr_t base, intptr_t displacement) { return base + displacement; }

ANNULUS_MPI_EXPORT intptr_t MPIABI_Aint_diff(intptr_t first, intptr_t second) { return first - second; }

// Registered memory, which ranks of this host read in place.
ANNULUS_MPI_EXPORT int MPIABI_Alloc_mem(intptr_t bytes, Handle, void** memory) {
  return Guarded("MPI_Alloc_mem", [&] {
    Require(bytes >= 0, kERR_SIZE, "the size is " + std::to_string(bytes));
    Communicator("").Check(annulus_mem_alloc(static_cast<size_t>(bytes), memory));
  });
}

ANNULUS_MPI_EXPORT int MPIABI_Free_mem(void* memory) {
  return Guarded("MPI_Free_mem", [&] { Communicator("").Check(annulus_mem_free(memory)); });
}

}  // namespace annulus_mpi
