// The functions of MPI that libannulus_mpiwrapper.so has: data between processes, for every type and operation.
//
// Threads: one; each rank is a process.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <complex>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "frameworks/mpi/abi.h"
#include "tests/frameworks/mpi_process.h"

namespace annulus_mpi {
namespace {

constexpr Handle kWorld = kCOMM_WORLD;
constexpr size_t kCount = 1000;

template <typename T>
T ValueOf(int rank, size_t index) {
  return static_cast<T>(static_cast<int>((static_cast<size_t>(rank) * 7 + index) % 5) + 1);
}

template <typename T>
std::vector<T> ValuesOf(int rank, size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = ValueOf<T>(rank, i);
  return values;
}

template <typename T>
T Combine(Handle op, T left, T right) {
  if (op == kSUM) return static_cast<T>(left + right);
  if (op == kPROD) return static_cast<T>(left * right);
  if constexpr (std::is_arithmetic_v<T>) return op == kMIN ? std::min(left, right) : std::max(left, right);
  return left;
}

template <typename T>
std::vector<T> Reduced(Handle op, int size, size_t count) {
  std::vector<T> result = ValuesOf<T>(0, count);
  for (int rank = 1; rank < size; ++rank) {
    for (size_t i = 0; i < count; ++i) result[i] = Combine<T>(op, result[i], ValueOf<T>(rank, i));
  }
  return result;
}

using Bytes = std::vector<unsigned char>;

// What one rank gives, and the reduction of all; as bytes, so that one function serves all types.
struct Reduction {
  Handle type;
  Handle op;
  size_t element;  // In bytes.
  Bytes send;
  Bytes expected;
};

template <typename T>
Bytes BytesOf(const std::vector<T>& values) {
  const auto* const first = reinterpret_cast<const unsigned char*>(values.data());
  return Bytes(first, first + values.size() * sizeof(T));
}

// Whether `got` is the elements of `expected` from number `first` on.
void ExpectPart(const Bytes& got, const Reduction& reduction, size_t first) {
  const auto begin = reduction.expected.begin() + static_cast<ptrdiff_t>(first * reduction.element);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), begin)) << "type " << reduction.type << " op " << reduction.op;
}

void ReduceInAllWays(const Wrapper& mpi, int rank, int size, const Reduction& reduction) {
  const auto& [type, op, element, send, expected] = reduction;
  const int count = static_cast<int>(kCount);
  Bytes recv(send.size());
  EXPECT_EQ(mpi("Allreduce", send.data(), recv.data(), count, type, op, kWorld), kSUCCESS);
  ExpectPart(recv, reduction, 0);
  recv = send;
  EXPECT_EQ(mpi("Allreduce", reinterpret_cast<const void*>(kIN_PLACE), recv.data(), count, type, op, kWorld), kSUCCESS);
  ExpectPart(recv, reduction, 0);
  recv = send;
  EXPECT_EQ(mpi("Allreduce", recv.data(), recv.data(), count, type, op, kWorld), kSUCCESS);
  ExpectPart(recv, reduction, 0);
  recv.assign(send.size(), 9);
  EXPECT_EQ(mpi("Reduce", send.data(), recv.data(), count, type, op, size - 1, kWorld), kSUCCESS);
  EXPECT_EQ(recv, rank == size - 1 ? expected : Bytes(send.size(), 9));
  // Rank r gets 3 (r + 1) elements, then all get the same number.
  std::vector<int> counts;
  size_t before = 0;
  for (int each = 0; each < size; ++each) {
    counts.push_back(each < size - 1 ? 3 * (each + 1) : count - 3 * size * (size - 1) / 2);
    if (each < rank) before += static_cast<size_t>(counts.back());
  }
  recv.assign(static_cast<size_t>(counts[static_cast<size_t>(rank)]) * element, 9);
  EXPECT_EQ(mpi("Reduce_scatter", send.data(), recv.data(), counts.data(), type, op, kWorld), kSUCCESS);
  ExpectPart(recv, reduction, before);
  const size_t part = kCount / static_cast<size_t>(size);
  recv.assign(part * element, 9);
  EXPECT_EQ(mpi("Reduce_scatter_block", send.data(), recv.data(), static_cast<int>(part), type, op, kWorld), kSUCCESS);
  ExpectPart(recv, reduction, static_cast<size_t>(rank) * part);
}

