#include "base/options.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/algorithm.h"
#include "base/launchers.h"
#include "base/log.h"

namespace annulus {
namespace {

constexpr std::string_view kPrefix = "ANNULUS_";
constexpr int64_t kMaxRanks = 65'536;                 // Wire formats carry ranks in 32 bits; this bounds tables.
constexpr int64_t kMaxTimeoutMs = 86'400'000;         // One day: longer is a mistake in the unit.
constexpr int64_t kMinSliceBytes = 1024;              // Below, the frame's head outweighs its data.
constexpr int64_t kMaxSliceBytes = 16 * 1024 * 1024;  // Above, slots no longer fit any cache.
constexpr int64_t kMaxSmallBytes = 64 * 1024;         // Each rank keeps size times as much for the one-hop exchange.
constexpr int64_t kMaxMeshRanks = 4096;
constexpr int64_t kMaxMemoryBytes = int64_t{1} << 46;
constexpr int64_t kMaxSpinUs = 1'000'000;
constexpr int64_t kMaxInterfaceName = 15;  // IFNAMSIZ less the terminator.
constexpr int64_t kMinKey = 16;
constexpr int64_t kMaxText = 255;
constexpr int64_t kMaxPath = 1024;
constexpr size_t kMaxShownBytes = 80;  // Of a wrong value, in a message.

constexpr const char* kTransports[] = {"auto", "shm", "tcp"};
constexpr const char* kShmStores[] = {"auto", "plain", "streaming"};
constexpr const char* kTunings[] = {"nominal", "measured"};
constexpr const char* kLogLevels[] = {"error", "warn", "info", "debug"};

constexpr Setting Number(const char* field, const char* variable, int64_t Options::*number, int64_t min, int64_t max,
                         const char* help) {
  return {field, variable, SettingKind::kNumber, number, nullptr, min, max, {}, help};
}

constexpr Setting Text(const char* field, const char* variable, SettingKind kind, std::string Options::*text,
                       int64_t min, int64_t max, const char* help) {
  return {field, variable, kind, nullptr, text, min, max, {}, help};
}

constexpr Setting Word(const char* field, const char* variable, std::string Options::*text,
                       std::span<const char* const> words, const char* help) {
  return {field, variable, SettingKind::kWord, nullptr, text, 0, 0, words, help};
}

constexpr Setting kSettings[] = {
    Number("rank", "ANNULUS_RANK", &Options::rank, 0, kMaxRanks - 1, "this process's rank"),
    Number("size", "ANNULUS_SIZE", &Options::size, 1, kMaxRanks, "number of ranks in the job"),
    Number("local_rank", "ANNULUS_LOCAL_RANK", &Options::local_rank, 0, kMaxRanks - 1, "rank among those of this host"),
    Number("local_size", "ANNULUS_LOCAL_SIZE", &Options::local_size, 1, kMaxRanks, "number of ranks on this host"),
    Text("rendezvous", "ANNULUS_RENDEZVOUS", SettingKind::kAddress, &Options::rendezvous, 0, kMaxText,
         "where rank 0 listens and all others find it"),
    Text("job_key", "ANNULUS_JOB_KEY", SettingKind::kSecret, &Options::job_key, kMinKey, kMaxText,
         "the job's shared secret"),
    Number("insecure", "ANNULUS_INSECURE", &Options::insecure, 0, 1, "run without a job key"),
    Word("transport", "ANNULUS_TRANSPORT", &Options::transport, kTransports, "how ranks are linked"),
    Text("interface_name", "ANNULUS_INTERFACE", SettingKind::kText, &Options::interface_name, 0, kMaxInterfaceName,
         "network interface for TCP links"),
    Text("host_id", "ANNULUS_HOST_ID", SettingKind::kText, &Options::host_id, 0, kMaxText,
         "ranks with equal ids share a host"),
    Number("timeout_ms", "ANNULUS_TIMEOUT_MS", &Options::timeout_ms, 1, kMaxTimeoutMs,
           "deadline of each collective and message"),
    Number("connect_timeout_ms", "ANNULUS_CONNECT_TIMEOUT_MS", &Options::connect_timeout_ms, 1, kMaxTimeoutMs,
           "deadline of joining the job"),
    Number("slice_bytes", "ANNULUS_SLICE_BYTES", &Options::slice_bytes, kMinSliceBytes, kMaxSliceBytes,
           "pipelined part of a chunk"),
    Number("channels", "ANNULUS_CHANNELS", &Options::channels, 1, 16, "parallel rings"),
    Number("mesh_ranks", "ANNULUS_MESH_RANKS", &Options::mesh_ranks, 0, kMaxMeshRanks,
           "largest job in which every rank has a link to every other"),
    Number("priorities", "ANNULUS_PRIORITIES", &Options::priorities, 0, 1,
           "asynchronous calls may overtake each other by priority"),
    Number("memory_bytes", "ANNULUS_MEMORY_BYTES", &Options::memory_bytes, 0, kMaxMemoryBytes,
           "most memory of a communicator"),
    Number("tcp_sockets", "ANNULUS_TCP_SOCKETS", &Options::tcp_sockets, 0, 16, "sockets per TCP link"),
    Number("checksum", "ANNULUS_CHECKSUM", &Options::checksum, 0, 1, "CRC32C on every TCP frame"),
    Number("small_bytes", "ANNULUS_SMALL_BYTES", &Options::small_bytes, 0, kMaxSmallBytes,
           "largest message for the one-hop exchange"),
    Number("spin_us", "ANNULUS_SPIN_US", &Options::spin_us, 0, kMaxSpinUs, "busy polling before a waiting rank sleeps"),
    Word("shm_stores", "ANNULUS_SHM_STORES", &Options::shm_stores, kShmStores,
         "how slots of shared memory links are written"),
    Word("log_level", "ANNULUS_LOG", &Options::log_level, kLogLevels, "least severe messages that are logged"),
    Text("trace", "ANNULUS_TRACE", SettingKind::kText, &Options::trace, 0, kMaxPath,
         "file for a timeline of what each rank does; %r stands for the rank"),
    Word("algorithm", "ANNULUS_ALGORITHM", &Options::algorithm, kAlgorithmWords,
         "how collectives are done, where they can be done in that way"),
    Word("tuning", "ANNULUS_TUNING", &Options::tuning, kTunings,
         "where the costs come from by which algorithms are chosen"),
    Text("tuning_file", "ANNULUS_TUNING_FILE", SettingKind::kText, &Options::tuning_file, 0, kMaxPath,
         "rank 0's file of measured costs"),
};

// Variables of this project that are no setting of a communicator.
constexpr const char* kWatchVariable = "ANNULUS_WATCH";
constexpr std::array kOtherVariables{kWatchVariable};

bool NumberIsAllowed(const Setting& setting, int64_t number) {
  return (number >= setting.min && number <= setting.max) || number == Options{}.*setting.number;
}

bool TextIsAllowed(const Setting& setting, const std::string& text) {
  // The C API hands these on as C strings.
  if (text.find('\0') != std::string::npos) return false;
  const int64_t length = static_cast<int64_t>(text.size());
  switch (setting.kind) {
    case SettingKind::kWord:
      return std::ranges::any_of(setting.words, [&](const char* word) { return text == word; });
    case SettingKind::kText:
      return length <= setting.max;
    case SettingKind::kSecret:
      return text.empty() || (length >= setting.min && length <= setting.max);
    case SettingKind::kAddress: {
      std::string host;
      int port;
      return text.empty() || (length <= setting.max && ParseAddress(text, &host, &port));
    }
    case SettingKind::kNumber:
      break;
  }
  return false;
}

Status WrongValue(const Setting& setting, const std::string& name, const std::string& value) {
  std::string shown = "\"" + value.substr(0, kMaxShownBytes) + (value.size() > kMaxShownBytes ? "..." : "") + "\"";
  if (setting.kind == SettingKind::kSecret) shown = std::to_string(value.size()) + " characters long";
  return Status::Invalid(name + " is " + shown + "; allowed: " + AllowedText(setting));
}

Status ParseSetting(const Setting& setting, const std::string& value, Options* options) {
  if (setting.kind != SettingKind::kNumber) {
    if (!TextIsAllowed(setting, value)) return WrongValue(setting, setting.variable, value);
    options->*setting.text = value;
    return {};
  }
  int64_t number;
  if (!ParseNumber(value, &number) || !NumberIsAllowed(setting, number)) {
    return WrongValue(setting, setting.variable, value);
  }
  options->*setting.number = number;
  return {};
}

Status CheckSetting(const Setting& setting, const Options& options) {
  const std::string name = std::string(setting.field) + " (" + setting.variable + ")";
  if (setting.kind == SettingKind::kNumber) {
    const int64_t number = options.*setting.number;
    return NumberIsAllowed(setting, number) ? Status() : WrongValue(setting, name, std::to_string(number));
  }
  const std::string& text = options.*setting.text;
  return TextIsAllowed(setting, text) ? Status() : WrongValue(setting, name, text);
}

// Rank and size, each "must be below" the other of a pair. Values in range; -1 is "not known".
Status CheckRanks(const Options& options) {
  const std::string source = options.launcher.empty() ? "" : " (from " + options.launcher + ")";
  if (options.rank < 0 || options.size < 0) {
    return Status::Invalid(std::string(options.rank < 0 ? "rank (ANNULUS_RANK)" : "size (ANNULUS_SIZE)") +
                           " is not known; start the program by annulus-run, "
                           "torchrun, mpirun or srun, or set both "
                           "ANNULUS_RANK and ANNULUS_SIZE");
  }
  const auto pair = [&](const char* low, int64_t low_value, const char* high, int64_t high_value,
                        bool equal) -> Status {
    if (low_value < high_value || (equal && low_value == high_value)) return {};
    return Status::Invalid(std::string(low) + " is " + std::to_string(low_value) + ", but " + high + " is " +
                           std::to_string(high_value) + source + "; it must be " + (equal ? "at most that" : "lower"));
  };
  ANNULUS_RETURN_IF_ERROR(pair("rank (ANNULUS_RANK)", options.rank, "size (ANNULUS_SIZE)", options.size, false));
  if (options.local_size >= 0) {
    ANNULUS_RETURN_IF_ERROR(
        pair("local_size (ANNULUS_LOCAL_SIZE)", options.local_size, "size (ANNULUS_SIZE)", options.size, true));
  }
  if (options.local_rank < 0) return {};
  const bool known = options.local_size >= 0;
  return pair("local_rank (ANNULUS_LOCAL_RANK)", options.local_rank,
              known ? "local_size (ANNULUS_LOCAL_SIZE)" : "size (ANNULUS_SIZE)",
              known ? options.local_size : options.size, false);
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

std::string WithSuggestion(const std::string& name) {
  constexpr int kFarthest = 3;  // More edits than these suggest another word, not a slip.
  const auto nearest =
      std::ranges::min_element(kSettings, {}, [&](const Setting& setting) { return Distance(name, setting.variable); });
  if (Distance(name, nearest->variable) > kFarthest) return name;
  return name + " (is " + nearest->variable + " meant?)";
}

}  // namespace

std::span<const Setting> Settings() { return kSettings; }

std::string AllowedText(const Setting& setting) {
  switch (setting.kind) {
    case SettingKind::kNumber: {
      if (setting.min == 0 && setting.max == 1) return "0 or 1";
      const std::string range =
          "a whole number from " + std::to_string(setting.min) + " to " + std::to_string(setting.max);
      const int64_t unset = Options{}.*setting.number;
      return unset < setting.min || unset > setting.max ? std::to_string(unset) + ", or " + range : range;
    }
    case SettingKind::kWord: {
      std::string words;
      for (size_t i = 0; i < setting.words.size(); ++i) {
        if (i > 0) words += i + 1 < setting.words.size() ? ", " : " or ";
        words += setting.words[i];
      }
      return words;
    }
    case SettingKind::kText:
      return "at most " + std::to_string(setting.max) + " characters";
    case SettingKind::kAddress:
      return "host:port or [v6]:port, with a port from 1 to 65535";
    case SettingKind::kSecret:
      return std::to_string(setting.min) + " to " + std::to_string(setting.max) + " characters";
  }
  return "";
}

std::string DefaultText(const Setting& setting) {
  const Options defaults;
  return setting.kind == SettingKind::kNumber ? std::to_string(defaults.*setting.number) : defaults.*setting.text;
}

Status ReadEnvironment(const EnvironmentLookup& lookup, Options* options) {
  Options read;
  for (const Setting& setting : kSettings) {
    const char* value = lookup(setting.variable);
    if (value == nullptr || *value == '\0') continue;
    ANNULUS_RETURN_IF_ERROR(ParseSetting(setting, value, &read));
  }
  ANNULUS_RETURN_IF_ERROR(ReadLauncher(lookup, &read));
  *options = std::move(read);
  return {};
}

Status ReadEnvironment(Options* options) {
  return ReadEnvironment([](const char* variable) { return std::getenv(variable); }, options);
}

Status Validate(const Options& options) {
  for (const Setting& setting : kSettings) ANNULUS_RETURN_IF_ERROR(CheckSetting(setting, options));
  ANNULUS_RETURN_IF_ERROR(CheckRanks(options));
  if (!options.tuning_file.empty() && options.tuning != "measured") {
    return Status::Invalid("tuning_file (ANNULUS_TUNING_FILE) is " + options.tuning_file +
                           ", which nothing would read: set tuning (ANNULUS_TUNING) to measured");
  }
  if (options.size == 1) return {};
  if (options.rendezvous.empty()) {
    const std::string why =
        options.launcher.empty() ? "" : ", and " + options.launcher + " does not tell where rank 0 can be reached";
    return Status::Invalid("rendezvous (ANNULUS_RENDEZVOUS) is not known" + why +
                           "; set it on every rank to host:port of rank 0");
  }
  if (options.job_key.empty() && options.insecure == 0) {
    return Status::Invalid(
        "job_key (ANNULUS_JOB_KEY) is not set, so anybody could join; give "
        "every rank the same secret of at least " +
        std::to_string(kMinKey) +
        " characters, or set insecure (ANNULUS_INSECURE) to 1 on a network "
        "that you trust");
  }
  return {};
}

const char* WatchVariable() { return std::getenv(kWatchVariable); }

std::vector<std::string> UnknownVariables(const char* const* environment) {
  std::vector<std::string> unknown;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    if (!entry.starts_with(kPrefix)) continue;
    const std::string name(entry.substr(0, entry.find('=')));
    const bool known = std::ranges::any_of(kSettings, [&](const Setting& s) { return name == s.variable; }) ||
                       std::ranges::any_of(kOtherVariables, [&](const char* other) { return name == other; });
    if (!known) unknown.push_back(WithSuggestion(name));
  }
  std::ranges::sort(unknown);
  return unknown;
}

void WarnOfUnknownVariables(int rank, int local_rank) {
  static std::atomic<bool> warned = false;
  if (warned.exchange(true) || local_rank > 0) return;
  std::string names;
  for (const std::string& name : UnknownVariables(environ)) names += (names.empty() ? "" : ", ") + name;
  if (names.empty()) return;
  Log(LogLevel::kWarn, rank,
      "unknown environment variables are ignored: %s; docs/tuning.md lists the "
      "known ones",
      names.c_str());
}

bool ParseNumber(const std::string& text, int64_t* number) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && stop == end;
}

bool ParseAddress(const std::string& text, std::string* host, int* port) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return false;
  std::string name = text.substr(0, colon);
  const bool bracketed = name.size() >= 2 && name.front() == '[' && name.back() == ']';
  if (bracketed) name = name.substr(1, name.size() - 2);
  // A bare IPv6 address is ambiguous: its last group reads like a port.
  if (!bracketed && name.find(':') != std::string::npos) return false;
  if (name.empty() || name.find_first_of("[] \t\r\n/") != std::string::npos) return false;
  int64_t number;
  constexpr int64_t kMaxPort = 65'535;
  if (!ParseNumber(text.substr(colon + 1), &number) || number < 1 || number > kMaxPort) return false;
  *host = name;
  *port = static_cast<int>(number);
  return true;
}

std::string FormatAddress(const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace annulus
