#include "base/settings.h"

#include <string.h>  // explicit_bzero

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/parse.h"

namespace annulus {
namespace {

constexpr size_t kMaxShownBytes = 80;  // For a wrong value in a message.

bool NumberIsAllowed(const Setting& setting, int64_t number) {
  return (number >= setting.allowed.min && number <= setting.allowed.max) || number == setting.default_number;
}

bool TextIsAllowed(const Allowed& allowed, const std::string& text) {
  // The C API passes these on as C strings.
  if (text.find('\0') != std::string::npos) return false;
  const int64_t length = static_cast<int64_t>(text.size());
  if (length > allowed.max) return false;
  if (text.empty() || allowed.kind == SettingKind::kText) return true;
  if (allowed.kind == SettingKind::kSecret) return length >= allowed.min;
  std::string host;
  int port;
  return allowed.kind == SettingKind::kAddress && ParseAddress(text, &host, &port);
}

Status WrongValue(const Setting& setting, const std::string& name, const std::string& value) {
  std::string shown = "\"" + value.substr(0, kMaxShownBytes) + (value.size() > kMaxShownBytes ? "..." : "") + "\"";
  if (setting.allowed.kind == SettingKind::kSecret) shown = std::to_string(value.size()) + " characters long";
  return Status::Invalid(name + " is " + shown + "; allowed: " + AllowedText(setting));
}

std::string NumberText(const Setting& setting, int64_t number) {
  const auto& words = setting.allowed.words;
  const bool is_word = number >= 0 && number < static_cast<int64_t>(words.size());
  return is_word ? words[static_cast<size_t>(number)] : std::to_string(number);
}

// Number of one-character edits between two names.
int Distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = std::exchange(row[0], static_cast<int>(i));
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row[b.size()];
}

// `of` is the member that may have been meant: a setting's name or its variable.
std::string WithSuggestion(std::span<const Setting> settings, const char* Setting::*of, const std::string& name) {
  constexpr int kFarthest = 3;  // More edits than this suggest another word, not a typing error.
  const auto distance = [&](const Setting& setting) { return Distance(name, setting.*of); };
  const auto nearest = std::ranges::min_element(settings, {}, distance);
  if (nearest == settings.end() || distance(*nearest) > kFarthest) return name;
  return name + " (is " + (*nearest).*of + " meant?)";
}

}  // namespace

std::string AllowedText(const Setting& setting) {
  const Allowed& allowed = setting.allowed;
  switch (allowed.kind) {
    case SettingKind::kNumber: {
      const std::string range =
          "a whole number from " + std::to_string(allowed.min) + " to " + std::to_string(allowed.max);
      const int64_t unset = setting.default_number;
      return unset < allowed.min || unset > allowed.max ? std::to_string(unset) + ", or " + range : range;
    }
    case SettingKind::kFlag:
      return "0 or 1";
    case SettingKind::kWord: {
      std::string words;
      for (size_t i = 0; i < allowed.words.size(); ++i) {
        if (i > 0) words += i + 1 < allowed.words.size() ? ", " : " or ";
        words += allowed.words[i];
      }
      return words;
    }
    case SettingKind::kText:
      return "at most " + std::to_string(allowed.max) + " characters";
    case SettingKind::kAddress:
      return "host:port or [v6]:port, with a port from 1 to 65535";
    case SettingKind::kSecret:
      return std::to_string(allowed.min) + " to " + std::to_string(allowed.max) + " characters";
  }
  return "";
}

std::string DefaultText(const Setting& setting) {
  return setting.is_text() ? setting.default_text : NumberText(setting, setting.default_number);
}

std::string ValueText(const Setting& setting, const SettingValues& values) {
  return setting.is_text() ? setting.TextOf(values) : NumberText(setting, setting.number(values));
}

std::string FullName(const Setting& setting) { return std::string(setting.name) + " (" + setting.variable + ")"; }

Status SetFromText(const Setting& setting, const std::string& name, const std::string& text, SettingValues* values) {
  if (setting.is_text()) {
    if (!TextIsAllowed(setting.allowed, text)) return WrongValue(setting, name, text);
    std::string* const kept = setting.text(values);
    // Its memory may be given back.
    if (setting.allowed.kind == SettingKind::kSecret) explicit_bzero(kept->data(), kept->size());
    *kept = text;
    return {};
  }
  int64_t number = 0;
  if (setting.allowed.kind == SettingKind::kWord) {
    const auto& words = setting.allowed.words;
    const auto word = std::ranges::find(words, std::string_view(text));
    if (word == words.end()) return WrongValue(setting, name, text);
    number = word - words.begin();
  } else if (!ParseNumber(text, &number) || !NumberIsAllowed(setting, number)) {
    return WrongValue(setting, name, text);
  }
  setting.set_number(values, number);
  return {};
}

Status SetFromNumber(const Setting& setting, const std::string& name, int64_t number, SettingValues* values) {
  if (!NumberIsAllowed(setting, number)) return WrongValue(setting, name, std::to_string(number));
  setting.set_number(values, number);
  return {};
}

Status CheckValue(const Setting& setting, const SettingValues& values) {
  const bool right = setting.is_text() ? TextIsAllowed(setting.allowed, setting.TextOf(values))
                                       : NumberIsAllowed(setting, setting.number(values));
  return right ? Status() : WrongValue(setting, FullName(setting), ValueText(setting, values));
}

const Setting* FindSetting(std::span<const Setting> settings, std::string_view name) {
  const auto found = std::ranges::find_if(settings, [&](const Setting& setting) { return setting.name == name; });
  return found == settings.end() ? nullptr : &*found;
}

std::string UnknownName(std::span<const Setting> settings, const std::string& name) {
  return WithSuggestion(settings, &Setting::name, name);
}

std::vector<std::string> UnknownVariables(std::string_view prefix, std::span<const Setting> settings,
                                          std::span<const char* const> others, const char* const* environment) {
  std::vector<std::string> unknown;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    if (!entry.starts_with(prefix)) continue;
    const std::string name(entry.substr(0, entry.find('=')));
    const bool known = std::ranges::any_of(settings, [&](const Setting& s) { return name == s.variable; }) ||
                       std::ranges::any_of(others, [&](const char* other) { return name == other; });
    if (!known) unknown.push_back(WithSuggestion(settings, &Setting::variable, name));
  }
  std::ranges::sort(unknown);
  return unknown;
}

}  // namespace annulus
