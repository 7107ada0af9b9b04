// Operations: the user-defined reductions of one communicator, by number.
//
// An operation has a number for the user, which is never reused, and a slot below kMaxCustomOps, by which slices and
// messages refer to it: the number minus kFirstNumber, modulo kMaxCustomOps. A number whose slot is taken is skipped.
// So numbers and slots are the same on all ranks that create and destroy the same operations in the same order.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "base/status.h"
#include "collectives/reduce/reducer.h"

namespace annulus {

class Operations {
 public:
  static constexpr int kFirstNumber = 16;

  // A user's function, and whether the last one who used it has let it go. What he did is seen by who reads that.
  struct User {
    UserReduction reduction;
    std::atomic<bool> is_unused{false};
  };

  struct Operation {
    ReduceOp op{};  // Identifier on the wire.
    CustomReduction custom;
    std::shared_ptr<const UserReduction> keep;  // Held by all who use custom.user.
  };

  Operations() = default;
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;
  // Releases all. Nothing uses them any more.
  ~Operations();

  // Errors: kInvalidArgument when there are kMaxCustomOps already, or `function` is null.
  Status CreatePremulSum(double factor, int* number);
  Status Create(annulus_reduce_fn function, void* context, void (*release)(void* context), int* number);

  // Errors: kInvalidArgument when no operation has that number.
  Status Destroy(int number);

  // Destroyed operations that nothing uses any more, for the caller to release, with no lock held.
  std::vector<std::shared_ptr<User>> TakeUnused();
  // Whether TakeUnused may find any. From any thread. Who lets an operation go asks afterwards, and Destroy looks for
  // unused ones after it has retired one. Both are sequentially consistent, so that one of the two finds it.
  bool has_retired() const { return has_retired_.load(); }

  // Sets *operation to a copy, which work may use even after the operation is destroyed. Errors: as Destroy.
  Status Find(int number, Operation* operation) const;

 private:
  struct Slot {
    int number = 0;  // 0: free.
    Operation operation;
    std::shared_ptr<User> user;  // Null: not a function of the user's.
  };

  static int SlotOf(int number) { return (number - kFirstNumber) % kMaxCustomOps; }
  // The slot of operation `number`, or null.
  const Slot* At(int number) const;
  Status Add(int first_on_wire, const Operation& operation, int* number);

  std::array<Slot, kMaxCustomOps> slots_;
  int next_number_ = kFirstNumber;
  std::vector<std::shared_ptr<User>> retired_;  // Destroyed, but maybe used by queued work.
  std::atomic<bool> has_retired_{false};
};

}  // namespace annulus
