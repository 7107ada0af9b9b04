// Segments: many pairs of user buffers as one virtual buffer, so that one collective serves them all.
//
// Used for an allreduce of several tensors. The virtual buffer holds chunk 0 of every tensor, then chunk 1 of every
// tensor, and so on, where a tensor's chunks are those of its own allreduce. So each element keeps its place in the
// order of addition, and the bits are those of separate calls.
//
// Threads: one at a time. Assign allocates; the rest does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/core/buffer.h"
#include "collectives/core/schedule.h"

namespace annulus {

// One allreduce of a group.
struct Tensor {
  ConstBuffer input;
  Buffer output;
  size_t count = 0;  // Elements.
};

class Segments {
 public:
  void Assign(std::span<const Tensor> tensors, size_t element_bytes, int nranks);

  bool empty() const { return chunks_.empty(); }
  // Forgets the tensors, and keeps the memory of a few hundred.
  void Clear();

  // Chunks of the virtual buffer, by number; in elements.
  const std::vector<Part>& chunks() const { return chunks_; }

  // Elements of the first tensor.
  size_t first_count() const { return first_count_; }

  // User memory behind byte `offset` of the virtual buffer, and the number of bytes that follow it there.
  struct Place {
    ConstBuffer input;
    Buffer output;
    size_t bytes = 0;
  };
  Place At(size_t offset) const {
    if (offset >= bytes_) return {};
    // Most places follow the latest one.
    const Segment* segment = segments_.data() + latest_;
    if (!segment->Has(offset) && !(++segment)->Has(offset)) segment = Find(offset);
    latest_ = static_cast<size_t>(segment - segments_.data());
    const size_t within = offset - segment->begin;
    return {{segment->input.data + within, segment->input.queue},
            {segment->output.data + within, segment->output.queue},
            segment->end - offset};
  }

  size_t MemoryBytes() const { return segments_.capacity() * sizeof(Segment) + chunks_.capacity() * sizeof(Part); }

 private:
  struct Segment {
    bool Has(size_t offset) const { return begin <= offset && offset < end; }

    size_t begin;  // Offsets in the virtual buffer, in bytes.
    size_t end;
    ConstBuffer input;
    Buffer output;
  };

 public:
  // Bytes held for each chunk of each tensor, and once more.
  static constexpr size_t kSegmentBytes = sizeof(Segment);

 private:
  static constexpr size_t kMostKept = 512;

  const Segment* Find(size_t offset) const;

  std::vector<Segment> segments_;  // Sorted by begin; none is empty, but for one more at the end.
  std::vector<Part> chunks_;
  size_t bytes_ = 0;
  size_t first_count_ = 0;
  mutable size_t latest_ = 0;  // Segment that At found last.
};

// A number that differs between groups whose tensors differ in number or size.
uint64_t DigestOf(std::span<const Tensor> tensors);

}  // namespace annulus
