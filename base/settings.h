// Settings: one row defines everything about a setting. Parsing, range checks, error texts, defaults and hints for
// misspelt names follow from the rows. This file knows no setting; the rows of communicators are joined in
// collectives/core/options.h.
//
// A file of rows (job_settings.inc) is included wherever something is needed of each row:
//   ANNULUS_SETTING(name, Type, default, variable, allowed, ranks, help)
// for struct fields, the table of rows (MakeSetting), the names in annulus_config_t, and Python's keywords.
//
// Threads: plain functions and values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"

namespace annulus {

enum class SettingKind {
  kNumber,   // A whole number from min to max; the default is allowed too when it lies outside.
  kFlag,     // 0 or 1.
  kWord,     // One of `words`.
  kText,     // At most `max` characters.
  kAddress,  // "host:port" or "[v6]:port", of at most `max` characters, or empty.
  kSecret,   // min to max characters, or empty; no message ever shows it.
};

// The values that a setting accepts.
struct Allowed {
  SettingKind kind;
  int64_t min = 0;
  int64_t max = 0;
  const char* unit = "";                    // The unit at the end of the name: "bytes", "ms" or "us".
  std::span<const char* const> words = {};  // Indexed by the setting's enum.

  static constexpr Allowed Number(int64_t min, int64_t max, const char* unit = "") {
    return {SettingKind::kNumber, min, max, unit};
  }
  static constexpr Allowed Flag() { return {SettingKind::kFlag, 0, 1}; }
  static constexpr Allowed Word(std::span<const char* const> words) {
    return {SettingKind::kWord, 0, static_cast<int64_t>(words.size()) - 1, "", words};
  }
  static constexpr Allowed Text(int64_t max) { return {SettingKind::kText, 0, max}; }
  static constexpr Allowed Address(int64_t max) { return {SettingKind::kAddress, 0, max}; }
  static constexpr Allowed Secret(int64_t min, int64_t max) { return {SettingKind::kSecret, min, max}; }
};

// Whether all ranks of a job must have the same value. This is checked when they meet.
enum class Ranks { kMayDiffer, kMustAgree };

// The base of every struct of settings.
struct SettingValues {};

// The number that stands for a value; for a word, its index in Allowed::words. Types whose "not set" is not the number
// 0 of an enum overload both functions.
template <typename Value>
constexpr int64_t SettingNumber(const Value& value) {
  return static_cast<int64_t>(value);
}
template <typename Value>
constexpr void SetSettingNumber(int64_t number, Value* value) {
  *value = static_cast<Value>(number);
}

struct Setting {
  // Name of the field in the struct of settings, in the settings of annulus_config_t and in Python.
  const char* name;
  const char* variable;  // Name of the environment variable.
  Allowed allowed;
  Ranks ranks;
  const char* help;
  int64_t default_number;    // For numbers, flags and words.
  const char* default_text;  // For all others.

  // Access to the value. Numbers, flags and words have `number` and `set_number`; all others have only `text`.
  int64_t (*number)(const SettingValues& values);
  void (*set_number)(SettingValues* values, int64_t number);
  std::string* (*text)(SettingValues* values);

  bool is_text() const { return text != nullptr; }
  const std::string& TextOf(const SettingValues& values) const { return *text(const_cast<SettingValues*>(&values)); }
};

// Makes the row of the field `kMember` of `Values`, or of a base of it.
template <typename Values, auto kMember, typename Default>
constexpr Setting MakeSetting(const char* name, const char* variable, const Default& unset, const Allowed& allowed,
                              Ranks ranks, const char* help) {
  Setting setting{name, variable, allowed, ranks, help, 0, "", nullptr, nullptr, nullptr};
  using Field = std::remove_cvref_t<decltype(std::declval<Values&>().*kMember)>;
  if constexpr (std::is_same_v<Field, std::string>) {
    setting.default_text = unset;
    setting.text = [](SettingValues* values) { return &(static_cast<Values*>(values)->*kMember); };
  } else {
    setting.default_number = SettingNumber(static_cast<Field>(unset));
    setting.number = [](const SettingValues& values) {
      return SettingNumber(static_cast<const Values&>(values).*kMember);
    };
    setting.set_number = [](SettingValues* values, int64_t number) {
      SetSettingNumber(number, &(static_cast<Values*>(values)->*kMember));
    };
  }
  return setting;
}

// The accepted values, as in "a whole number from 1 to 86400000".
std::string AllowedText(const Setting& setting);

// The default, as a user would write it in the environment; "" when it is empty.
std::string DefaultText(const Setting& setting);
// The same for the value in `values`.
std::string ValueText(const Setting& setting, const SettingValues& values);

// "timeout_ms (ANNULUS_TIMEOUT_MS)".
std::string FullName(const Setting& setting);

// Parses and checks a value. `name` is the caller's name for the setting.
//
// Errors: kInvalidArgument  with the name, the value and what is allowed; *values is unchanged.
Status SetFromText(const Setting& setting, const std::string& name, const std::string& text, SettingValues* values);
// The same for a value that is a number.
Status SetFromNumber(const Setting& setting, const std::string& name, int64_t number, SettingValues* values);

// Checks the present value. Errors: as above, with the full name.
Status CheckValue(const Setting& setting, const SettingValues& values);

// Finds the row of that name; null when there is none.
const Setting* FindSetting(std::span<const Setting> settings, std::string_view name);

// `name`, which is no row's, with the nearest row's when there is one: "chanels (is channels meant?)".
std::string UnknownName(std::span<const Setting> settings, const std::string& name);

// Lists the variables of `environment` (in the form of environ: "NAME=value", null-terminated) that begin with `prefix`
// and are neither in `settings` nor in `others`, each with the nearest known name when there is one.
std::vector<std::string> UnknownVariables(std::string_view prefix, std::span<const Setting> settings,
                                          std::span<const char* const> others, const char* const* environment);

}  // namespace annulus
