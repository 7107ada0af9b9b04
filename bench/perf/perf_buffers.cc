// Memory of a measurement: page-aligned, with a guard behind each buffer.
//
// Threads: see perf_buffers.h.
#include "bench/perf/perf_buffers.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "bench/perf/perf_inputs.h"

namespace annulus::perf {
namespace {

constexpr size_t kPageBytes = 4096;
// What a result that overruns its buffer would hit first.
constexpr size_t kGuardBytes = 64;
// Buffers of several calls lie apart at multiples of a cache line, as a model's tensors do: at multiples of a page they
// would compete for the same places in the caches.
constexpr size_t kLineBytes = 64;
// No crafted small integer or half has these bytes.
constexpr uint8_t kPoison = 0xa5;

InputSpec SpecOf(const CallSpec& spec, int nranks, uint64_t seed) {
  return {spec.type, spec.op, nranks, seed, std::max(SendCount(spec, nranks), RecvCount(spec, nranks))};
}

int64_t CountChangedPoison(const uint8_t* from, size_t bytes, size_t element_bytes) {
  if (bytes == 0 || (from[0] == kPoison && std::memcmp(from, from + 1, bytes - 1) == 0)) return 0;
  int64_t changed = 0;
  for (size_t i = 0; i < bytes; i += element_bytes) {
    bool same = true;
    for (size_t j = i; j < std::min(bytes, i + element_bytes); ++j) same = same && from[j] == kPoison;
    changed += same ? 0 : 1;
  }
  return changed;
}

// Counts the elements of `results` that are not part number `part` of what the rank behind it gave, rank after rank.
int64_t CountWrongParts(const CallSpec& spec, const InputSpec& inputs, int part, const void* results) {
  int64_t wrong = 0;
  const size_t first = spec.count * static_cast<size_t>(part);
  const auto* from = static_cast<const uint8_t*>(results);
  for (int rank = 0; rank < inputs.nranks; ++rank, from += spec.count * annulus_type_bytes(spec.type)) {
    wrong += MakeInput(inputs, rank).CountDifferent(first, spec.count, from);
  }
  return wrong;
}

// What a rank must hold afterwards, if it gets anything.
int64_t CountWrongResults(const CallSpec& spec, const Group& group, uint64_t seed, const void* results) {
  const InputSpec inputs = SpecOf(spec, group.size(), seed);
  const size_t own = spec.count * static_cast<size_t>(group.rank());
  switch (spec.kind) {
    case Kind::kAllgather:
    case Kind::kGather:
      return CountWrongParts(spec, inputs, 0, results);
    case Kind::kAlltoall:
      return CountWrongParts(spec, inputs, group.rank(), results);
    case Kind::kBroadcast:
      return MakeInput(inputs, spec.root).CountDifferent(0, spec.count, results);
    case Kind::kScatter:
      return MakeInput(inputs, spec.root).CountDifferent(own, spec.count, results);
    case Kind::kSendrecv:
    case Kind::kPingpong:
      return MakeInput(inputs, SenderTo(spec.kind, group.rank(), group.size())).CountDifferent(0, spec.count, results);
    case Kind::kReduceScatter:
      return MakeReduced(inputs).CountDifferent(own, spec.count, results);
    default:
      return MakeReduced(inputs).CountDifferent(0, spec.count, results);
  }
}

}  // namespace

void FreeMemory::operator()(uint8_t* memory) const {
  if (gpu != nullptr) {
    gpu->Free(memory);
  } else if (registered) {
    (void)annulus_mem_free(memory);
  } else {
    std::free(memory);
  }
}

Status Buffers::Create(size_t bytes, int copies, bool registered, Gpu* gpu, Buffers* buffers) {
  if (bytes > std::numeric_limits<size_t>::max() / 2 / static_cast<size_t>(copies) - kGuardBytes - kPageBytes)
    return {Code::kOutOfMemory, "cannot allocate buffers of " + std::to_string(bytes) + " bytes for each call"};
  buffers->stride_ = (bytes + kGuardBytes + kLineBytes - 1) / kLineBytes * kLineBytes;
  const size_t wanted = buffers->stride_ * static_cast<size_t>(copies);
  const size_t total = (wanted + kPageBytes - 1) / kPageBytes * kPageBytes;
  buffers->bytes_ = total;
  for (Memory* memory : {&buffers->input_, &buffers->output_}) {
    void* made = nullptr;
    if (!registered) {
      made = std::aligned_alloc(kPageBytes, total);
    } else if (annulus_mem_alloc(total, &made) != ANNULUS_OK) {
      return LastFailure(ANNULUS_OUT_OF_MEMORY);
    }
    *memory = Memory(static_cast<uint8_t*>(made), FreeMemory{registered});
    if (!*memory) return {Code::kOutOfMemory, "cannot allocate two buffers of " + std::to_string(total) + " bytes"};
    std::memset(memory->get(), kPoison, total);  // Touches every page before anything is timed.
  }
  buffers->gpu_ = gpu;
  for (Memory* memory : {&buffers->gpu_input_, &buffers->gpu_output_}) {
    if (gpu == nullptr) break;
    void* made = nullptr;
    ANNULUS_RETURN_IF_ERROR(gpu->Allocate(total, &made));
    *memory = Memory(static_cast<uint8_t*>(made), FreeMemory{false, gpu});
    ANNULUS_RETURN_IF_ERROR(gpu->Write(made, buffers->output_.get(), total));
  }
  return Status();
}

void* Buffers::Send(const CallSpec& spec, Place place, int rank, int copy) const {
  return Shown(ImageOfSend(spec, place, rank, copy));
}

void* Buffers::Recv(const CallSpec& spec, Place place, int rank, int copy) const {
  return Shown(ImageOfRecv(spec, place, rank, copy));
}

uint8_t* Buffers::Shown(uint8_t* image) const {
  if (gpu_ == nullptr) return image;
  const bool is_input = image >= input_.get() && image < input_.get() + bytes_;
  return is_input ? gpu_input_.get() + (image - input_.get()) : gpu_output_.get() + (image - output_.get());
}

uint8_t* Buffers::ImageOfSend(const CallSpec& spec, Place place, int rank, int copy) const {
  const size_t offset = stride_ * static_cast<size_t>(copy);
  if (place == Place::kOut) return input_.get() + offset;
  return output_.get() + offset + InPlaceSendOffset(spec, rank) * annulus_type_bytes(spec.type);
}

uint8_t* Buffers::ImageOfRecv(const CallSpec& spec, Place place, int rank, int copy) const {
  const size_t offset = stride_ * static_cast<size_t>(copy);
  if (place == Place::kOut) return output_.get() + offset;
  return output_.get() + offset + InPlaceRecvOffset(spec, rank) * annulus_type_bytes(spec.type);
}

void Buffers::Prepare(const CallSpec& spec, Place place, const Group& group, uint64_t seed, int copy) {
  const size_t bytes = LargerBytes(spec, group.size());
  const size_t offset = stride_ * static_cast<size_t>(copy);
  std::memset(output_.get() + offset, kPoison, bytes + kGuardBytes);
  if (place == Place::kOut) std::memset(input_.get() + offset, kPoison, bytes + kGuardBytes);
  // A broadcast or scatter takes nothing from the other ranks: what they hold must not count, so poison stays there.
  if (!HasInput(spec.kind, spec.root, group.rank())) return;
  const Sequence input = MakeInput(SpecOf(spec, group.size(), seed), group.rank());
  input.Fill(0, SendCount(spec, group.size()), ImageOfSend(spec, place, group.rank(), copy));
}

Status Buffers::Upload(const CallSpec& spec, int nranks, int copy) {
  if (gpu_ == nullptr) return Status();
  const size_t bytes = LargerBytes(spec, nranks) + kGuardBytes;
  const size_t offset = stride_ * static_cast<size_t>(copy);
  ANNULUS_RETURN_IF_ERROR(gpu_->Write(gpu_input_.get() + offset, input_.get() + offset, bytes));
  return gpu_->Write(gpu_output_.get() + offset, output_.get() + offset, bytes);
}

Status Buffers::Download(const CallSpec& spec, int nranks, int copy) {
  if (gpu_ == nullptr) return Status();
  const size_t bytes = LargerBytes(spec, nranks) + kGuardBytes;
  const size_t offset = stride_ * static_cast<size_t>(copy);
  ANNULUS_RETURN_IF_ERROR(gpu_->Read(input_.get() + offset, gpu_input_.get() + offset, bytes));
  return gpu_->Read(output_.get() + offset, gpu_output_.get() + offset, bytes);
}

int64_t Buffers::CountWrong(const CallSpec& spec, Place place, const Group& group, uint64_t seed, int copy) const {
  const int rank = group.rank();
  const size_t element_bytes = annulus_type_bytes(spec.type);
  const bool has_result = HasResult(spec.kind, spec.root, rank);
  const bool has_input = HasInput(spec.kind, spec.root, rank);
  const uint8_t* const output = output_.get() + stride_ * static_cast<size_t>(copy);
  // Within `output`: what the call may write or has read, and what lies before and behind it.
  size_t begin = 0, end = 0;
  const auto cover = [&](size_t first, size_t count) {
    begin = begin == end ? first * element_bytes : std::min(begin, first * element_bytes);
    end = std::max(end, (first + count) * element_bytes);
  };
  const bool in_place = place == Place::kIn;
  if (has_result) cover(in_place ? InPlaceRecvOffset(spec, rank) : 0, RecvCount(spec, group.size()));
  if (has_input && in_place) cover(InPlaceSendOffset(spec, rank), SendCount(spec, group.size()));
  int64_t wrong = CountChangedPoison(output, begin, element_bytes);
  const size_t guarded = LargerBytes(spec, group.size()) + kGuardBytes;
  wrong += CountChangedPoison(output + end, guarded - end, element_bytes);

  // In place, the root of a scatter has its part already: its result is a piece of the input that must not change.
  const bool scatters_in_place = in_place && has_input && spec.kind == Kind::kScatter;
  if (has_result && !scatters_in_place)
    wrong += CountWrongResults(spec, group, seed, ImageOfRecv(spec, place, rank, copy));
  // Other results in place overwrite the input.
  if (has_input && (!in_place || !has_result || scatters_in_place)) {
    const Sequence input = MakeInput(SpecOf(spec, group.size(), seed), rank);
    wrong += input.CountDifferent(0, SendCount(spec, group.size()), ImageOfSend(spec, place, rank, copy));
  }
  return wrong;
}

Status Buffers::Check(const Checked& calls, Group& group, uint64_t seed, int corrupt, int64_t* wrong) {
  const auto& [spec, place, copies, make] = calls;
  for (int copy = 0; copy < copies; ++copy) {
    Prepare(spec, place, group, seed + static_cast<uint64_t>(copy), copy);
    ANNULUS_RETURN_IF_ERROR(Upload(spec, group.size(), copy));
  }
  ANNULUS_RETURN_IF_ERROR(make());
  for (int copy = 0; copy < copies; ++copy) ANNULUS_RETURN_IF_ERROR(Download(spec, group.size(), copy));
  if (group.rank() == 0) {
    uint8_t* const recv = ImageOfRecv(spec, place, 0, 0);
    const size_t element_bytes = annulus_type_bytes(spec.type);
    const size_t elements = std::min(static_cast<size_t>(corrupt), RecvCount(spec, group.size()));
    for (size_t i = 0; i < elements; ++i) recv[i * element_bytes] ^= 1;
  }
  int64_t sum = 0;
  for (int copy = 0; copy < copies; ++copy) {
    sum += CountWrong(spec, place, group, seed + static_cast<uint64_t>(copy), copy);
  }
  ANNULUS_RETURN_IF_ERROR(group.Sum({&sum, 1}));
  *wrong += sum;
  return Status();
}

}  // namespace annulus::perf
