// FakeEnvironment: environment variables that exist only in a test.
//
// Threads: one at a time.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "collectives/core/options.h"

namespace annulus {

class FakeEnvironment {
 public:
  FakeEnvironment(std::initializer_list<std::pair<const std::string, std::string>> variables) : variables_(variables) {}

  FakeEnvironment With(const std::string& variable, const std::string& value) const {
    FakeEnvironment changed = *this;
    changed.variables_[variable] = value;
    return changed;
  }
  FakeEnvironment Without(const std::string& variable) const {
    FakeEnvironment changed = *this;
    changed.variables_.erase(variable);
    return changed;
  }
  // Variables of both; `other`'s where both have one.
  FakeEnvironment And(const FakeEnvironment& other) const {
    FakeEnvironment changed = other;
    changed.variables_.insert(variables_.begin(), variables_.end());
    return changed;
  }

  Status Read(Options* options) const {
    return ReadEnvironment(
        [this](const char* variable) {
          const auto found = variables_.find(variable);
          return found == variables_.end() ? nullptr : found->second.c_str();
        },
        options);
  }

 private:
  std::map<std::string, std::string> variables_;
};

}  // namespace annulus
