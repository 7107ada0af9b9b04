// TransportSettings: the user's settings for transports, by name. Only the backend that a setting is for knows its
// meaning. Flags and words are stored as numbers; a word's number is its enum value.
//
// Threads: a value; one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace annulus {

class TransportSettings {
 public:
  // `name` as in annulus_config_t. The last value counts.
  void Set(std::string_view name, int64_t number) { Put({std::string(name), number, {}}); }
  void Set(std::string_view name, std::string text) { Put({std::string(name), 0, std::move(text)}); }

  // 0 when it is not set.
  int64_t Number(std::string_view name) const { return Find(name).number; }
  // "" when it is not set.
  const std::string& Text(std::string_view name) const { return Find(name).text; }

 private:
  struct Value {
    std::string name;
    int64_t number = 0;
    std::string text;
  };

  void Put(Value value) {
    std::erase_if(values_, [&](const Value& old) { return old.name == value.name; });
    values_.push_back(std::move(value));
  }

  const Value& Find(std::string_view name) const {
    for (const Value& value : values_) {
      if (value.name == name) return value;
    }
    static const Value kNone;
    return kNone;
  }

  std::vector<Value> values_;
};

}  // namespace annulus
