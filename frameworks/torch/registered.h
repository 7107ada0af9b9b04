// Registered: the tensors of this process whose memory is registered with Annulus, so that peers on the same host, and
// RDMA devices, read it in place. Memory is registered once calls have used it often enough, and given back when it is
// freed: only then is it certain that no thread writes to it. So there are bounds, and nothing makes room but freeing.
//
// What is registered: memory of PyTorch's usual CPU allocator, of which a call uses all, while no other call uses it.
//
// Threads: any. A forked child registers nothing, and never frees what its parent has registered: the memory is the
// parent's too.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace annulus_torch {

class Registered {
 public:
  struct Counts {
    uint64_t limit_bytes = 0;
    uint64_t bytes = 0;     // Registered now.
    uint64_t tensors = 0;   // The same as a number.
    uint64_t ever = 0;      // Registered so far.
    uint64_t refused = 0;   // Not registered, because the memory is of another sort, as that of malloc's heap.
    uint64_t left_out = 0;  // Not registered, because of the bounds, when they were first to be.
  };

  // Memory that a call uses.
  struct Block;
  // The memory that a call uses, from before it is made until it has ended.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&&) = default;
    Hold& operator=(Hold&& other) noexcept;
    ~Hold() { Release(); }
    void Release();

   private:
    friend class Registered;
    std::vector<std::shared_ptr<Block>> blocks_;
  };

  // The process's only one. Never destroyed: tensors may be freed while the process ends.
  static Registered& OfProcess();

  // Sets the most bytes that are registered at a time; 0: none are. Only the first call in a process counts.
  void SetLimit(uint64_t bytes);
  // To be called before a call that uses these contiguous tensors is made. Registers those whose turn it is.
  [[nodiscard]] Hold Use(const std::vector<at::Tensor>& tensors);
  Counts counts() const;

 private:
  Registered();
  static void Delete(void* data);
  // Null: the storage's memory is of another sort.
  std::shared_ptr<Block> Find(c10::StorageImpl* storage);
  void Register(void* data, Block* block);
  // Whether the memory may be freed.
  bool Forget(void* data, at::DeleterFnPtr* deleter);

  mutable std::mutex mutex_;  // Not free while something is being registered: then the process must not fork.
  bool has_limit_ = false;
  bool is_child_ = false;
  Counts counts_;
  std::unordered_map<void*, std::shared_ptr<Block>> blocks_;  // Those in use or used before, by their address.
};

}  // namespace annulus_torch
