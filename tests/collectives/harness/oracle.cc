#include "tests/collectives/harness/oracle.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "base/check.h"
#include "collectives/core/schedule.h"
#include "collectives/reduce/reducer.h"
#include "tests/collectives/reduce/reducer_oracle.h"

namespace annulus {
namespace {

// Elements of a pool, from which all inputs of a type are cut: as many as a prime, so that no part of an input that has
// a round length repeats.
constexpr size_t kPool = 65521;

template <typename T, typename Make>
Bytes Fill(size_t count, Make make) {
  Bytes bytes(count * sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    const T value = make();
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

Bytes MakePool(DataType type) {
  std::mt19937_64 random(static_cast<uint64_t>(type));
  std::normal_distribution<double> normal(0, 1000);
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8:
      return Fill<uint8_t>(kPool, [&] { return static_cast<uint8_t>(random()); });
    case DataType::kInt32:
    case DataType::kUint32:
      return Fill<uint32_t>(kPool, [&] { return static_cast<uint32_t>(random()); });
    case DataType::kInt64:
    case DataType::kUint64:
      return Fill<uint64_t>(kPool, [&] { return random(); });
    // Exponents around one: bits 0x38 of E4M3, 0x3c of E5M2, 0x3c00 of binary16, 0x3f80 of bfloat16.
    case DataType::kFloat8E4M3:
      return Fill<uint8_t>(kPool, [&] { return static_cast<uint8_t>(0x30 + random() % 0x18); });
    case DataType::kFloat8E5M2:
      return Fill<uint8_t>(kPool, [&] { return static_cast<uint8_t>(0x38 + random() % 0x0c); });
    case DataType::kFloat16:
      return Fill<uint16_t>(kPool, [&] { return static_cast<uint16_t>(0x3800 + random() % 0x0c00); });
    case DataType::kBFloat16:
      return Fill<uint16_t>(kPool, [&] { return static_cast<uint16_t>(0x3f00 + random() % 0x0180); });
    case DataType::kFloat32:
      return Fill<float>(kPool, [&] { return static_cast<float>(normal(random)); });
    case DataType::kFloat64:
      return Fill<double>(kPool, [&] { return normal(random); });
    case DataType::kInt16:
    case DataType::kUint16:
      return Fill<uint16_t>(kPool, [&] { return static_cast<uint16_t>(random()); });
    case DataType::kBool:
      return Fill<uint8_t>(kPool, [&] { return static_cast<uint8_t>(random() % 2); });
    case DataType::kComplex64:
      return Fill<float>(2 * kPool, [&] { return static_cast<float>(normal(random)); });
    case DataType::kComplex128:
      return Fill<double>(2 * kPool, [&] { return normal(random); });
  }
  return {};
}

// Puts left op right in place of left.
void Combine(const Call& call, const CreatedOp& created, Bytes* left, const std::byte* right, uint32_t divisor) {
  const size_t count = left->size() / TypeBytes(call.type);
  if (created.function != nullptr) {
    created.function(left->data(), right, left->data(), count, static_cast<annulus_type_t>(call.type), nullptr);
    return;
  }
  SliceOp op;
  op.dst[0] = left->data();
  op.inline_src[0] = left->data();
  op.inline_src[1] = right;
  op.num_sources = 2;
  op.count = count;
  op.type = call.type;
  op.op = call.op;
  op.divisor = divisor;
  RunOnHost(op);
}

// Folds elements [begin, begin + count) of all inputs, from rank `first` on, one pair at a time. An average is divided
// by `divisor` at the end.
Bytes Fold(const Call& call, const CreatedOp& created, const std::vector<Bytes>& inputs, size_t begin, size_t count,
           int first, uint32_t divisor) {
  const size_t element = TypeBytes(call.type);
  const int n = static_cast<int>(inputs.size());
  const auto part = [&](int rank) { return inputs[rank].data() + begin * element; };
  Bytes sum(part(first), part(first) + count * element);
  for (int k = 1; k < n; ++k) {
    Combine(call, created, &sum, part((first + k) % n), call.op == ReduceOp::kAvg && k == n - 1 ? divisor : 0);
  }
  return sum;
}

// Folds ranks [begin, begin + size), or as many of them as exist, as four quarters from the left. `size` is a power of
// four.
Bytes FoldQuarters(const Call& call, const CreatedOp& created, const std::vector<Bytes>& inputs, int begin, int size) {
  if (size == 1) return inputs[begin];
  const int n = static_cast<int>(inputs.size());
  Bytes sum = FoldQuarters(call, created, inputs, begin, size / 4);
  for (int quarter = begin + size / 4; quarter < std::min(n, begin + size); quarter += size / 4) {
    const bool last = begin == 0 && size >= n && quarter + size / 4 >= n;
    Combine(call, created, &sum, FoldQuarters(call, created, inputs, quarter, size / 4).data(),
            call.op == ReduceOp::kAvg && last ? n : 0);
  }
  return sum;
}

std::vector<Bytes> Scale(const Call& call, const std::vector<Bytes>& inputs, const std::vector<double>& factors) {
  std::vector<Bytes> scaled = inputs;
  for (size_t r = 0; r < inputs.size(); ++r) {
    for (size_t i = 0; i < inputs[r].size() / TypeBytes(call.type); ++i)
      OracleScale(call.type, factors[r], inputs[r].data(), scaled[r].data(), i);
  }
  return scaled;
}

Bytes PartOf(const Call& call, const Bytes& input, int rank) {
  const size_t bytes = call.count * TypeBytes(call.type);
  return Bytes(input.begin() + bytes * rank, input.begin() + bytes * (rank + 1));
}

}  // namespace

Bytes MakeInput(DataType type, size_t count, int rank, uint64_t seed) {
  static const std::vector<Bytes> pools = [] {
    std::vector<Bytes> made;
    for (int i = 0; i < kNumDataTypes; ++i) made.push_back(MakePool(static_cast<DataType>(i)));
    return made;
  }();
  const Bytes& pool = pools[static_cast<size_t>(type)];
  const size_t element = TypeBytes(type);
  Bytes input(count * element);
  // Two primes spread ranks and seeds over the pool.
  size_t from = (static_cast<size_t>(rank) * 7919 + seed * 10007) % kPool;
  for (size_t done = 0; done < count; from = 0) {
    const size_t part = std::min(count - done, kPool - from);
    std::memcpy(input.data() + done * element, pool.data() + from * element, part * element);
    done += part;
  }
  return input;
}

bool SameBits(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
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

int32_t ComposeLines(const void* left, const void* right, void* out, size_t count, annulus_type_t type, void* context) {
  ANNULUS_CHECK(type == ANNULUS_UINT32 && reinterpret_cast<uintptr_t>(out) % sizeof(uint32_t) == 0);
  if (context != nullptr) *static_cast<size_t*>(context) += count;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t l = static_cast<const uint32_t*>(left)[i];
    const uint32_t r = static_cast<const uint32_t*>(right)[i];
    static_cast<uint32_t*>(out)[i] = (l >> 16) * (r >> 16) << 16 | (((l >> 16) * (r & 0xffff) + l) & 0xffff);
  }
  return 0;
}

Bytes ExpectedInLevels(const Call& call, const std::vector<Bytes>& inputs, const HostGrid& grid,
                       const CreatedOp& created) {
  const int n = static_cast<int>(inputs.size());
  std::vector<Bytes> scaled = inputs;
  for (int r = 0; r < n && !created.factors.empty(); ++r) {
    for (size_t i = 0; i < inputs[r].size() / TypeBytes(call.type); ++i)
      OracleScale(call.type, created.factors[r], inputs[r].data(), scaled[r].data(), i);
  }
  Call sum = call;
  if (!created.factors.empty()) sum.op = ReduceOp::kSum;
  Bytes result;
  for (int chunk = 0; chunk < n; ++chunk) {
    const size_t count = ChunkElements(call.count, n, chunk);
    std::vector<Bytes> of_hosts;
    for (int host = 0; host < grid.hosts(); ++host) {
      std::vector<Bytes> members;
      for (int member = 0; member < grid.members(); ++member) members.push_back(scaled[grid.RankAt(host, member)]);
      const int first = (chunk / grid.hosts() + 1) % grid.members();
      of_hosts.push_back(Fold(sum, {}, members, ChunkBegin(call.count, n, chunk), count, first, 0));
    }
    const Bytes part = Fold(sum, {}, of_hosts, 0, count, (chunk + 1) % grid.hosts(), n);
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

Bytes ExpectedOn(const HostGrid& grid, const Call& call, const std::vector<Bytes>& inputs, int rank) {
  const bool two_level = IsAllreduce(call.kind) && call.count * TypeBytes(call.type) > kMostOneLevelBytes;
  return two_level && grid.exists() ? ExpectedInLevels(call, inputs, grid) : ExpectedOutput(call, inputs, rank);
}

Bytes ExpectedOutput(const Call& call, const std::vector<Bytes>& inputs, int rank, const CreatedOp& created) {
  const int n = static_cast<int>(inputs.size());
  if (!created.factors.empty()) {
    Call sum = call;
    sum.op = ReduceOp::kSum;
    return ExpectedOutput(sum, Scale(call, inputs, created.factors), rank);
  }
  Bytes result;
  const auto append = [&result](const Bytes& part) { result.insert(result.end(), part.begin(), part.end()); };
  switch (call.kind) {
    case CollectiveKind::kAllreduce:
      for (int c = 0; c < n; ++c) {
        append(
            Fold(call, created, inputs, ChunkBegin(call.count, n, c), ChunkElements(call.count, n, c), (c + 1) % n, n));
      }
      break;
    case CollectiveKind::kReduceScatter:
      return Fold(call, created, inputs, call.count * rank, call.count, (rank + 1) % n, n);
    case CollectiveKind::kAllgather:
      for (const Bytes& input : inputs) append(input);
      break;
    case CollectiveKind::kBroadcast:
      return inputs[call.root];
    case CollectiveKind::kReduce:
      if (rank == call.root) return Fold(call, created, inputs, 0, call.count, (call.root + 1) % n, n);
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

Bytes ExpectedTreeOutput(const Call& call, const std::vector<Bytes>& inputs, const CreatedOp& created) {
  int size = 4;
  while (size < static_cast<int>(inputs.size())) size *= 4;
  if (created.factors.empty()) return FoldQuarters(call, created, inputs, 0, size);
  Call sum = call;
  sum.op = ReduceOp::kSum;
  return FoldQuarters(sum, {}, Scale(call, inputs, created.factors), 0, size);
}

}  // namespace annulus
