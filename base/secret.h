// Secret: a text, such as the job key. Its memory is overwritten before it is freed, so that no copy stays behind.
//
// Threads: as std::string.
#pragma once

#include <string.h>  // explicit_bzero

#include <string>
#include <utility>

namespace annulus {

class Secret {
 public:
  Secret() = default;
  Secret(const char* text) : text_(text) {}         // NOLINT: takes the place of a string.
  Secret(const std::string& text) : text_(text) {}  // NOLINT: likewise.
  Secret(const Secret& other) = default;
  // Swapped, since a short text lies in the object itself, where a moved string would leave it.
  Secret(Secret&& other) noexcept { text_.swap(other.text_); }
  Secret& operator=(Secret other) noexcept {
    text_.swap(other.text_);
    return *this;
  }
  ~Secret() { explicit_bzero(text_.data(), text_.capacity()); }

  const std::string& text() const { return text_; }
  operator const std::string&() const { return text_; }  // NOLINT: likewise.
  bool empty() const { return text_.empty(); }
  // The secret with more behind it.
  Secret operator+(const std::string& more) const {
    Secret joined;
    joined.text_.reserve(text_.size() + more.size());  // So that no copy is left behind when it grows.
    joined.text_.append(text_).append(more);
    return joined;
  }

 private:
  std::string text_;
};

}  // namespace annulus
