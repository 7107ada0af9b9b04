#include "frameworks/torch/registered.h"

#include <annulus.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <map>
#include <utility>

namespace annulus_torch {
namespace {

constexpr uint64_t kLeastBytes = 64 << 10;  // Smaller messages hardly gain.
constexpr uint64_t kMostTensors = 128;      // Each takes a file descriptor.
// To register and to give back takes as long as is saved by this many calls, and for small tensors by as many more as
// move this many bytes (docs/benchmarks/2026-11-26-pytorch.md).
constexpr uint64_t kUses = 4;
constexpr uint64_t kUsedBytes = 4 << 20;

}  // namespace

struct Registered::Block {
  enum class State { kPrivate, kRegistered, kRefused };
  const uint64_t bytes;
  const at::DeleterFnPtr deleter;  // The allocator's.
  State state = State::kPrivate;
  uint64_t uses = 0;  // As a whole.
  uint64_t under_way = 0;
  bool was_left_out = false;

  bool IsDue() const { return uses >= kUses && (uses - kUses) * bytes >= kUsedBytes; }
};

namespace {

// The parts of each large storage that the tensors use, by their offsets: from, to.
using Parts = std::vector<std::pair<uint64_t, uint64_t>>;

std::map<c10::StorageImpl*, Parts> LargeStorages(const std::vector<at::Tensor>& tensors) {
  std::map<c10::StorageImpl*, Parts> parts;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.nbytes() == 0 || tensor.storage().nbytes() < kLeastBytes) continue;
    const uint64_t begin = tensor.storage_offset() * tensor.element_size();
    parts[tensor.storage().unsafeGetStorageImpl()].emplace_back(begin, begin + tensor.nbytes());
  }
  return parts;
}

bool AreAll(Parts parts, uint64_t bytes) {
  std::ranges::sort(parts);
  uint64_t end = 0;
  for (const auto& [from, to] : parts) {
    if (from > end) return false;
    end = std::max(end, to);
  }
  return end == bytes;
}

}  // namespace

Registered& Registered::OfProcess() {
  static auto* const registered = new Registered();
  return *registered;
}

// A child has only the thread that forked, which has locked the mutex.
Registered::Registered() {
  pthread_atfork([] { OfProcess().mutex_.lock(); }, [] { OfProcess().mutex_.unlock(); },
                 [] {
                   OfProcess().is_child_ = true;
                   OfProcess().mutex_.unlock();
                 });
}

void Registered::SetLimit(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!std::exchange(has_limit_, true)) counts_.limit_bytes = bytes;
}

Registered::Counts Registered::counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

std::shared_ptr<Registered::Block> Registered::Find(c10::StorageImpl* storage) {
  const c10::DataPtr& data = std::as_const(*storage).data_ptr();
  if (data.get() == nullptr || data.get() != data.get_context()) return nullptr;
  if (data.get_deleter() == Delete) return blocks_.at(data.get_context());
  const at::DeleterFnPtr deleter = c10::GetCPUAllocator()->raw_deleter();
  if (deleter == nullptr || data.get_deleter() != deleter) return nullptr;
  const auto block = std::make_shared<Block>(Block{storage->nbytes(), deleter});
  blocks_[data.get_context()] = block;
  // Address and content stay. The block is there until Delete is called, which is what happens when the storage is
  // freed, resized, or given other memory.
  (void)storage->_mutable_data_ptr_no_checks().compare_exchange_deleter(deleter, Delete);
  return block;
}

void Registered::Register(void* data, Block* block) {
  if (counts_.tensors == kMostTensors || block->bytes > counts_.limit_bytes - counts_.bytes) {
    if (!std::exchange(block->was_left_out, true)) ++counts_.left_out;
    return;
  }
  // What is refused is refused for good: to look takes a millisecond in a process with many mappings.
  if (annulus_mem_register(data, block->bytes) != ANNULUS_OK) {
    block->state = Block::State::kRefused;
    ++counts_.refused;
    return;
  }
  block->state = Block::State::kRegistered;
  counts_.bytes += block->bytes;
  ++counts_.tensors;
  ++counts_.ever;
}

Registered::Hold Registered::Use(const std::vector<at::Tensor>& tensors) {
  Hold hold;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (counts_.limit_bytes == 0 || is_child_) return hold;
  for (const auto& [storage, parts] : LargeStorages(tensors)) {
    const std::shared_ptr<Block> block = Find(storage);
    if (block == nullptr) continue;
    if (AreAll(parts, block->bytes)) {
      ++block->uses;
      // A call under way may write to it.
      const bool may_be = block->state == Block::State::kPrivate && block->under_way == 0;
      if (may_be && block->IsDue()) Register(std::as_const(*storage).data_ptr().get_context(), block.get());
    }
    hold.blocks_.push_back(block);
    ++block->under_way;
  }
  return hold;
}

Registered::Hold& Registered::Hold::operator=(Hold&& other) noexcept {
  Release();
  blocks_ = std::exchange(other.blocks_, {});
  return *this;
}

void Registered::Hold::Release() {
  if (blocks_.empty()) return;
  const std::lock_guard<std::mutex> lock(OfProcess().mutex_);
  for (const std::shared_ptr<Block>& block : blocks_) --block->under_way;
  blocks_.clear();
}

// What a child frees would be used anew there, and its parent's memory written. What could not be given back would be
// shared with peers and children though nobody knows.
bool Registered::Forget(void* data, at::DeleterFnPtr* deleter) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(data);
  const std::shared_ptr<Block> block = std::move(found->second);
  blocks_.erase(found);
  *deleter = block->deleter;
  if (block->state != Block::State::kRegistered) return true;
  if (is_child_) return false;
  counts_.bytes -= block->bytes;
  --counts_.tensors;
  return annulus_mem_deregister(data) == ANNULUS_OK;
}

void Registered::Delete(void* data) {
  at::DeleterFnPtr deleter = nullptr;
  if (OfProcess().Forget(data, &deleter)) deleter(data);
}

}  // namespace annulus_torch