template <typename T>
void ReduceByAllOperations(const Wrapper& mpi, int rank, int size, Handle type) {
  for (const Handle op : {kSUM, kPROD, kMIN, kMAX}) {
    if (!std::is_arithmetic_v<T> && op != kSUM && op != kPROD) continue;
    ReduceInAllWays(mpi, rank, size,
                    {type, op, sizeof(T), BytesOf(ValuesOf<T>(rank, kCount)), BytesOf(Reduced<T>(op, size, kCount))});
  }
}

class MpiCallsTest : public testing::TestWithParam<int> {};

TEST_P(MpiCallsTest, ReductionsOfEveryType) {
  const int size = GetParam();
  ForkInitialised(size, [&](const Wrapper& mpi, int rank) {
    ReduceByAllOperations<int8_t>(mpi, rank, size, kINT8_T);
    ReduceByAllOperations<uint8_t>(mpi, rank, size, kUINT8_T);
    ReduceByAllOperations<int16_t>(mpi, rank, size, kINT16_T);
    ReduceByAllOperations<uint16_t>(mpi, rank, size, kUINT16_T);
    ReduceByAllOperations<int32_t>(mpi, rank, size, kINT32_T);
    ReduceByAllOperations<uint32_t>(mpi, rank, size, kUINT32_T);
    ReduceByAllOperations<int64_t>(mpi, rank, size, kINT64_T);
    ReduceByAllOperations<uint64_t>(mpi, rank, size, kUINT64_T);
    ReduceByAllOperations<float>(mpi, rank, size, kFLOAT);
    ReduceByAllOperations<double>(mpi, rank, size, kDOUBLE);
    ReduceByAllOperations<std::complex<float>>(mpi, rank, size, kC_COMPLEX);
    ReduceByAllOperations<std::complex<double>>(mpi, rank, size, kC_DOUBLE_COMPLEX);
  });
}

TEST(MpiCallsTest, SixteenBitIntegersKeepTheirSignAndWrapAround) {
  ForkInitialised(2, [](const Wrapper& mpi, int rank) {
    const int16_t small[] = {static_cast<int16_t>(rank == 0 ? -3 : 2), INT16_MAX};
    int16_t least[2] = {};
    EXPECT_EQ(mpi("Allreduce", &small[0], &least[0], 2, Handle{kINT16_T}, Handle{kMIN}, kWorld), kSUCCESS);
    EXPECT_EQ(least[0], -3);
    EXPECT_EQ(mpi("Allreduce", &small[0], &least[0], 2, Handle{kINT16_T}, Handle{kSUM}, kWorld), kSUCCESS);
    EXPECT_EQ(least[0], -1);
    EXPECT_EQ(least[1], -2);
    const uint16_t large = rank == 0 ? 65535 : 3;
    uint16_t most = 0;
    EXPECT_EQ(mpi("Allreduce", &large, &most, 1, Handle{kUINT16_T}, Handle{kMAX}, kWorld), kSUCCESS);
    EXPECT_EQ(most, 65535);
  });
}

TEST(MpiCallsTest, BitsAndBoolsAreReduced) {
  ForkInitialised(2, [](const Wrapper& mpi, int rank) {
    const uint16_t bits = rank == 0 ? 0x0ff0 : 0x00ff;
    const auto of_bits = [&](Handle op) {
      uint16_t result = 0;
      EXPECT_EQ(mpi("Allreduce", &bits, &result, 1, Handle{kUINT16_T}, op, kWorld), kSUCCESS);
      return result;
    };
    EXPECT_EQ(of_bits(kBAND), 0x00f0);
    EXPECT_EQ(of_bits(kBOR), 0x0fff);
    EXPECT_EQ(of_bits(kBXOR), 0x0f0f);
    const bool flags[] = {false, rank == 0, rank == 1, true};
    const auto of_bools = [&](Handle op) {
      std::array<bool, 4> result{};
      EXPECT_EQ(mpi("Allreduce", &flags[0], result.data(), 4, Handle{kC_BOOL}, op, kWorld), kSUCCESS);
      return result;
    };
    for (const Handle op : {kLOR, kMAX}) EXPECT_EQ(of_bools(op), (std::array{false, true, true, true}));
    for (const Handle op : {kLAND, kMIN}) EXPECT_EQ(of_bools(op), (std::array{false, false, false, true}));
    EXPECT_EQ(of_bools(kLXOR), (std::array{false, true, true, false}));
  });
}

