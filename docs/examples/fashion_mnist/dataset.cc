// IDX files: a magic number, the dimensions as big-endian 32-bit integers, then one byte per item.
//
// Threads: see dataset.h.
#include "docs/examples/fashion_mnist/dataset.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>

namespace fashion {
namespace {

constexpr uint32_t kImagesMagic = 0x00000803;  // Unsigned bytes in three dimensions.
constexpr uint32_t kLabelsMagic = 0x00000801;  // Unsigned bytes in one.
constexpr uint32_t kMaxItems = 1'000'000;      // Far above the set's 60,000: a larger number is a broken file.

struct CloseGzip {
  void operator()(gzFile file) const { gzclose(file); }
};
using GzipFile = std::unique_ptr<std::remove_pointer_t<gzFile>, CloseGzip>;

bool ReadAll(gzFile file, uint8_t* to, size_t bytes) {
  while (bytes > 0) {
    const int done = gzread(file, to, static_cast<unsigned>(std::min<size_t>(bytes, 1u << 30)));
    if (done <= 0) return false;
    to += done;
    bytes -= static_cast<size_t>(done);
  }
  return true;
}

bool ReadNumber(gzFile file, uint32_t* number) {
  uint8_t bytes[4];
  if (!ReadAll(file, bytes, sizeof(bytes))) return false;
  *number = uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
  return true;
}

// Reads at most `limit` items of `item_dimensions` each.
std::string ReadIdx(const std::string& path, uint32_t expected_magic, std::span<const uint32_t> item_dimensions,
                    size_t limit, std::vector<uint8_t>* items) {
  const GzipFile file(gzopen(path.c_str(), "rb"));
  if (!file) {
    return "cannot read " + path + ": " + std::strerror(errno) +
           ". Install the Debian package dataset-fashion-mnist (apt-get install dataset-fashion-mnist), or name the "
           "folder that holds the files with --data";
  }
  const std::string broken = path + " is damaged or no Fashion-MNIST file; reinstall dataset-fashion-mnist";
  uint32_t magic = 0, count = 0;
  if (!ReadNumber(file.get(), &magic) || magic != expected_magic) return broken;
  if (!ReadNumber(file.get(), &count) || count == 0 || count > kMaxItems) return broken;
  size_t item_bytes = 1;
  for (const uint32_t expected : item_dimensions) {
    uint32_t dimension = 0;
    if (!ReadNumber(file.get(), &dimension) || dimension != expected) return broken;
    item_bytes *= dimension;
  }
  const size_t wanted = limit == 0 ? count : std::min<size_t>(limit, count);
  items->resize(wanted * item_bytes);
  return ReadAll(file.get(), items->data(), items->size()) ? "" : broken;
}

}  // namespace

std::string LoadDataset(const std::string& folder, const std::string& prefix, size_t limit, Dataset* dataset) {
  constexpr uint32_t kImageDimensions[] = {28, 28};
  const std::string stem = folder + "/" + prefix;
  std::string error = ReadIdx(stem + "-images-idx3-ubyte.gz", kImagesMagic, kImageDimensions, limit, &dataset->pixels);
  if (error.empty()) error = ReadIdx(stem + "-labels-idx1-ubyte.gz", kLabelsMagic, {}, limit, &dataset->labels);
  if (!error.empty()) return error;
  const bool labels_fit =
      std::all_of(dataset->labels.begin(), dataset->labels.end(), [](int l) { return l < kClasses; });
  if (!labels_fit || dataset->pixels.size() != dataset->labels.size() * kPixels) {
    return "the images and labels in " + folder + " do not belong together; reinstall dataset-fashion-mnist";
  }
  return "";
}

}  // namespace fashion
