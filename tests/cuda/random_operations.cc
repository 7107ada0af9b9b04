#include "tests/cuda/random_operations.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace annulus {
namespace {

using Kind = DevicePlace::Kind;

// A reduction as a user would write it, for any type: the bytes' exclusive or.
int32_t XorBytes(const void* a, const void* b, void* to, size_t count, annulus_type_t type, void*) {
  const size_t bytes = count * TypeBytes(static_cast<DataType>(type));
  for (size_t i = 0; i < bytes; ++i) {
    static_cast<std::byte*>(to)[i] = static_cast<const std::byte*>(a)[i] ^ static_cast<const std::byte*>(b)[i];
  }
  return 0;
}

std::string NameOf(const SliceOp& op) {
  return std::string(TypeName(op.type)) + " " + OpName(op.op) + ", " + std::to_string(op.count) + " elements of " +
         std::to_string(op.num_sources) + " sources, divisor " + std::to_string(op.divisor) + ", scaled source " +
         std::to_string(op.scaled_source);
}

// An operation, and the places of its operands on the device and on the host.
class RandomOperation {
 public:
  RandomOperation(uint64_t seed, TestDevice* device) : random_(seed), device_(device) {
    const Reduction reduction = AnyReduction(&random_);
    op_.type = reduction.type;
    op_.op = reduction.op;
    op_.count = Below(4) == 0 ? Below(40'000) : Below(300);
    op_.num_sources = static_cast<int>(Below(2) == 0 ? 1 + Below(2) : 1 + Below(6));
    if (op_.op == ReduceOp::kAvg) op_.divisor = static_cast<uint32_t>(Below(5));
    if (op_.op == ReduceOp::kSum && CanReduce(op_.type, static_cast<ReduceOp>(kFirstPremulSum)) && Below(3) == 0) {
      op_.scaled_source = static_cast<int>(Below(static_cast<uint64_t>(op_.num_sources)));
      op_.custom.factor = 3;
    }
    if (op_.scaled_source < 0 && op_.num_sources > 1 && Below(5) == 0) {
      by_user_.function = &XorBytes;
      op_.custom.user = &by_user_;
    }
    // Half of the time all operands have one alignment, so that vectors are used.
    common_offset_ = Below(2) == 0 ? static_cast<int>(Below(16)) : -1;
    for (int i = 0; i < op_.num_sources; ++i) AddSource();
    for (size_t i = 0; i < 1 + Below(2); ++i) AddOutput();
    is_in_place_ = Below(3) == 0;
  }

  // "" when the results of the queue are those of the host.
  std::string Run(DomainQueue* queue) {
    SliceOp on_host = op_;
    SetSources(&op_, &device_sources_);
    SetSources(&on_host, &host_sources_);
    for (size_t i = 0; i < outputs_.size(); ++i) {
      op_.dst[i] = outputs_[i]->data() + output_offsets_[i];
      on_host.dst[i] = expected_[i].data() + output_offsets_[i];
    }
    if (is_in_place_) {
      op_.dst[0] = places_[0]->data() + source_offsets_[0];
      expected_[0] = contents_[0];
      on_host.dst[0] = expected_[0].data() + source_offsets_[0];
    }
    RunOnHost(on_host);
    const Status status = RunToStatus(queue, op_);
    if (!status.ok()) return NameOf(op_) + ": " + status.ToString();
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const bool is_source = i == 0 && is_in_place_;
      if ((is_source ? places_[0] : outputs_[i])->Read() != expected_[i]) {
        return NameOf(op_) + ": output " + std::to_string(i) + " or what lies around it is wrong";
      }
    }
    return "";
  }

 private:
  static constexpr size_t kAround = 32;  // Bytes around an operand, which must stay as they are.

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  // Mostly device memory and slots, as a link has them; sometimes memory that no device can access.
  Kind NewKind() { return Below(8) == 0 ? Kind::kPageable : Below(2) == 0 ? Kind::kSlot : Kind::kDevice; }
  size_t NewOffset() {
    const size_t alignment = TypeAlignment(op_.type);
    return (common_offset_ >= 0 ? static_cast<size_t>(common_offset_) : Below(16)) / alignment * alignment;
  }
  size_t bytes() const { return op_.count * TypeBytes(op_.type) + kAround; }

