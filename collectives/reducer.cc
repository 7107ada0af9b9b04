// RunOnHost: cuts the work into passes over two sources, which the kernels of the element's type do.
#include "collectives/reducer.h"

#include <algorithm>
#include <cstring>

#include "collectives/reducer_float_env.h"
#include "collectives/reducer_kernels.h"

namespace annulus {
namespace {

void CombineTwo(const Pass& pass, DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kUint32:
    case DataType::kUint64:
      return CombineIntegers(pass, type, op);
    case DataType::kInt8:
    case DataType::kUint8:
      return CombineBytes(pass, type, op);
    case DataType::kFloat16:
    case DataType::kBFloat16:
    case DataType::kFloat32:
    case DataType::kFloat64:
      return CombineFloats(pass, type, op);
    case DataType::kFloat8E4M3:
    case DataType::kFloat8E5M2:
      return CombineFloat8s(pass, type, op);
  }
}

// Work that takes several passes goes block by block, so that what one pass leaves to the next stays in the
// first-level cache.
constexpr size_t kBlockBytes = 4096;

// Combines by the user's function, which fills one destination. An exception has nowhere to go: it ends the program.
void CombineByUser(const Pass& pass, DataType type, const CustomReduction& custom) noexcept {
  custom.function(pass.left, pass.right, pass.dst[0], pass.count, static_cast<annulus_type_t>(type), custom.context);
  if (pass.dst[1] != nullptr) std::memcpy(pass.dst[1], pass.dst[0], pass.count * TypeBytes(type));
}

// Writes left * factor to `to`.
void ScaleTo(std::byte* to, const std::byte* left, size_t count, const SliceOp& op) {
  Pass pass{{to, nullptr}, left, left, count, 0};
  pass.factor = op.custom.factor;
  CombineTwo(pass, op.type, kScale);
}

// One block of CombineMany: elements [at, at + count) of all sources.
void CombineBlock(const SliceOp& op, size_t at, size_t count) {
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
      pass.dst[0] = op.dst[0] + offset;
      pass.dst[1] = op.dst[1] != nullptr ? op.dst[1] + offset : nullptr;
      pass.divisor = op.divisor;
    }
    if (op.custom.function != nullptr) {
      CombineByUser(pass, op.type, op.custom);
    } else {
      CombineTwo(pass, op.type, op.op);
    }
    pass.left = partial;
  }
}

// Folds any number of sources but one, scaling one of them.
void CombineMany(const SliceOp& op) {
  const size_t block = kBlockBytes / TypeBytes(op.type);
  for (size_t at = 0; at < op.count; at += block) CombineBlock(op, at, std::min(block, op.count - at));
}

// A copy times the factor.
void ScaledCopy(const SliceOp& op) {
  const size_t element = TypeBytes(op.type);
  const size_t block = kBlockBytes / element;
  for (size_t at = 0; at < op.count; at += block) {
    const size_t count = std::min(block, op.count - at);
    ScaleTo(op.dst[0] + at * element, op.inline_src[0] + at * element, count, op);
    if (op.dst[1] != nullptr) std::memcpy(op.dst[1] + at * element, op.dst[0] + at * element, count * element);
  }
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

}  // namespace

void RunOnHost(const SliceOp& op) {
  if (op.count == 0) return;
  if (op.num_sources == 1 && op.scaled_source < 0) return Copy(op);
  const DefaultFloatEnv env;
  if (op.num_sources == 1) return ScaledCopy(op);
  if (op.num_sources > 2 || op.scaled_source >= 0) return CombineMany(op);
  const Pass pass{{op.dst[0], op.dst[1]}, op.inline_src[0], op.inline_src[1], op.count, op.divisor};
  if (op.custom.function != nullptr) return CombineByUser(pass, op.type, op.custom);
  CombineTwo(pass, op.type, op.op);
}

}  // namespace annulus
