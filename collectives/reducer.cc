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

// Folds more than two sources block by block, so that partial results stay in the first-level cache.
void CombineMany(const SliceOp& op) {
  constexpr size_t kBlockBytes = 4096;
  alignas(64) std::byte partial[kBlockBytes];
  const size_t element = TypeBytes(op.type);
  const size_t block = kBlockBytes / element;
  for (size_t at = 0; at < op.count; at += block) {
    const size_t count = std::min(block, op.count - at);
    const size_t offset = at * element;
    Pass pass{{partial, nullptr}, op.src[0] + offset, op.src[1] + offset, count, 0};
    CombineTwo(pass, op.type, op.op);
    pass.left = partial;
    for (int i = 2; i < op.num_sources; ++i) {
      pass.right = op.src[i] + offset;
      if (i == op.num_sources - 1) {
        pass.dst[0] = op.dst[0] + offset;
        pass.dst[1] = op.dst[1] != nullptr ? op.dst[1] + offset : nullptr;
        pass.divisor = op.divisor;
      }
      CombineTwo(pass, op.type, op.op);
    }
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
  if (op.num_sources == 1) return Copy(op);
  const DefaultFloatEnv env;
  if (op.num_sources > 2) return CombineMany(op);
  CombineTwo({{op.dst[0], op.dst[1]}, op.inline_src[0], op.inline_src[1], op.count, op.divisor}, op.type, op.op);
}

}  // namespace annulus
