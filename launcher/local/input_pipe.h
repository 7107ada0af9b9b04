// InputPipe: rank 0's standard input on an agent's host, fed from annulus-run's own.
//
// Threads: one.
#pragma once

#include <string>
#include <string_view>

namespace annulus {

class InputPipe {
 public:
  InputPipe() = default;
  InputPipe(const InputPipe&) = delete;
  InputPipe& operator=(const InputPipe&) = delete;
  ~InputPipe() { Close(); }

  // Returns false, with errno set, when the system has no pipe.
  bool Open();
  int reader() const { return reader_; }  // The end for the rank.
  void CloseReader();

  int writer() const { return writer_; }  // To poll for writing while pending().
  bool pending() const { return !buffer_.empty(); }

  void Add(std::string_view bytes);
  // Ends the input once everything is written.
  void End();
  // Returns true when the last pending byte was written, or nobody reads any more.
  bool WriteSome();
  void Close();

 private:
  int reader_ = -1;
  int writer_ = -1;
  std::string buffer_;
  bool ended_ = false;
};

}  // namespace annulus
