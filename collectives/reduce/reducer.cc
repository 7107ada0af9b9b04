// RunOnHost: splits the work into passes over two sources, which the kernels of the element type run.
#include "collectives/reduce/reducer.h"

#include <algorithm>
#include <cstring>

#include "collectives/reduce/reducer_float_env.h"
#include "collectives/reduce/reducer_kernels.h"
#include "collectives/reduce/reducer_stream.h"

namespace annulus {
namespace {

void Combine(const Pass& pass, const PlainReduction& plain) {
  switch (plain.type) {
#define ANNULUS_ELEMENT_TYPE(Name, name, NAME, number, Class, bytes, Family, Element) \
  case DataType::k##Name:                                                             \
    return Combine##Family(pass, plain.type, plain.op);
#define ANNULUS_DERIVED_TYPE(Name, ...) case DataType::k##Name:
#include "cuda_kernels/reduce_types.inc"
    return MultiplyComplex(pass, plain.type);
#undef ANNULUS_ELEMENT_TYPE
  }
}

// Copies the pass only where it must: a copy of what has just been put together waits for all stores before it.
void CombineTwo(const Pass& pass, DataType type, ReduceOp op) {
  const PlainReduction plain = PlainOf(type, op);
  if (plain.per_element == 1) return Combine(pass, plain);
  Pass parts = pass;
  parts.count *= plain.per_element;
  Combine(parts, plain);
}

// Work with several passes is done block by block, so that the results of a pass stay in the first-level cache for the
// next one.
constexpr size_t kBlockBytes = 4096;

// Combines by the user-defined function, which fills one destination. An exception cannot be passed on, so it ends the
// program. After a failure the function is not called again: the engine gives the call up.
void CombineByUser(const Pass& pass, DataType type, const UserReduction& user) noexcept {
  if (user.failure.load(std::memory_order_relaxed) != 0) return;
  const int32_t failure =
      user.function(pass.left, pass.right, pass.dst[0], pass.count, static_cast<annulus_type_t>(type), user.context);
  if (failure != 0) return user.failure.store(failure, std::memory_order_relaxed);
  if (pass.dst[1] != nullptr) std::memcpy(pass.dst[1], pass.dst[0], pass.count * TypeBytes(type));
}

// Writes left * factor to `to`.
void ScaleTo(std::byte* to, const std::byte* left, size_t count, const SliceOp& op) {
  Pass pass{{to, nullptr}, left, left, count, 0};
  pass.factor = op.custom.factor;
  CombineTwo(pass, op.type, kScale);
}

// Folds elements [at, at + count), at most a block, of any number of sources except one, scaling one of them. Fills
// to[0] and, when not null, to[1].
void CombineBlock(const SliceOp& op, size_t at, size_t count, std::byte* const (&to)[2]) {
  alignas(64) std::byte partial[kBlockBytes];
  alignas(64) std::byte scaled[kBlockBytes];
  const size_t offset = at * TypeBytes(op.type);
  const std::byte* const* sources = op.num_sources > 2 ? op.src : op.inline_src;
  const auto source = [&](int i) -> const std::byte* {
    if (i != op.scaled_source) return sources[i] + offset;
    ScaleTo(scaled, sources[i] + offset, count, op);
    return scaled;
  };
  Pass pass{{partial, nullptr}, source(0), nullptr, count, 0};
  for (int i = 1; i < op.num_sources; ++i) {
    pass.right = source(i);
    if (i == op.num_sources - 1) {
      pass.dst[0] = to[0];
      pass.dst[1] = to[1];
      pass.divisor = op.divisor;
    }
    if (op.custom.user != nullptr) {
      CombineByUser(pass, op.type, *op.custom.user);
    } else {
      CombineTwo(pass, op.type, op.op);
    }
    pass.left = partial;
  }
}

// The same for everything except a plain copy.
void FillBlock(const SliceOp& op, size_t at, size_t count, std::byte* const (&to)[2]) {
  const size_t offset = at * TypeBytes(op.type);
  if (op.num_sources == 1) {
    ScaleTo(to[0], op.inline_src[0] + offset, count, op);
    if (to[1] != nullptr) std::memcpy(to[1], to[0], count * TypeBytes(op.type));
  } else if (op.num_sources > 2 || op.scaled_source >= 0) {
    CombineBlock(op, at, count, to);
  } else {
    CombineTwo({{to[0], to[1]}, op.inline_src[0] + offset, op.inline_src[1] + offset, count, op.divisor}, op.type,
               op.op);
  }
}

std::byte* Behind(std::byte* dst, size_t offset) { return dst != nullptr ? dst + offset : nullptr; }

// Everything except a plain copy, block by block.
void FillByBlocks(const SliceOp& op) {
  const size_t element = TypeBytes(op.type);
  const size_t block = kBlockBytes / element;
  for (size_t at = 0; at < op.count; at += block) {
    FillBlock(op, at, std::min(block, op.count - at),
              {Behind(op.dst[0], at * element), Behind(op.dst[1], at * element)});
  }
}

constexpr size_t kLineBytes = 64;

bool BeginsLine(const std::byte* at) { return reinterpret_cast<uintptr_t>(at) % kLineBytes == 0; }

// Whether two destinations are filled one after the other: where a store of a whole vector crosses cache lines, two at
// once took 1.6 times as long (Intel Xeon, AVX-512), and a copy of a block that is in the first-level cache little.
// What fits that cache gains nothing. The arrays of numpy, and whatever malloc maps, begin 16 bytes behind a line.
bool CopiesSecond(const SliceOp& op) {
  if (op.dst[1] == nullptr || op.count * TypeBytes(op.type) <= 2 * kBlockBytes) return false;
  return !BeginsLine(op.dst[0]) || !BeginsLine(op.dst[1]);
}

// Puts two sources together in the destination that begins a line, and copies from there.
void FillAndCopy(const SliceOp& op) {
  const int first = BeginsLine(op.dst[0]) ? 0 : 1;
  const size_t element = TypeBytes(op.type);
  const size_t block = kBlockBytes / element;
  for (size_t at = 0; at < op.count; at += block) {
    const size_t count = std::min(block, op.count - at);
    FillBlock(op, at, count, {op.dst[first] + at * element, nullptr});
    std::memcpy(op.dst[1 - first] + at * element, op.dst[first] + at * element, count * element);
  }
}

// Prefetches the next block of a source: the processor's own prefetchers start again on each page of 4 KiB, which is
// one block.
void PrefetchBlock(const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(from + at);
}

// One block of FillByStreams: the destinations that are not streamed first, from which the others are then copied
// while they are in the first-level cache.
void StreamBlock(const SliceOp& op, size_t at, size_t count) {
  alignas(64) std::byte partial[kBlockBytes];
  const size_t offset = at * TypeBytes(op.type);
  const size_t bytes = count * TypeBytes(op.type);
  const size_t ahead = std::min(kBlockBytes, (op.count - at - count) * TypeBytes(op.type));
  for (int i = 0; i < std::min(op.num_sources, 2); ++i) PrefetchBlock(op.inline_src[i] + offset + bytes, ahead);
  std::byte* to[2] = {nullptr, nullptr};
  int plain = 0;
  for (int i = 0; i < 2; ++i) {
    if (op.dst[i] != nullptr && !op.streams[i]) to[plain++] = op.dst[i] + offset;
  }
  const std::byte* result = op.inline_src[0] + offset;
  if (op.num_sources == 1 && op.scaled_source < 0) {
    for (int i = 0; i < plain; ++i) {
      if (to[i] != result) std::memcpy(to[i], result, bytes);
    }
  } else {
    if (plain == 0) to[0] = partial;
    FillBlock(op, at, count, to);
    result = to[0];
  }
  for (int i = 0; i < 2; ++i) {
    if (op.dst[i] != nullptr && op.streams[i] && op.dst[i] + offset != result)
      StreamBytes(op.dst[i] + offset, result, bytes);
  }
}

// Some destination is written past the caches. The first block ends where a cache line of that destination does, so
// that the others are whole lines.
void FillByStreams(const SliceOp& op) {
  const size_t element = TypeBytes(op.type);
  const std::byte* const streamed = op.streams[0] ? op.dst[0] : op.dst[1];
  const size_t block = kBlockBytes / element;
  size_t count = block - reinterpret_cast<uintptr_t>(streamed) % kLineBytes / element;
  for (size_t at = 0; at < op.count; at += count, count = block) {
    count = std::min(count, op.count - at);
    StreamBlock(op, at, count);
  }
  FenceStreams();
}

// Two destinations are filled block by block, so that the source is read from memory once.
void Copy(const SliceOp& op) {
  constexpr size_t kBlockBytes = 16 * 1024;
  const size_t bytes = op.count * TypeBytes(op.type);
  if (op.dst[1] == nullptr) {
    if (op.dst[0] != op.inline_src[0]) std::memcpy(op.dst[0], op.inline_src[0], bytes);
    return;
  }
  for (size_t at = 0; at < bytes; at += kBlockBytes) {
    const size_t block = std::min(kBlockBytes, bytes - at);
    for (std::byte* dst : op.dst) {
      if (dst != op.inline_src[0]) std::memcpy(dst + at, op.inline_src[0] + at, block);
    }
  }
}

void FillOneOrTwo(const SliceOp& op) {
  const bool copies = op.num_sources == 1 && op.scaled_source < 0;
  // A user-defined function is called as rarely as possible.
  const bool streams = (op.streams[0] || op.streams[1]) && op.custom.user == nullptr;
  if (copies && !streams) return Copy(op);
  const DefaultFloatEnv env;
  if (streams) return FillByStreams(op);
  if (op.num_sources != 2 || op.scaled_source >= 0) return FillByBlocks(op);
  if (op.custom.user == nullptr && CopiesSecond(op)) return FillAndCopy(op);
  const Pass pass{{op.dst[0], op.dst[1]}, op.inline_src[0], op.inline_src[1], op.count, op.divisor};
  if (op.custom.user != nullptr) return CombineByUser(pass, op.type, *op.custom.user);
  CombineTwo(pass, op.type, op.op);
}

}  // namespace

void RunOnHost(const SliceOp& op) {
  if (op.count == 0) return;
  FillOneOrTwo(op);
  for (int i = 0; i < op.num_more; ++i) {
    if (op.more[i] != op.dst[0]) std::memcpy(op.more[i], op.dst[0], op.count * TypeBytes(op.type));
  }
}

}  // namespace annulus
