#include "launcher/local/input_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace annulus {

bool InputPipe::Open() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  reader_ = ends[0];
  writer_ = ends[1];
  fcntl(writer_, F_SETFL, O_NONBLOCK);
  return true;
}

void InputPipe::CloseReader() {
  if (reader_ >= 0) close(reader_);
  reader_ = -1;
}

void InputPipe::Add(std::string_view bytes) {
  if (writer_ >= 0) buffer_.append(bytes);
}

void InputPipe::End() {
  ended_ = true;
  if (buffer_.empty()) Close();
}

bool InputPipe::WriteSome() {
  const ssize_t written = write(writer_, buffer_.data(), buffer_.size());
  if (written < 0) {
    if (errno == EINTR || errno == EAGAIN) return false;
    Close();
    return true;
  }
  buffer_.erase(0, static_cast<size_t>(written));
  if (!buffer_.empty()) return false;
  if (ended_) Close();
  return true;
}

void InputPipe::Close() {
  CloseReader();
  buffer_.clear();
  if (writer_ >= 0) close(writer_);
  writer_ = -1;
}

}  // namespace annulus
