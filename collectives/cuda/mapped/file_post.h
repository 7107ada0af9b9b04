// FilePost and FileSender: descriptors of GPUs' memory, sent from process to process of a host over UNIX sockets with
// random names that are in no file system.
//
// Whoever awaits letters has a datagram socket for each sender, connected to the sender's: so the kernel refuses what
// any other process sends there, and there is no queue of connections that others could fill. The sender's socket takes
// nothing.
//
// A letter has come when Send returns, though nobody has taken it: the kernel keeps it. The descriptors of one that
// nobody takes are closed with the post.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
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

class FileSender {
 public:
  FileSender() = default;
  ~FileSender();
  FileSender(const FileSender&) = delete;
  FileSender& operator=(const FileSender&) = delete;

  // Does nothing when it is open. Errors: kSystem.
  Status Open();
  // Tells others from whom letters come; as SharedPlace::from.
  uint64_t name() const { return name_; }

  // The letter has as many descriptors as pieces, and keeps them. Open comes first. Errors: kSystem.
  Status Send(const SharedAddress& to, const FileLetter& letter);

 private:
  int socket_ = -1;
  uint64_t name_ = 0;
};

class FilePost {
 public:
  FilePost() = default;
  ~FilePost() { Close(); }
  FilePost(const FilePost&) = delete;
  FilePost& operator=(const FilePost&) = delete;

  // From now on letters may come from that sender, whose socket must be open. Errors: kSystem.
  Status Await(uint64_t from);
  // Where they are sent to, after Await.
  const SharedAddress& address() const { return address_; }
  void Close();

  // Takes the next letter that has come from that sender, without waiting; false: there is none. What is no letter, or
  // does not have the secret, is thrown away.
  bool Take(uint64_t from, FileLetter* letter);

 private:
  struct Box {
    uint64_t from = 0;
    int socket = -1;
  };
  // Letters that one Take looks at.
  static constexpr int kMostLooks = 64;

  SharedAddress address_;
  std::vector<Box> boxes_;
};

}  // namespace annulus
