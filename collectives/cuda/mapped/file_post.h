// FilePost: descriptors of GPUs' memory, sent from process to process of a host over a UNIX socket, whose name is
// random and in no file system.
//
// A letter has come when Send returns, though nobody has taken it: the kernel keeps it. The descriptors of one that
// nobody takes are closed with the post.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "collectives/reduce/shared_memory.h"

namespace annulus {

// Most descriptors of one letter; the kernel takes 253.
constexpr size_t kMostFiles = 64;

// Memory that lies in one piece: one descriptor.
struct FilePiece {
  uint64_t bytes = 0;
  uint64_t id = 0;  // No other memory of that process has it, not even at the same address later.
};

// Memory that lies in pieces, side by side.
struct FileLetter {
  FileLetter() = default;
  FileLetter(FileLetter&& other) noexcept { *this = std::move(other); }
  FileLetter& operator=(FileLetter&& other) noexcept;
  ~FileLetter();

  uint64_t process = 0;  // As in SharedPlace.
  uint64_t run = 0;      // Number of the memory in that process.
  std::vector<FilePiece> pieces;
  std::vector<int> files;  // One for each piece; closed with the letter.
};

class FilePost {
 public:
  FilePost() = default;
  ~FilePost() { Close(); }
  FilePost(const FilePost&) = delete;
  FilePost& operator=(const FilePost&) = delete;

  // Errors: kSystem.
  Status Open();
  bool is_open() const { return socket_ >= 0; }
  const SharedAddress& address() const { return address_; }
  void Close();

  // Takes the next letter that has come, without waiting; false: there is none. What is no letter, or not from one who
  // knows the secret, is thrown away.
  bool Take(FileLetter* letter);

  // The letter has as many descriptors as pieces, and keeps them. Errors: kSystem.
  static Status Send(const SharedAddress& to, const FileLetter& letter);

 private:
  int socket_ = -1;
  SharedAddress address_;
};

}  // namespace annulus