TEST_P(MpiCallsTest, DataGoesToItsPlace) {
  const int size = GetParam();
  ForkInitialised(size, [&](const Wrapper& mpi, int rank) {
    const auto nranks = static_cast<size_t>(size);
    const std::vector<int32_t> own = ValuesOf<int32_t>(rank, 100);
    std::vector<int32_t> everyone;
    for (int each = 0; each < size; ++each) {
      const std::vector<int32_t> values = ValuesOf<int32_t>(each, 100);
      everyone.insert(everyone.end(), values.begin(), values.end());
    }
    const Handle type = kINT32_T;
    std::vector<int32_t> recv(100 * nranks);
    EXPECT_EQ(mpi("Allgather", own.data(), 100, type, recv.data(), 400, Handle{kBYTE}, kWorld), kSUCCESS);
    EXPECT_EQ(recv, everyone);
    recv.assign(100 * nranks, 0);
    std::copy(own.begin(), own.end(), recv.begin() + 100 * rank);
    EXPECT_EQ(mpi("Allgather", reinterpret_cast<const void*>(kIN_PLACE), 0, type, recv.data(), 100, type, kWorld),
              kSUCCESS);
    EXPECT_EQ(recv, everyone);
    // Where it overlaps in another way, the input counts as it was before.
    recv.assign(100 * nranks, 0);
    std::copy(own.begin(), own.end(), recv.begin() + 1);
    EXPECT_EQ(mpi("Allgather", recv.data() + 1, 100, type, recv.data(), 100, type, kWorld), kSUCCESS);
    EXPECT_EQ(recv, everyone);
    for (int root = 0; root < size; ++root) {
      recv.assign(100 * nranks, 0);
      EXPECT_EQ(mpi("Gather", own.data(), 100, type, recv.data(), 100, type, root, kWorld), kSUCCESS);
      EXPECT_EQ(recv, rank == root ? everyone : std::vector<int32_t>(100 * nranks));
      std::vector<int32_t> part(100);
      EXPECT_EQ(mpi("Scatter", everyone.data(), 100, type, part.data(), 100, type, root, kWorld), kSUCCESS);
      EXPECT_EQ(part, own);
      std::vector<int32_t> sent = rank == root ? own : part;
      EXPECT_EQ(mpi("Bcast", sent.data(), 100, type, root, kWorld), kSUCCESS);
      EXPECT_EQ(sent, ValuesOf<int32_t>(root, 100));
    }
    // Part s of rank r is r * size + s.
    std::vector<int32_t> out(nranks);
    std::vector<int32_t> expected(nranks);
    for (int each = 0; each < size; ++each) {
      out[static_cast<size_t>(each)] = rank * size + each;
      expected[static_cast<size_t>(each)] = each * size + rank;
    }
    std::vector<int32_t> in(nranks);
    EXPECT_EQ(mpi("Alltoall", out.data(), 1, type, in.data(), 1, type, kWorld), kSUCCESS);
    EXPECT_EQ(in, expected);
    EXPECT_EQ(mpi("Alltoall", reinterpret_cast<const void*>(kIN_PLACE), 0, type, out.data(), 1, type, kWorld),
              kSUCCESS);
    EXPECT_EQ(out, expected);
    EXPECT_EQ(mpi("Barrier", kWorld), kSUCCESS);
  });
}

TEST_P(MpiCallsTest, MessagesHaveTagsAndReceivesFromAnySourceAStatus) {
  const int size = GetParam();
  ForkInitialised(size, [&](const Wrapper& mpi, int rank) {
    const Handle type = kINT;
    const int any_source = kANY_SOURCE;
    const int any_tag = kANY_TAG;
    Status status{};
    if (rank != 0) {
      int number = rank * 10;
      EXPECT_EQ(mpi("Send", &number, 1, type, 0, rank, kWorld), kSUCCESS);
      ++number;
      EXPECT_EQ(mpi("Send", &number, 1, type, 0, 100, kWorld), kSUCCESS);
      return;
    }
    for (int peer = 1; peer < size; ++peer) {  // The later tag first.
      int number = -1;
      EXPECT_EQ(mpi("Recv", &number, 1, type, any_source, 100, kWorld, &status), kSUCCESS);
      EXPECT_EQ(status.tag, 100);
      EXPECT_EQ(number, status.source * 10 + 1);
    }
    for (int peer = 1; peer < size; ++peer) {
      int number = -1;
      Handle request = kREQUEST_NULL;
      EXPECT_EQ(mpi("Irecv", &number, 1, type, any_source, any_tag, kWorld, &request), kSUCCESS);
      EXPECT_EQ(mpi("Wait", &request, &status), kSUCCESS);
      EXPECT_EQ(status.tag, status.source);
      EXPECT_EQ(number, status.source * 10);
      int received = -1;
      EXPECT_EQ(mpi("Get_count", &status, type, &received), kSUCCESS);
      EXPECT_EQ(received, 1);
    }
  });
}

