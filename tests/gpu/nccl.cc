#include "tests/gpu/nccl.h"

#include <dlfcn.h>

#include <cstdlib>

namespace annulus {
namespace {

constexpr int kFloat32 = 7;  // ncclFloat32.
constexpr int kSum = 0;      // ncclSum.

// What makes ranks of one GPU a job, by NCCL's documentation of its variables.
void SetVariables(Nccl::Sharing sharing, int rank) {
  if (sharing == Nccl::Sharing::kShared) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    return;
  }
  setenv("NCCL_HOSTID", ("rank" + std::to_string(rank)).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  for (const char* other : {"NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"}) setenv(other, "1", 1);
}

}  // namespace

Status Nccl::Open(const std::string& library, Sharing sharing, annulus_comm_t* comm, RealDevice* device,
                  std::unique_ptr<Nccl>* nccl) {
  int rank = 0;
  annulus_comm_rank(comm, &rank);
  SetVariables(sharing, rank);
  std::unique_ptr<Nccl> opened(new Nccl(device));
  ANNULUS_RETURN_IF_ERROR(opened->Load(library));
  ANNULUS_RETURN_IF_ERROR(opened->Join(comm));
  *nccl = std::move(opened);
  return Status();
}

Nccl::~Nccl() {
  const cuda::ScopedContext scope(device_->driver(), device_->context());
  if (comm_ != nullptr) functions_.CommDestroy(comm_);
  if (stream_ != nullptr) device_->driver()->StreamDestroy(stream_);
}

Status Nccl::ToStatus(int result, const char* function) const {
  if (result == 0) return Status();
  std::string text = std::string(function) + ": " + functions_.GetErrorString(result);
  const char* const last = functions_.GetLastError != nullptr ? functions_.GetLastError(comm_) : nullptr;
  if (last != nullptr && *last != '\0') text += std::string(": ") + last;
  return {Code::kUnsupported, text};
}

Status Nccl::Load(const std::string& library) {
  // Never closed: NCCL has threads.
  void* const handle = dlopen(library.c_str(), RTLD_NOW);
  if (handle == nullptr) return {Code::kUnsupported, dlerror()};
  std::string missing;
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(handle, name));
    if (*function == nullptr) missing = name;
  };
  find("ncclGetLastError", &functions_.GetLastError);
  missing.clear();  // Since 2.13.
  find("ncclGetVersion", &functions_.GetVersion);
  find("ncclGetUniqueId", &functions_.GetUniqueId);
  find("ncclCommInitRank", &functions_.CommInitRank);
  find("ncclCommDestroy", &functions_.CommDestroy);
  find("ncclAllReduce", &functions_.AllReduce);
  find("ncclGetErrorString", &functions_.GetErrorString);
  if (!missing.empty()) return {Code::kUnsupported, library + " has no " + missing};
  return ToStatus(functions_.GetVersion(&version_), "ncclGetVersion");
}

// The ranks get the first one's identity over Annulus.
Status Nccl::Join(annulus_comm_t* comm) {
  int rank = 0;
  int size = 0;
  annulus_comm_rank(comm, &rank);
  annulus_comm_size(comm, &size);
  const cuda::Driver& driver = device_->driver();
  const cuda::ScopedContext scope(driver, device_->context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(driver->StreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, 0),
                                          "cuStreamCreateWithPriority"));
  NcclId id{};
  Status status;
  if (rank == 0) status = ToStatus(functions_.GetUniqueId(&id), "ncclGetUniqueId");
  if (annulus_broadcast(comm, &id, &id, sizeof id, ANNULUS_UINT8, 0) != ANNULUS_OK)
    return {Code::kPeerLost, "the ranks did not meet"};
  ANNULUS_RETURN_IF_ERROR(status);
  return ToStatus(functions_.CommInitRank(&comm_, size, id, rank), "ncclCommInitRank");
}

Status Nccl::Allreduce(const std::byte* in, std::byte* out, size_t count) {
  const cuda::ScopedContext scope(device_->driver(), device_->context());
  return ToStatus(functions_.AllReduce(in, out, count, kFloat32, kSum, comm_, stream_), "ncclAllReduce");
}

Status Nccl::Wait() {
  const cuda::ScopedContext scope(device_->driver(), device_->context());
  return device_->driver().ToStatus(device_->driver()->StreamSynchronize(stream_), "cuStreamSynchronize");
}

}  // namespace annulus
