// Checkpoint files.
//
// Threads: see checkpoint.h.
#include "docs/examples/fashion_mnist/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "docs/examples/fashion_mnist/network.h"

namespace fashion {
namespace {

struct Header {
  char magic[8];
  uint64_t parameters;
  int64_t epochs_done;
  uint64_t seed;
  uint64_t digest;  // Digest of the floats that follow.
};
constexpr char kMagic[8] = {'F', 'M', 'N', 'I', 'S', 'T', '0', '1'};

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

uint64_t Digest(const std::vector<float>& floats, uint64_t hash) {  // FNV-1a over 32-bit words.
  for (const float value : floats) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    hash = (hash ^ bits) * 0x100000001b3u;
  }
  return hash;
}

uint64_t DigestOf(const Checkpoint& checkpoint) {
  return Digest(checkpoint.velocities, Digest(checkpoint.parameters, 0xcbf29ce484222325u));
}

bool Write(std::FILE* file, const void* data, size_t bytes) { return std::fwrite(data, 1, bytes, file) == bytes; }
bool Read(std::FILE* file, void* data, size_t bytes) { return std::fread(data, 1, bytes, file) == bytes; }

}  // namespace

std::string SaveCheckpoint(const std::string& path, const Checkpoint& checkpoint) {
  const std::string fresh = path + ".new";
  const auto failure = [&] {
    const std::string error = "cannot write the checkpoint " + path + ": " + std::strerror(errno);
    unlink(fresh.c_str());
    return error;
  };
  Header header{{}, kParameters, checkpoint.epochs_done, checkpoint.seed, DigestOf(checkpoint)};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  File file(std::fopen(fresh.c_str(), "wb"));
  constexpr size_t kBytes = kParameters * sizeof(float);
  if (!file || !Write(file.get(), &header, sizeof(header)) ||
      !Write(file.get(), checkpoint.parameters.data(), kBytes) ||
      !Write(file.get(), checkpoint.velocities.data(), kBytes)) {
    return failure();
  }
  // On disk before it takes the old one's name.
  if (std::fflush(file.get()) != 0 || fsync(fileno(file.get())) != 0) return failure();
  file.reset();
  return std::rename(fresh.c_str(), path.c_str()) == 0 ? "" : failure();
}

std::string LoadCheckpoint(const std::string& path, Checkpoint* checkpoint) {
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) return "cannot read the checkpoint " + path + ": " + std::strerror(errno);
  Header header{};
  if (!Read(file.get(), &header, sizeof(header)) || std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) {
    return path + " is no checkpoint of this program";
  }
  if (header.parameters != kParameters || header.epochs_done < 0) return path + " is of another network";
  Checkpoint loaded{header.epochs_done, header.seed, std::vector<float>(kParameters), std::vector<float>(kParameters)};
  constexpr size_t kBytes = kParameters * sizeof(float);
  const bool whole = Read(file.get(), loaded.parameters.data(), kBytes) &&
                     Read(file.get(), loaded.velocities.data(), kBytes) && std::fgetc(file.get()) == EOF;
  if (!whole || DigestOf(loaded) != header.digest) return "the checkpoint " + path + " is damaged";
  *checkpoint = std::move(loaded);
  return "";
}

}  // namespace fashion
