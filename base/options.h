// Options: every setting of a communicator, read from the environment and checked in this one place.
//
// One table (Settings) names each setting's field, ANNULUS_* variable, range and default; parsing, range checks,
// messages and the test of docs/tuning.md all work from it. What ANNULUS_* leaves open, launchers.h finds out.
//
// Threads: plain functions and values. ReadEnvironment without a lookup reads
// the process's environment, which no other thread may change meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace annulus {

// The fields of annulus_config_t (collectives/annulus.h), with their defaults.
struct Options {
  int64_t rank = -1;
  int64_t size = -1;
  int64_t local_rank = -1;
  int64_t local_size = -1;
  std::string rendezvous;
  std::string job_key;
  int64_t insecure = 0;
  std::string transport = "auto";
  std::string interface_name;
  std::string host_id;
  int64_t timeout_ms = 300'000;
  int64_t connect_timeout_ms = 60'000;
  int64_t slice_bytes = 0;
  int64_t channels = 1;
  int64_t mesh_ranks = 0;
  int64_t priorities = 0;
  int64_t memory_bytes = 0;
  int64_t tcp_sockets = 0;
  int64_t checksum = 0;
  int64_t small_bytes = 16'384;
  int64_t spin_us = -1;
  std::string log_level = "warn";
  std::string trace;
  std::string algorithm = "auto";
  std::string shm_stores = "auto";
  std::string tuning = "nominal";
  std::string tuning_file;

  // The rank that names this process in traces: of its first job, when this is one of the communicators split from it;
  // -1: `rank`.
  int64_t process_rank = -1;

  // Where rank and size came from, for the log: "torchrun", "Open MPI", "the ANNULUS_* variables"; "" when unknown.
  std::string launcher;
};

enum class SettingKind {
  kNumber,   // A whole number from min to max; the default is allowed too when it
             // lies outside.
  kWord,     // One of `words`.
  kText,     // At most `max` characters.
  kAddress,  // "host:port" or "[v6]:port".
  kSecret,   // min to max characters, or empty; no message ever shows it.
};

struct Setting {
  const char* field;     // As in annulus_config_t.
  const char* variable;  // As in the environment.
  SettingKind kind;
  int64_t Options::*number;    // Where the value is: kNumber,
  std::string Options::*text;  // all other kinds.
  int64_t min;
  int64_t max;
  std::span<const char* const> words;
  const char* help;
};

// All settings, in the order of annulus_config_t.
std::span<const Setting> Settings();

// What the setting may be, as in "a whole number from 1 to 86400000".
std::string AllowedText(const Setting& setting);

// The default as one would write it in the environment; "" when it is empty.
std::string DefaultText(const Setting& setting);

// Returns a variable's value, or null when it is not set.
using EnvironmentLookup = std::function<const char*(const char* variable)>;

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

// ANNULUS_WATCH: what annulus-run --watch hands down to its ranks, for nobody else to set. Null when it is not set.
const char* WatchVariable();

// Names the ANNULUS_* variables of `environment` (as environ: "NAME=value", null-terminated) that nothing reads,
// likely misspelt, each with the nearest known name when there is one: "ANNULUS_CHANELS (is ANNULUS_CHANNELS meant?)".
std::vector<std::string> UnknownVariables(const char* const* environment);

// Logs UnknownVariables of this process as one warning, on the first call only. A host's ranks mostly have the same
// ones, so one speaks: unless `local_rank`, -1 where it is not known yet, is more than 0.
void WarnOfUnknownVariables(int rank, int local_rank);

// Parses all of `text` as a decimal number; false when it is not one or does not fit.
bool ParseNumber(const std::string& text, int64_t* number);

// Splits "host:port" or "[v6]:port". False when that is not the form, or the port is not from 1 to 65535.
bool ParseAddress(const std::string& text, std::string* host, int* port);

// The opposite: puts an IPv6 address in brackets.
std::string FormatAddress(const std::string& host, int port);

}  // namespace annulus