  void AddSource() {
    contents_.push_back(RandomElements(op_.type, bytes() / TypeBytes(op_.type), &random_));
    // One operand at least is on the device.
    const Kind kind = places_.empty() ? Kind::kDevice : NewKind();
    places_.push_back(std::make_unique<DevicePlace>(kind, contents_.back().size(), device_));
    places_.back()->Write(contents_.back());
    source_offsets_.push_back(NewOffset());
  }
  void AddOutput() {
    expected_.emplace_back(bytes(), std::byte{0x11});
    outputs_.push_back(std::make_unique<DevicePlace>(NewKind(), bytes(), device_));
    outputs_.back()->Write(expected_.back());
    output_offsets_.push_back(NewOffset());
  }
  void SetSources(SliceOp* op, std::vector<const std::byte*>* sources) const {
    for (size_t i = 0; i < places_.size(); ++i) {
      const bool on_device = sources == &device_sources_;
      sources->push_back((on_device ? places_[i]->data() : contents_[i].data()) + source_offsets_[i]);
      if (i < 2) op->inline_src[i] = sources->back();
    }
    op->src = sources->data();
  }

  std::mt19937_64 random_;
  TestDevice* const device_;
  UserReduction by_user_;
  SliceOp op_;
  int common_offset_ = -1;
  bool is_in_place_ = false;
  std::vector<Bytes> contents_;
  std::vector<std::unique_ptr<DevicePlace>> places_;
  std::vector<size_t> source_offsets_;
  std::vector<Bytes> expected_;
  std::vector<std::unique_ptr<DevicePlace>> outputs_;
  std::vector<size_t> output_offsets_;
  std::vector<const std::byte*> device_sources_;
  std::vector<const std::byte*> host_sources_;
};

}  // namespace

DevicePlace::DevicePlace(Kind kind, size_t bytes, TestDevice* device)
    : kind_(kind), bytes_(std::max<size_t>(bytes, 1)), device_(device) {
  switch (kind_) {
    case Kind::kDevice:
      data_ = device_->Allocate(bytes_);
      break;
    case Kind::kSlot:
      data_ = device_->domain()->AllocateSlots(bytes_);
      break;
    case Kind::kPageable:
      pageable_.resize(bytes_);
      data_ = pageable_.data();
      break;
  }
}

DevicePlace::~DevicePlace() {
  if (kind_ == Kind::kDevice) device_->Free(data_);
  if (kind_ == Kind::kSlot) device_->domain()->FreeSlots(data_, bytes_);
}

void DevicePlace::Write(const Bytes& content) {
  if (content.empty()) return;
  if (kind_ == Kind::kDevice) {
    device_->Write(data_, content.data(), content.size());
  } else {
    std::memcpy(data_, content.data(), content.size());
  }
}

Bytes DevicePlace::Read() const {
  Bytes content(bytes_);
  if (kind_ == Kind::kDevice) {
    device_->Read(content.data(), data_, bytes_);
  } else {
    std::memcpy(content.data(), data_, bytes_);
  }
  return content;
}

Status RunToStatus(DomainQueue* queue, const SliceOp& op) {
  DomainQueue::Ticket ticket = DomainQueue::kCompleted;
  Status status = queue->Submit(op, &ticket);
  bool done = false;
  while (status.ok() && !done) status = queue->Poll(ticket, &done);
  return status;
}

std::string RunRandomOperation(uint64_t seed, TestDevice* device, DomainQueue* queue) {
  const std::string wrong = RandomOperation(seed, device).Run(queue);
  return wrong.empty() ? wrong : "seed " + std::to_string(seed) + ", " + wrong;
}

std::string RunPairs(DataType type, ReduceOp op, uint32_t divisor, const Bytes& a, const Bytes& b, TestDevice* device,
                     DomainQueue* queue) {
  DevicePlace left(Kind::kDevice, a.size(), device);
  DevicePlace right(Kind::kDevice, b.size(), device);
  DevicePlace result(Kind::kDevice, a.size(), device);
  left.Write(a);
  right.Write(b);
  SliceOp slice;
  slice.dst[0] = result.data();
  slice.inline_src[0] = left.data();
  slice.inline_src[1] = right.data();
  slice.num_sources = 2;
  slice.count = a.size() / TypeBytes(type);
  slice.type = type;
  slice.op = op;
  slice.divisor = divisor;
  const Status status = RunToStatus(queue, slice);
  if (!status.ok()) return NameOf(slice) + ": " + status.ToString();
  Bytes expected(a.size());
  slice.dst[0] = expected.data();
  slice.inline_src[0] = a.data();
  slice.inline_src[1] = b.data();
  RunOnHost(slice);
  const Bytes found = result.Read();
  for (size_t i = 0; i < expected.size(); ++i) {
    if (found[i] != expected[i])
      return NameOf(slice) + ": element " + std::to_string(i / TypeBytes(type)) + " is wrong";
  }
  return "";
}

}  // namespace annulus
