// UserConfig: an annulus_config_t that owns the texts of its settings. May be copied.
//
// Threads: one at a time.
#pragma once

#include <annulus.h>

#include <memory>
#include <string>
#include <vector>

namespace annulus {

class UserConfig : public annulus_config_t {
 public:
  // All values come from `sources`.
  explicit UserConfig(uint32_t sources = ANNULUS_FROM_ENVIRONMENT | ANNULUS_FROM_LAUNCHER) : annulus_config_t{} {
    static_cast<void>(annulus_config_init(this, sizeof(annulus_config_t), sources));
  }
  UserConfig(const UserConfig& other) : annulus_config_t(other), texts_(other.texts_), pointers_(other.pointers_) {
    settings = pointers_.empty() ? nullptr : pointers_.data();
  }
  UserConfig& operator=(const UserConfig& other) {
    annulus_config_t::operator=(other);
    texts_ = other.texts_;
    pointers_ = other.pointers_;
    settings = pointers_.empty() ? nullptr : pointers_.data();
    return *this;
  }

  // Adds "name=value" to the settings; the latest of a name counts.
  void Set(const std::string& name, const std::string& value) {
    texts_.push_back(std::make_shared<const std::string>(name + "=" + value));
    if (!pointers_.empty()) pointers_.pop_back();
    pointers_.push_back(texts_.back()->c_str());
    pointers_.push_back(nullptr);
    settings = pointers_.data();
  }
  void Set(const std::string& name, int64_t value) { Set(name, std::to_string(value)); }

 private:
  std::vector<std::shared_ptr<const std::string>> texts_;  // Shared by copies, so that pointers stay valid.
  std::vector<const char*> pointers_;
};

}  // namespace annulus
