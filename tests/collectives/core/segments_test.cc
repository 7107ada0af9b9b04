// Segments: every byte of the virtual buffer has its place, in whatever order the places are asked for.
#include "collectives/core/segments.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace annulus {
namespace {

constexpr size_t kElementBytes = 4;

// The places of all bytes, in order, as the head of segments.h describes them.
struct Bytes {
  std::vector<const std::byte*> input;
  std::vector<std::byte*> output;
};

Bytes LayOut(const std::vector<Tensor>& tensors, int nranks) {
  Bytes bytes;
  for (int chunk = 0; chunk < nranks; ++chunk) {
    for (const Tensor& tensor : tensors) {
      const size_t begin = ChunkBegin(tensor.count, nranks, chunk) * kElementBytes;
      const size_t size = ChunkElements(tensor.count, nranks, chunk) * kElementBytes;
      for (size_t at = begin; at < begin + size; ++at) {
        bytes.input.push_back(tensor.input.data + at);
        bytes.output.push_back(tensor.output.data + at);
      }
    }
  }
  return bytes;
}

class SegmentsTest : public testing::TestWithParam<int> {
 protected:
  // Tensors of 0 to 20 elements, side by side.
  std::vector<Tensor> Draw() {
    std::vector<Tensor> tensors(1 + random_() % 12);
    size_t at = 0;
    for (Tensor& tensor : tensors) {
      tensor.count = random_() % 21;
      tensor.input.data = input_.data() + at;
      tensor.output.data = output_.data() + at;
      at += tensor.count * kElementBytes;
    }
    return tensors;
  }

  static void Check(const Segments& segments, const Bytes& bytes, size_t offset) {
    const Segments::Place place = segments.At(offset);
    ASSERT_GT(place.bytes, 0u) << offset;
    ASSERT_LE(offset + place.bytes, bytes.input.size());
    for (size_t i = 0; i < place.bytes; ++i) {
      ASSERT_EQ(place.input.data + i, bytes.input[offset + i]) << offset << " + " << i;
      ASSERT_EQ(place.output.data + i, bytes.output[offset + i]) << offset << " + " << i;
    }
  }

  std::minstd_rand random_{static_cast<unsigned>(GetParam())};
  std::vector<std::byte> input_ = std::vector<std::byte>(1024);
  std::vector<std::byte> output_ = std::vector<std::byte>(1024);
};

TEST_P(SegmentsTest, PlacesMayBeAskedForInAnyOrder) {
  Segments segments;
  for (int round = 0; round < 50; ++round) {
    const std::vector<Tensor> tensors = Draw();
    const Bytes bytes = LayOut(tensors, GetParam());
    segments.Assign(tensors, kElementBytes, GetParam());
    EXPECT_EQ(segments.At(bytes.input.size()).bytes, 0u) << "behind the end";
    // As schedules ask: piece by piece.
    for (size_t at = 0; at < bytes.input.size(); at += segments.At(at).bytes)
      ASSERT_NO_FATAL_FAILURE(Check(segments, bytes, at));
    for (int i = 0; i < 50 && !bytes.input.empty(); ++i)
      ASSERT_NO_FATAL_FAILURE(Check(segments, bytes, random_() % bytes.input.size()));
    if (round % 7 == 0) segments.Clear();
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SegmentsTest, testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace annulus
