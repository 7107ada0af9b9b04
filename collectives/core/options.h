// Options: every setting of a communicator, parsed and checked once: words are enums from here on.
//
// A setting is one row of a file *_settings.inc or settings.inc, which gives the field here, its ANNULUS_* variable,
// parsing, range checks and messages, the table (Settings), the comparison between ranks, the test of docs/tuning.md
// and, where annulus_config_t has a field of that name, the way there and Python's keyword.
//
// Threads: plain functions and values. ReadEnvironment without a lookup reads
// the process's environment, which no other thread may change meanwhile.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/launchers.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/status.h"
#include "collectives/core/algorithm.h"
#include "transport/select/transport_options.h"

namespace annulus {

// Where the costs come from by which algorithms are chosen.
enum class Tuning : uint8_t { kNominal, kMeasured };

struct Options : JobPlace, TransportOptions {
  Options() = default;
  Options(const Options&) = default;
  Options(Options&&) = default;
  Options& operator=(const Options&) = default;
  Options& operator=(Options&&) = default;
  // Overwrites the job key, which shall not stay in freed memory.
  ~Options();

#define ANNULUS_SETTING(name, Type, unset, ...) Type name = unset;
#include "collectives/core/settings.inc"
#undef ANNULUS_SETTING

  // The rank that names this process in traces: of its first job, when this is one of the communicators split from it;
  // -1: `rank`. Not for users to set.
  int64_t process_rank = -1;
};

// The table: all rows. Each is of a field of Options.
std::span<const Setting> Settings();

// The row of a name that exists.
const Setting& SettingNamed(std::string_view name);

// Fills `options` from ANNULUS_* variables over the defaults, then from the launcher's. An empty variable counts as
// not set. What stays unknown keeps its default; Validate tells whether that will do.
//
// Errors: kInvalidArgument  names the variable, its value and what is allowed;
// `options` is unchanged.
Status ReadEnvironment(const EnvironmentLookup& lookup, Options* options);
Status ReadEnvironment(Options* options);

// Checks every value's range and that they fit together. The only door to a communicator, whoever filled in `options`.
//
// Errors: kInvalidArgument  names the field and its variable, the value and
// what is allowed.
Status Validate(const Options& options);

// The setting's variable in this process's environment; null when it is not set.
const char* SettingVariable(const Setting& setting);

// ANNULUS_WATCH: what annulus-run --watch hands down to its ranks, for nobody else to set. Null when it is not set.
const char* WatchVariable();

// Names the ANNULUS_* variables of `environment` (as environ: "NAME=value", null-terminated) that nothing reads,
// likely misspelt, each with the nearest known name when there is one: "ANNULUS_CHANELS (is ANNULUS_CHANNELS meant?)".
std::vector<std::string> UnknownVariables(const char* const* environment);

// Logs UnknownVariables of this process as one warning, on the first call only. A host's ranks mostly have the same
// ones, so one speaks: unless `local_rank`, -1 where it is not known yet, is more than 0.
void WarnOfUnknownVariables(int rank, int local_rank);

}  // namespace annulus
