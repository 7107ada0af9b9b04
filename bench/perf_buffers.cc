// Memory of a measurement: page-aligned, with a guard behind each buffer.
//
// Threads: see perf_buffers.h.
#include "bench/perf_buffers.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "bench/perf_inputs.h"

namespace annulus::perf {
namespace {

constexpr size_t kPageBytes = 4096;
// What a result that overruns its buffer would hit first.
constexpr size_t kGuardBytes = 64;
// No crafted small integer or half has these bytes.
constexpr uint8_t kPoison = 0xa5;

InputSpec SpecOf(const CallSpec& spec, int nranks, uint64_t seed) {
  return {spec.type, spec.op, nranks, seed, std::max(SendCount(spec, nranks), RecvCount(spec, nranks))};
}

bool Writes(const CallSpec& spec, int rank) { return spec.kind != Kind::kReduce || rank == spec.root; }

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

// What each rank must hold afterwards, from which element of the whole, and how much of it.
int64_t CountWrongResults(const CallSpec& spec, const Group& group, uint64_t seed, const void* results) {
  const InputSpec inputs = SpecOf(spec, group.size(), seed);
  if (spec.kind == Kind::kBroadcast) return MakeInput(inputs, spec.root).CountDifferent(0, spec.count, results);
  if (spec.kind == Kind::kAllgather) {
    int64_t wrong = 0;
    for (int rank = 0; rank < group.size(); ++rank) {
      const size_t first = spec.count * static_cast<size_t>(rank);
      const auto* part = static_cast<const uint8_t*>(results) + first * annulus_type_bytes(spec.type);
      wrong += MakeInput(inputs, rank).CountDifferent(0, spec.count, part);
    }
    return wrong;
  }
  const size_t first = spec.kind == Kind::kReduceScatter ? spec.count * static_cast<size_t>(group.rank()) : 0;
  return MakeReduced(inputs).CountDifferent(first, spec.count, results);
}

}  // namespace

void Buffers::Free::operator()(uint8_t* memory) const { std::free(memory); }

Status Buffers::Create(size_t bytes, int copies, Buffers* buffers) {
  buffers->stride_ = (bytes + kGuardBytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const size_t total = buffers->stride_ * static_cast<size_t>(copies);
  for (Memory* memory : {&buffers->input_, &buffers->output_}) {
    memory->reset(static_cast<uint8_t*>(std::aligned_alloc(kPageBytes, total)));
    if (!*memory) return {Code::kOutOfMemory, "cannot allocate two buffers of " + std::to_string(total) + " bytes"};
    std::memset(memory->get(), kPoison, total);  // Touches every page before anything is timed.
  }
  return Status();
}

void* Buffers::Send(const CallSpec& spec, Place place, int rank, int copy) const {
  const size_t offset = stride_ * static_cast<size_t>(copy);
  if (place == Place::kOut) return input_.get() + offset;
  return output_.get() + offset + InPlaceSendOffset(spec, rank) * annulus_type_bytes(spec.type);
}

void* Buffers::Recv(const CallSpec& spec, Place place, int rank, int copy) const {
  const size_t offset = stride_ * static_cast<size_t>(copy);
  if (place == Place::kOut) return output_.get() + offset;
  return output_.get() + offset + InPlaceRecvOffset(spec, rank) * annulus_type_bytes(spec.type);
}

void Buffers::Prepare(const CallSpec& spec, Place place, const Group& group, uint64_t seed) {
  const size_t bytes = LargerBytes(spec, group.size());
  std::memset(output_.get(), kPoison, bytes + kGuardBytes);
  if (place == Place::kOut) std::memset(input_.get(), kPoison, bytes + kGuardBytes);
  // A broadcast takes nothing from the other ranks: what they hold must vanish, so poison stays there.
  if (spec.kind == Kind::kBroadcast && group.rank() != spec.root) return;
  const Sequence input = MakeInput(SpecOf(spec, group.size(), seed), group.rank());
  input.Fill(0, SendCount(spec, group.size()), Send(spec, place, group.rank(), 0));
}

int64_t Buffers::CountWrong(const CallSpec& spec, Place place, const Group& group, uint64_t seed) const {
  const size_t element_bytes = annulus_type_bytes(spec.type);
  const size_t bytes =
      place == Place::kOut ? RecvCount(spec, group.size()) * element_bytes : LargerBytes(spec, group.size());
  int64_t wrong = CountChangedPoison(output_.get() + bytes, kGuardBytes, element_bytes);
  if (Writes(spec, group.rank())) {
    wrong += CountWrongResults(spec, group, seed, Recv(spec, place, group.rank(), 0));
  } else if (place == Place::kOut) {
    wrong += CountChangedPoison(output_.get(), bytes, element_bytes);
  }
  const bool has_input = spec.kind != Kind::kBroadcast || group.rank() == spec.root;
  if (has_input && (place == Place::kOut || !Writes(spec, group.rank()))) {
    const Sequence input = MakeInput(SpecOf(spec, group.size(), seed), group.rank());
    wrong += input.CountDifferent(0, SendCount(spec, group.size()), Send(spec, place, group.rank(), 0));
  }
  return wrong;
}

Status Buffers::Check(const CallSpec& spec, Place place, Group& group, uint64_t seed, int corrupt, int64_t* wrong) {
  Prepare(spec, place, group, seed);
  void* const recv = Recv(spec, place, group.rank(), 0);
  ANNULUS_RETURN_IF_ERROR(group.Check(Call(group.comm(), spec, Send(spec, place, group.rank(), 0), recv)));
  if (group.rank() == 0) {
    const size_t element_bytes = annulus_type_bytes(spec.type);
    const size_t elements = std::min(static_cast<size_t>(corrupt), RecvCount(spec, group.size()));
    for (size_t i = 0; i < elements; ++i) static_cast<uint8_t*>(recv)[i * element_bytes] ^= 1;
  }
  int64_t sum = CountWrong(spec, place, group, seed);
  ANNULUS_RETURN_IF_ERROR(group.Sum({&sum, 1}));
  *wrong += sum;
  return Status();
}

}  // namespace annulus::perf
