#include "collectives/reduce/operations.h"

#include <limits>

namespace annulus {

Status Operations::Add(int first_on_wire, const CustomReduction& custom, int* number) {
  // Every kMaxCustomOps numbers in a row have all slots.
  for (int tries = 0; tries < kMaxCustomOps; ++tries) {
    if (next_number_ == std::numeric_limits<int>::max()) return Status::Invalid("no number is left for an operation");
    const int candidate = next_number_++;
    Slot& slot = slots_[SlotOf(candidate)];
    if (slot.number != 0) continue;
    slot.number = *number = candidate;
    slot.operation.op = static_cast<ReduceOp>(first_on_wire + SlotOf(candidate));
    slot.operation.custom = custom;
    return Status();
  }
  return Status::Invalid("there are " + std::to_string(kMaxCustomOps) +
                         " operations already; destroy one before creating another");
}

Status Operations::CreatePremulSum(double factor, int* number) {
  CustomReduction custom;
  custom.scales = true;
  custom.factor = factor;
  return Add(kFirstPremulSum, custom, number);
}

Status Operations::Create(annulus_reduce_fn function, void* context, int* number) {
  if (function == nullptr) return Status::Invalid("fn is null");
  CustomReduction custom;
  custom.function = function;
  custom.context = context;
  return Add(kFirstUserOp, custom, number);
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
  slots_[SlotOf(number)] = Slot();
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
