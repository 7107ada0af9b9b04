#include "collectives/reduce/operations.h"

#include <limits>
#include <utility>

namespace annulus {

Operations::~Operations() {
  for (Slot& slot : slots_) slot.number = 0, retired_.push_back(std::move(slot.operation.keep));
  for (const auto& user : retired_) {
    if (user != nullptr && user->release != nullptr) user->release(user->context);
  }
}

std::vector<std::shared_ptr<UserReduction>> Operations::TakeUnused() {
  std::vector<std::shared_ptr<UserReduction>> unused;
  std::erase_if(retired_, [&unused](std::shared_ptr<UserReduction>& user) {
    const bool is_unused = user.use_count() == 1;
    if (is_unused) unused.push_back(std::move(user));
    return is_unused;
  });
  has_retired_.store(!retired_.empty(), std::memory_order_relaxed);
  return unused;
}

Status Operations::Add(int first_on_wire, const Operation& operation, int* number) {
  // Every kMaxCustomOps numbers in a row have all slots.
  for (int tries = 0; tries < kMaxCustomOps; ++tries) {
    if (next_number_ == std::numeric_limits<int>::max()) return Status::Invalid("no number is left for an operation");
    const int candidate = next_number_++;
    Slot& slot = slots_[SlotOf(candidate)];
    if (slot.number != 0) continue;
    slot.number = *number = candidate;
    slot.operation = operation;
    slot.operation.op = static_cast<ReduceOp>(first_on_wire + SlotOf(candidate));
    return Status();
  }
  return Status::Invalid("there are " + std::to_string(kMaxCustomOps) +
                         " operations already; destroy one before creating another");
}

Status Operations::CreatePremulSum(double factor, int* number) {
  Operation operation;
  operation.custom.scales = true;
  operation.custom.factor = factor;
  return Add(kFirstPremulSum, operation, number);
}

Status Operations::Create(annulus_reduce_fn function, void* context, void (*release)(void* context), int* number) {
  if (function == nullptr) return Status::Invalid("fn is null");
  Operation operation;
  operation.keep = std::make_shared<UserReduction>();
  operation.keep->function = function;
  operation.keep->context = context;
  operation.custom.user = operation.keep.get();
  const Status added = Add(kFirstUserOp, operation, number);
  // Of an operation that was not made, the context stays the caller's.
  if (added.ok()) operation.keep->release = release;
  return added;
}

const Operations::Slot* Operations::At(int number) const {
  if (number < kFirstNumber) return nullptr;
  const Slot& slot = slots_[SlotOf(number)];
  return slot.number == number ? &slot : nullptr;
}

Status Operations::Destroy(int number) {
  if (At(number) == nullptr) {
    return Status::Invalid("op is " + std::to_string(number) +
                           ", which is no operation that this communicator created");
  }
  Slot& slot = slots_[SlotOf(number)];
  if (slot.operation.keep != nullptr) {
    retired_.push_back(slot.operation.keep);
    has_retired_.store(true, std::memory_order_relaxed);
  }
  slot = Slot();
  return Status();
}

Status Operations::Find(int number, Operation* operation) const {
  const Slot* slot = At(number);
  if (slot == nullptr) {
    return Status::Invalid("op is " + std::to_string(number) +
                           ", which is no annulus_op_t and no operation that this communicator created");
  }
  *operation = slot->operation;
  return Status();
}

}  // namespace annulus
