#include "collectives/api/config.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <variant>
#include <vector>

namespace annulus {
namespace {

// A setting that is also a field of annulus_config_t.
struct Field {
  const Setting* setting;
  std::variant<int32_t annulus_config_t::*, int64_t annulus_config_t::*, const char * annulus_config_t::*> member;
};

// The rows of settings whose name is that of a field.
template <typename Config>
std::vector<Field> ListFields() {
  std::vector<Field> fields;
#define ANNULUS_SETTING(name, ...) \
  if constexpr (requires(Config config) { config.name; }) fields.push_back({&SettingNamed(#name), &Config::name});
#include "collectives/core/all_settings.inc"
#undef ANNULUS_SETTING
  return fields;
}

const std::vector<Field>& Fields() {
  static const std::vector<Field> fields = ListFields<annulus_config_t>();
  return fields;
}

// Owns the texts of all filled-in configs, each distinct text once, because a config has no end at which it could free
// them. There are few: the texts of the environment. Any thread.
class ConfigTexts {
 public:
  static ConfigTexts& OfProcess() {
    static ConfigTexts texts;
    return texts;
  }
  const char* Keep(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return texts_.insert(text).first->c_str();
  }

 private:
  std::mutex mutex_;
  std::set<std::string> texts_;
};

const char* TextForConfig(const Setting& setting, const Options& options) {
  if (!setting.is_text()) return setting.allowed.words[static_cast<size_t>(setting.number(options))];
  const std::string& text = setting.TextOf(options);
  if (text.empty()) return "";
  // No copy of a secret may outlive its use. The environment keeps it as long as the process lives: glibc neither frees
  // nor changes the old value of a variable, even when it is set again.
  if (setting.allowed.kind == SettingKind::kSecret) return SettingVariable(setting);
  return ConfigTexts::OfProcess().Keep(text);
}

// End of the last field of the first version; no smaller struct was ever published.
constexpr size_t kSmallestConfigBytes = offsetof(annulus_config_t, log_level) + sizeof(const char*);

}  // namespace

Status InitConfig(annulus_config_t* config) {
  Options options;
  ANNULUS_RETURN_IF_ERROR(ReadEnvironment(&options));
  std::memset(config, 0, sizeof *config);
  config->struct_bytes = sizeof *config;
  for (const Field& field : Fields()) {
    const auto fill = [&](auto member) {
      using Value = std::remove_reference_t<decltype(config->*member)>;
      if constexpr (std::is_same_v<Value, const char*>) {
        config->*member = TextForConfig(*field.setting, options);
      } else {
        config->*member = static_cast<Value>(field.setting->number(options));
      }
    };
    std::visit(fill, field.member);
  }
  return Status();
}

Status ToOptions(const annulus_config_t& config, Options* options) {
  if (config.struct_bytes < kSmallestConfigBytes) {
    return Status::Invalid("config->struct_bytes is " + std::to_string(config.struct_bytes) +
                           "; fill the struct with annulus_config_init first");
  }
  annulus_config_t known{};
  std::memcpy(&known, &config, config.struct_bytes < sizeof known ? config.struct_bytes : sizeof known);
  Options result;
  for (const Field& field : Fields()) {
    const std::string name = FullName(*field.setting);
    const auto take = [&](auto member) {
      const auto value = known.*member;
      if constexpr (std::is_same_v<decltype(value), const char* const>) {
        return value == nullptr ? Status() : SetFromText(*field.setting, name, value, &result);
      } else {
        return SetFromNumber(*field.setting, name, value, &result);
      }
    };
    ANNULUS_RETURN_IF_ERROR(std::visit(take, field.member));
  }
  // The process's, and not the program's to choose.
  const JobRun run = ReadRunOfProcess();
  result.run_id = run.id;
  result.restart = run.restart;
  *options = std::move(result);
  return Status();
}

}  // namespace annulus
