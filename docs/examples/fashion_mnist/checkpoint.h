// Checkpoint: what training needs to go on after a stop, in one file that is either the old or the new one, never half.
//
// File: a Header, then kParameters weights and kParameters velocities as float32, in the machine's byte order.
//
// Threads: plain functions and values. Only rank 0 touches the file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fashion {

struct Checkpoint {
  int64_t epochs_done = 0;
  uint64_t seed = 0;  // Seed of the shuffles, so that a resumed run sees the images in the same order.
  std::vector<float> parameters;
  std::vector<float> velocities;
};

// Returns "" or what went wrong. Writes beside `path` and renames, so a crash leaves the last checkpoint whole.
std::string SaveCheckpoint(const std::string& path, const Checkpoint& checkpoint);

// Returns "" or what is wrong with the file; *checkpoint is set only on success.
std::string LoadCheckpoint(const std::string& path, Checkpoint* checkpoint);

}  // namespace fashion