// Small messages from a named source take another way once some have come.
TEST_P(MpiCallsTest, EachReceiveHasAStatus) {
  const int size = GetParam();
  ForkInitialised(size, [&](const Wrapper& mpi, int rank) {
    const Handle type = kINT;
    for (int i = 0; i < 50; ++i) {
      int number = i;
      if (rank == 0) {
        EXPECT_EQ(mpi("Send", &number, 1, type, 1, 0, kWorld), kSUCCESS);
      }
      EXPECT_EQ(mpi("Barrier", kWorld), kSUCCESS);
      if (rank != 1) continue;
      Status status{};
      number = -1;
      EXPECT_EQ(mpi("Recv", &number, 1, type, 0, 0, kWorld, &status), kSUCCESS);
      EXPECT_EQ(number, i);
      EXPECT_EQ(status.source, 0);
      EXPECT_EQ(status.tag, 0);
      int received = -1;
      EXPECT_EQ(mpi("Get_count", &status, type, &received), kSUCCESS);
      EXPECT_EQ(received, 1) << "message " << i;
    }
  });
}

TEST_P(MpiCallsTest, MessagesArrive) {
  const int size = GetParam();
  ForkInitialised(size, [&](const Wrapper& mpi, int rank) {
    const int next = (rank + 1) % size;
    const int prev = (rank + size - 1) % size;
    const Handle type = kDOUBLE;
    // One that fits into a slot, and one that does not.
    for (const size_t count : {size_t{10}, size_t{300000}}) {
      const int n = static_cast<int>(count);
      const std::vector<double> own = ValuesOf<double>(rank, count);
      std::vector<double> got(count);
      Status status{};
      EXPECT_EQ(mpi("Sendrecv", own.data(), n, type, next, 0, got.data(), n, type, prev, 0, kWorld, &status), kSUCCESS);
      EXPECT_EQ(got, ValuesOf<double>(prev, count));
      EXPECT_EQ(status.source, prev);
      int received = -1;
      EXPECT_EQ(mpi("Get_count", &status, type, &received), kSUCCESS);
      EXPECT_EQ(received, n);
      got.assign(count, 0);
      Handle requests[2] = {};
      EXPECT_EQ(mpi("Irecv", got.data(), n, type, prev, 0, kWorld, &requests[0]), kSUCCESS);
      EXPECT_EQ(mpi("Isend", own.data(), n, type, next, 0, kWorld, &requests[1]), kSUCCESS);
      if (count == 10) {
        EXPECT_EQ(mpi("Waitall", 2, &requests[0], static_cast<Status*>(nullptr)), kSUCCESS);
      } else {
        int done = 0;
        while (done == 0) ASSERT_EQ(mpi("Test", &requests[0], &done, &status), kSUCCESS);
        EXPECT_EQ(status.source, prev);
        EXPECT_EQ(mpi("Wait", &requests[1], static_cast<Status*>(nullptr)), kSUCCESS);
      }
      EXPECT_EQ(requests[0], Handle{kREQUEST_NULL});
      EXPECT_EQ(got, ValuesOf<double>(prev, count));
    }
    double number = rank;
    if (rank == 0) {
      EXPECT_EQ(mpi("Send", &number, 1, type, 1, 0, kWorld), kSUCCESS);
    } else if (rank == 1) {
      EXPECT_EQ(mpi("Recv", &number, 1, type, 0, 0, kWorld, static_cast<Status*>(nullptr)), kSUCCESS);
      EXPECT_EQ(number, 0);
    }
    // Nobody's.
    Handle request = 99;
    EXPECT_EQ(mpi("Isend", &number, 1, type, static_cast<int>(kPROC_NULL), 0, kWorld, &request), kSUCCESS);
    EXPECT_EQ(request, Handle{kREQUEST_NULL});
    EXPECT_EQ(mpi("Wait", &request, static_cast<Status*>(nullptr)), kSUCCESS);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, MpiCallsTest, testing::Values(2, 3));

}  // namespace
}  // namespace annulus_mpi
