#include "frameworks/torch/communicator.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "frameworks/torch/failure.h"

namespace annulus_torch {
namespace {

constexpr int64_t kLongestMs = 24LL * 3600 * 1000;

// Annulus looks for CUDA's driver once, and takes only one that the process has loaded; PyTorch loads it when the
// program first uses CUDA, which may be later. To load it initializes nothing. Where there is none, there are no CUDA
// tensors.
void LoadCudaDriver() {
  if (c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) dlopen("libcuda.so.1", RTLD_NOW);
}

int32_t SetInStore(void* context, const char* key, const void* value, size_t bytes) {
  try {
    const auto* const first = static_cast<const uint8_t*>(value);
    static_cast<c10d::Store*>(context)->set(key, std::vector<uint8_t>(first, first + bytes));
    return 0;
  } catch (const std::exception& error) {
    TORCH_WARN("Annulus: the store cannot be written: ", error.what());
    return 1;
  }
}

int32_t GetFromStore(void* context, const char* key, void* value, size_t capacity, size_t* bytes, int64_t timeout_ms) {
  auto* const store = static_cast<c10d::Store*>(context);
  try {
    store->wait({key}, std::chrono::milliseconds(timeout_ms));
    const std::vector<uint8_t> found = store->get(key);
    *bytes = found.size();
    if (found.size() <= capacity) std::memcpy(value, found.data(), found.size());
    return 0;
  } catch (const std::exception&) {
    return 1;  // It was not there in time, or the store's server is gone: Annulus tells them apart by the time.
  }
}

}  // namespace

int64_t TimeoutMs(std::chrono::milliseconds timeout) { return std::clamp<int64_t>(timeout.count(), 1, kLongestMs); }

Communicator::Communicator(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                           std::chrono::milliseconds timeout) {
  // A connection of its own: other threads may use the store while this one waits.
  const c10::intrusive_ptr<c10d::Store> own = store->clone();
  annulus_store_t callbacks{};
  callbacks.struct_bytes = sizeof callbacks;
  callbacks.context = own.get();
  callbacks.set = SetInStore;
  callbacks.get = GetFromStore;
  LoadCudaDriver();
  annulus_config_t config;
  Check(annulus_config_init(&config, sizeof config, ANNULUS_FROM_ENVIRONMENT), "init_process_group");
  config.rank = rank;
  config.size = size;
  config.store = &callbacks;
  config.timeout_ms = config.connect_timeout_ms = TimeoutMs(timeout);
  Check(annulus_comm_create(&config, &comm_), "init_process_group");
}

void Communicator::Close() {
  if (getpid() != process_) return;
  std::unique_lock<std::shared_mutex> alone(use_, std::try_to_lock);
  if (!alone.owns_lock()) {
    {
      const std::shared_lock<std::shared_mutex> in_use(use_);
      if (comm_ != nullptr)
        annulus_comm_abort(comm_, "the process group was shut down while a thread waited for a call");
    }
    alone.lock();
  }
  if (comm_ == nullptr) return;
  annulus_comm_destroy(comm_);  // Callbacks still ask it for the verdict.
  comm_ = nullptr;
}

Communicator::Held::Held(const Communicator& comm) : comm_(comm), in_use_(comm.Use()) {
  TORCH_CHECK_WITH(DistBackendError, getpid() == comm.process_,
                   "Annulus: a forked child cannot use a process group of its parent");
  TORCH_CHECK_WITH(DistBackendError, in_use_.owns_lock(), "Annulus: the process group was shut down");
}

std::shared_lock<std::shared_mutex> Communicator::Use() const {
  if (getpid() != process_) return {};
  std::shared_lock<std::shared_mutex> in_use(use_, std::try_to_lock);
  if (in_use.owns_lock() && comm_ == nullptr) in_use.unlock();
  return in_use;
}

void ScaledSums::Make(const Communicator& comm, std::vector<annulus_call_t>* calls, const char* title) {
  for (const auto& [call, factor] : asked_) (*calls)[call].op = Of(comm, factor, title);
}

annulus_op_t ScaledSums::Of(const Communicator& comm, double factor, const char* title) {
  const auto is_same = [factor](const auto& made) {
    return std::bit_cast<uint64_t>(made.first) == std::bit_cast<uint64_t>(factor);
  };
  const auto found = std::ranges::find_if(made_, is_same);
  if (found != made_.end()) return found->second;
  comm_ = comm.shared_from_this();
  annulus_op_t op = ANNULUS_OP_LAST;
  Check(annulus_op_create_premul_sum(comm.get(), factor, &op), title);
  made_.emplace_back(factor, op);
  return op;
}

void ScaledSums::Destroy() {
  if (made_.empty()) return;
  const auto in_use = comm_->Use();
  for (const auto& [factor, op] : made_) {
    if (in_use.owns_lock()) annulus_op_destroy(comm_->get(), op);  // Else they end with the communicator.
  }
  made_.clear();
}

}  // namespace annulus_torch
