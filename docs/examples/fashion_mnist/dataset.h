// Dataset: labelled 28 x 28 grey images of Fashion-MNIST, read from the original gzip-compressed IDX files.
//
// Threads: a Dataset does not change once loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fashion {

inline constexpr int kPixels = 28 * 28;
inline constexpr int kClasses = 10;
inline constexpr const char* kDefaultFolder = "/usr/share/datasets/fashion-mnist";

struct Dataset {
  std::vector<uint8_t> pixels;  // size() x kPixels, row by row.
  std::vector<uint8_t> labels;  // Each below kClasses.
  size_t size() const { return labels.size(); }
};

// Reads `folder`/`prefix`-images-idx3-ubyte.gz and -labels-idx1-ubyte.gz; `prefix` is "train" or "t10k". Keeps the
// first `limit` images (0: all). Returns "" or one sentence on what is wrong and how to get the files.
std::string LoadDataset(const std::string& folder, const std::string& prefix, size_t limit, Dataset* dataset);

}  // namespace fashion
