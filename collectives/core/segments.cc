#include "collectives/core/segments.h"

#include <algorithm>

namespace annulus {

void Segments::Assign(std::span<const Tensor> tensors, size_t element_bytes, int nranks) {
  segments_.clear();
  chunks_.clear();
  latest_ = 0;
  segments_.reserve(tensors.size() * static_cast<size_t>(nranks) + 1);
  chunks_.reserve(static_cast<size_t>(nranks));
  size_t elements = 0;
  for (int chunk = 0; chunk < nranks; ++chunk) {
    const size_t first = elements;
    for (const Tensor& tensor : tensors) {
      const size_t count = ChunkElements(tensor.count, nranks, chunk);
      if (count == 0) continue;
      const size_t begin = ChunkBegin(tensor.count, nranks, chunk) * element_bytes;
      segments_.push_back({elements * element_bytes,
                           (elements + count) * element_bytes,
                           {tensor.input.data + begin, tensor.input.queue},
                           {tensor.output.data + begin, tensor.output.queue}});
      elements += count;
    }
    chunks_.push_back({first, elements - first});
  }
  bytes_ = elements * element_bytes;
  segments_.push_back({bytes_, bytes_, {}, {}});
  first_count_ = tensors.empty() ? 0 : tensors.front().count;
}

void Segments::Clear() {
  segments_.clear();
  if (segments_.capacity() > kMostKept) segments_ = std::vector<Segment>();
  chunks_.clear();
  bytes_ = 0;
}

const Segments::Segment* Segments::Find(size_t offset) const {
  const auto after = std::upper_bound(segments_.begin(), segments_.end(), offset,
                                      [](size_t wanted, const Segment& segment) { return wanted < segment.begin; });
  return &*(after - 1);
}

uint64_t DigestOf(std::span<const Tensor> tensors) {
  // The finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014), chained.
  uint64_t digest = tensors.size();
  for (const Tensor& tensor : tensors) {
    digest = (digest ^ tensor.count) + 0x9e3779b97f4a7c15u;
    digest = (digest ^ (digest >> 30)) * 0xbf58476d1ce4e5b9u;
    digest = (digest ^ (digest >> 27)) * 0x94d049bb133111ebu;
    digest ^= digest >> 31;
  }
  return digest;
}

}  // namespace annulus
