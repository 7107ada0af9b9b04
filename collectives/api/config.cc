#include "collectives/api/config.h"

#include <cstring>
#include <span>
#include <type_traits>

#include "base/log.h"
#include "base/secret.h"
#include "collectives/api/structs.h"

namespace annulus {
namespace {

using c_api::CheckStructBytes;
using c_api::ReadStruct;

constexpr uint32_t kAllSources = ANNULUS_FROM_ENVIRONMENT | ANNULUS_FROM_LAUNCHER;
constexpr const char* kType = "annulus_config_t";

// Every version has the fields up to these.
constexpr size_t kSmallestBytes = offsetof(annulus_config_t, timeout_ms);
constexpr size_t kSmallestStore = offsetof(annulus_store_t, get) + sizeof(annulus_store_t::get);

// The number of a field that was not given.
int64_t Absent(const Setting& setting) { return setting.default_number < 0 ? setting.default_number : 0; }

// Calls visit(setting, value) for each setting that is also a field of the config. ANNULUS_RETURN_IF_ERROR ends it.
template <typename Config, typename Visitor>
Status VisitFields(Config* config, Visitor visit) {
#define ANNULUS_SETTING(name, ...)                                      \
  if constexpr (requires { config->name; }) {                           \
    ANNULUS_RETURN_IF_ERROR(visit(SettingNamed(#name), &config->name)); \
  }
#include "collectives/core/all_settings.inc"
#undef ANNULUS_SETTING
  return Status();
}

annulus_config_t Absent(uint32_t sources) {
  annulus_config_t config{};
  config.struct_bytes = sizeof config;
  config.sources = sources;
  const auto set = [](const Setting& setting, auto* field) {
    using Field = std::remove_pointer_t<decltype(field)>;
    if constexpr (!std::is_pointer_v<Field>) *field = static_cast<Field>(Absent(setting));
    return Status();
  };
  static_cast<void>(VisitFields(&config, set));
  return config;
}

Status CheckSources(uint32_t sources) {
  if ((sources & ~kAllSources) == 0) return Status();
  return {Code::kUnsupported,
          "sources is " + std::to_string(sources) + "; this version knows up to " + std::to_string(kAllSources)};
}

JobStore Wrap(const annulus_store_t& store) {
  JobStore wrapped;
  wrapped.set = [store](const char* key, std::span<const std::byte> value) {
    return store.set(store.context, key, value.data(), value.size());
  };
  wrapped.get = [store](const char* key, std::span<std::byte> value, size_t* bytes, int64_t timeout_ms) {
    return store.get(store.context, key, value.data(), value.size(), bytes, timeout_ms);
  };
  return wrapped;
}

// "channels=2".
Status ReadNamed(const char* text, Options* options) {
  const char* const equals = std::strchr(text, '=');
  const std::string name(text, equals == nullptr ? std::strlen(text) : static_cast<size_t>(equals - text));
  if (equals == nullptr) return Status::Invalid("settings has \"" + name + "\"; it must have the form name=value");
  const Setting* const setting = FindSetting(Settings(), name);
  if (setting == nullptr) return Status::Invalid("unknown setting " + UnknownName(Settings(), name));
  const Secret value(equals + 1);
  return SetFromText(*setting, name, value.text(), options);
}

Status ReadFields(const annulus_config_t& config, Options* options) {
  return VisitFields(&config, [options](const Setting& setting, const auto* field) {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(*field)>>) {
      if (*field == nullptr) return Status();
      const Secret value(*field);
      return SetFromText(setting, setting.name, value.text(), options);
    } else {
      return *field == Absent(setting) ? Status() : SetFromNumber(setting, setting.name, *field, options);
    }
  });
}

Status ReadAll(const annulus_config_t& config, const EnvironmentLookup& lookup, Options* options) {
  ANNULUS_RETURN_IF_ERROR(CheckSources(config.sources));
  // The level belongs to the process: a program that does not give one keeps it.
  options->log_level = GetLogLevel();
  if ((config.sources & ANNULUS_FROM_ENVIRONMENT) != 0) ANNULUS_RETURN_IF_ERROR(ReadVariables(lookup, options));
  Options given;
  for (const char* const* text = config.settings; text != nullptr && *text != nullptr; ++text) {
    ANNULUS_RETURN_IF_ERROR(ReadNamed(*text, options));
    ANNULUS_RETURN_IF_ERROR(ReadNamed(*text, &given));
  }
  ANNULUS_RETURN_IF_ERROR(ReadFields(config, options));
  ANNULUS_RETURN_IF_ERROR(ReadFields(config, &given));
  const bool knows_ranks = given.rank >= 0 && given.size >= 0;
  if (knows_ranks) options->launcher = "the program";
  if ((config.sources & ANNULUS_FROM_LAUNCHER) == 0) return Status();
  ANNULUS_RETURN_IF_ERROR(ReadLauncher(lookup, options));
  if (knows_ranks && given.run_id.empty()) {
    // The run is the launcher's even where the program counts its ranks otherwise.
    const JobRun run = ReadRun(lookup);
    options->run_id = run.id;
    options->restart = run.restart;
  }
  return Status();
}

}  // namespace

Status InitConfig(annulus_config_t* config, size_t struct_bytes, uint32_t sources) {
  ANNULUS_RETURN_IF_ERROR(CheckStructBytes(struct_bytes, kSmallestBytes, kType));
  ANNULUS_RETURN_IF_ERROR(CheckSources(sources));
  annulus_config_t absent = Absent(sources);
  absent.struct_bytes = struct_bytes;
  std::memset(static_cast<void*>(config), 0, struct_bytes);
  std::memcpy(config, &absent, struct_bytes < sizeof absent ? struct_bytes : sizeof absent);
  return Status();
}

Status ToOptions(const annulus_config_t* config, const EnvironmentLookup& lookup, Options* options) {
  annulus_config_t known = Absent(kAllSources);
  if (config != nullptr) ANNULUS_RETURN_IF_ERROR(ReadStruct(config, kSmallestBytes, kType, &known));
  Options read;
  ANNULUS_RETURN_IF_ERROR(ReadAll(known, lookup, &read));
  *options = std::move(read);
  return Status();
}

Status ToIntroduction(const annulus_config_t* config, Introduction* introduction) {
  annulus_config_t known = Absent(kAllSources);
  if (config != nullptr) ANNULUS_RETURN_IF_ERROR(ReadStruct(config, kSmallestBytes, kType, &known));
  if (known.store != nullptr) {
    annulus_store_t store{};
    ANNULUS_RETURN_IF_ERROR(ReadStruct(known.store, kSmallestStore, "annulus_store_t", &store));
    if (store.set == nullptr || store.get == nullptr) {
      return Status::Invalid(std::string("store of ") + kType + " has no function " +
                             (store.set == nullptr ? "set" : "get"));
    }
    introduction->store = Wrap(store);
  }
  if (known.listening != nullptr) {
    introduction->listening = [tell = known.listening, context = known.listening_context](const std::string& address) {
      return tell(context, address.c_str());
    };
  }
  return Status();
}

Status ConfigValue(const annulus_config_t* config, const EnvironmentLookup& lookup, const std::string& name,
                   std::string* value) {
  const Setting* const setting = FindSetting(Settings(), name);
  if (setting == nullptr) return Status::Invalid("unknown setting " + UnknownName(Settings(), name));
  if (setting->allowed.kind == SettingKind::kSecret)
    return Status::Invalid(name + " is a secret, which is not given out");
  Options options;
  ANNULUS_RETURN_IF_ERROR(ToOptions(config, lookup, &options));
  *value = ValueText(*setting, options);
  return Status();
}

}  // namespace annulus
