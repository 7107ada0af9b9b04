#include "collectives/reduce/operations.h"

#include <limits>
#include <new>
#include <utility>

namespace annulus {

Operations::~Operations() {
  const auto release = [](const User* user) {
    if (user != nullptr && user->reduction.release != nullptr) user->reduction.release(user->reduction.context);
  };
  for (Slot& slot : slots_) {
    slot.operation.keep.reset();
    release(slot.user.get());
  }
  for (const auto& user : retired_) release(user.get());
}

std::vector<std::shared_ptr<Operations::User>> Operations::TakeUnused() {
  std::vector<std::shared_ptr<User>> unused;
  try {
    unused.reserve(retired_.size());
  } catch (const std::bad_alloc&) {  // The next look finds them.
    return unused;
  }
  std::erase_if(retired_, [&unused](std::shared_ptr<User>& user) {
    const bool is_unused = user->is_unused.load();
    if (is_unused) unused.push_back(std::move(user));
    return is_unused;
  });
  has_retired_.store(!retired_.empty());
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
  const auto user = std::make_shared<User>();
  user->reduction.function = function;
  user->reduction.context = context;
  const auto let_go = [user](const UserReduction*) { user->is_unused.store(true); };
  operation.keep = std::shared_ptr<const UserReduction>(&user->reduction, let_go);
  operation.custom.user = &user->reduction;
  ANNULUS_RETURN_IF_ERROR(Add(kFirstUserOp, operation, number));
  // If the operation was not made, the context stays the caller's.
  user->reduction.release = release;
  slots_[SlotOf(*number)].user = user;
  return Status();
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
  if (slot.user != nullptr) {
    retired_.push_back(std::move(slot.user));
    has_retired_.store(true);
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
