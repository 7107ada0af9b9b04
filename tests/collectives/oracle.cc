#include "tests/collectives/oracle.h"

#include <cstring>
#include <random>

#include "base/check.h"
#include "collectives/reducer.h"
#include "collectives/schedule.h"
#include "tests/collectives/reducer_oracle.h"

namespace annulus {
namespace {

template <typename T, typename Make>
Bytes Fill(size_t count, Make make) {
  Bytes bytes(count * sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    const T value = make();
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

// Folds elements [begin, begin + count) of all inputs, from rank `first` on, one pair at a time.
Bytes Fold(const Call& call, const CreatedOp& created, const std::vector<Bytes>& inputs, size_t begin, size_t count,
           int first) {
  const size_t element = TypeBytes(call.type);
  const int n = static_cast<int>(inputs.size());
  const auto part = [&](int rank) { return inputs[rank].data() + begin * element; };
  Bytes sum(part(first), part(first) + count * element);
  for (int k = 1; k < n; ++k) {
    if (created.function != nullptr) {
      created.function(sum.data(), part((first + k) % n), sum.data(), count, static_cast<annulus_type_t>(call.type),
                       nullptr);
      continue;
    }
    SliceOp op;
    op.dst[0] = sum.data();
    op.inline_src[0] = sum.data();
    op.inline_src[1] = part((first + k) % n);
    op.num_sources = 2;
    op.count = count;
    op.type = call.type;
    op.op = call.op;
    op.divisor = call.op == ReduceOp::kAvg && k == n - 1 ? n : 0;
    RunOnHost(op);
  }
  return sum;
}

Bytes PartOf(const Call& call, const Bytes& input, int rank) {
  const size_t bytes = call.count * TypeBytes(call.type);
  return Bytes(input.begin() + bytes * rank, input.begin() + bytes * (rank + 1));
}

}  // namespace

Bytes MakeInput(DataType type, size_t count, int rank, uint64_t seed) {
  std::mt19937_64 random(seed * 1000 + rank);
  std::normal_distribution<double> normal(0, 1000);
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8:
      return Fill<uint8_t>(count, [&] { return static_cast<uint8_t>(random()); });
    case DataType::kInt32:
    case DataType::kUint32:
      return Fill<uint32_t>(count, [&] { return static_cast<uint32_t>(random()); });
    case DataType::kInt64:
    case DataType::kUint64:
      return Fill<uint64_t>(count, [&] { return random(); });
    // Exponents around one: bits 0x38 of E4M3, 0x3c of E5M2, 0x3c00 of binary16, 0x3f80 of bfloat16.
    case DataType::kFloat8E4M3:
      return Fill<uint8_t>(count, [&] { return static_cast<uint8_t>(0x30 + random() % 0x18); });
    case DataType::kFloat8E5M2:
      return Fill<uint8_t>(count, [&] { return static_cast<uint8_t>(0x38 + random() % 0x0c); });
    case DataType::kFloat16:
      return Fill<uint16_t>(count, [&] { return static_cast<uint16_t>(0x3800 + random() % 0x0c00); });
    case DataType::kBFloat16:
      return Fill<uint16_t>(count, [&] { return static_cast<uint16_t>(0x3f00 + random() % 0x0180); });
    case DataType::kFloat32:
      return Fill<float>(count, [&] { return static_cast<float>(normal(random)); });
    case DataType::kFloat64:
      return Fill<double>(count, [&] { return normal(random); });
  }
  return {};
}

size_t InputElements(const Call& call, int nranks) {
  const bool parts = IsReduceScatter(call.kind) || IsScatter(call.kind) || IsAlltoall(call.kind);
  return call.count * (parts ? nranks : 1);
}

size_t OutputElements(const Call& call, int nranks) {
  const bool parts = IsAllgather(call.kind) || IsGather(call.kind) || IsAlltoall(call.kind);
  return call.count * (parts ? nranks : 1);
}

std::vector<double> MakeFactors(DataType type, int nranks) {
  // 8 bits hold all of them, and as many more as there are ranks in tests.
  std::vector<double> factors;
  for (int rank = 0; rank < nranks; ++rank) factors.push_back(IsFloat(type) ? 0.7 - 0.3 * rank : 3.0 + 2 * rank);
  return factors;
}

void ComposeLines(const void* left, const void* right, void* out, size_t count, annulus_type_t type, void* context) {
  ANNULUS_CHECK(type == ANNULUS_UINT32 && reinterpret_cast<uintptr_t>(out) % sizeof(uint32_t) == 0);
  if (context != nullptr) *static_cast<size_t*>(context) += count;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t l = static_cast<const uint32_t*>(left)[i];
    const uint32_t r = static_cast<const uint32_t*>(right)[i];
    static_cast<uint32_t*>(out)[i] = (l >> 16) * (r >> 16) << 16 | (((l >> 16) * (r & 0xffff) + l) & 0xffff);
  }
}

Bytes ExpectedOutput(const Call& call, const std::vector<Bytes>& inputs, int rank, const CreatedOp& created) {
  const int n = static_cast<int>(inputs.size());
  if (!created.factors.empty()) {
    Call sum = call;
    sum.op = ReduceOp::kSum;
    std::vector<Bytes> scaled = inputs;
    for (int r = 0; r < n; ++r) {
      for (size_t i = 0; i < inputs[r].size() / TypeBytes(call.type); ++i)
        OracleScale(call.type, created.factors[r], inputs[r].data(), scaled[r].data(), i);
    }
    return ExpectedOutput(sum, scaled, rank);
  }
  Bytes result;
  const auto append = [&result](const Bytes& part) { result.insert(result.end(), part.begin(), part.end()); };
  switch (call.kind) {
    case CollectiveKind::kAllreduce:
      for (int c = 0; c < n; ++c) {
        append(Fold(call, created, inputs, ChunkBegin(call.count, n, c), ChunkElements(call.count, n, c), (c + 1) % n));
      }
      break;
    case CollectiveKind::kReduceScatter:
      return Fold(call, created, inputs, call.count * rank, call.count, (rank + 1) % n);
    case CollectiveKind::kAllgather:
      for (const Bytes& input : inputs) append(input);
      break;
    case CollectiveKind::kBroadcast:
      return inputs[call.root];
    case CollectiveKind::kReduce:
      if (rank == call.root) return Fold(call, created, inputs, 0, call.count, (call.root + 1) % n);
      break;
    case CollectiveKind::kGather:
      for (const Bytes& input : inputs) append(rank == call.root ? input : Bytes());
      break;
    case CollectiveKind::kScatter:
      return PartOf(call, inputs[call.root], rank);
    case CollectiveKind::kAlltoall:
      for (const Bytes& input : inputs) append(PartOf(call, input, rank));
      break;
    default:
      break;
  }
  return result;
}

}  // namespace annulus
