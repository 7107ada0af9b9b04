// Options: every setting of a communicator, parsed and checked once: words are enums from here on.
//
// A setting is one row of a file *_settings.inc or settings.inc. The row defines the field here, its ANNULUS_*
// variable, its name in the settings of annulus_config_t and in Python, parsing, range checks and messages, its row in
// the table (Settings), the comparison between ranks, and the test of docs/tuning.md. Where annulus_config_t has a
// field of that name, it also defines the conversion from there.
//
// Threads: plain functions and values. ReadEnvironment without a lookup reads the process's environment, which no other
// thread may change meanwhile.
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
#include "cuda_kernels/reduce_types.h"
#include "transport/select/transport_options.h"

namespace annulus {

// Source of the costs by which algorithms are chosen.
enum class Tuning : uint8_t { kNominal, kMeasured };

struct Options : JobPlace, TransportOptions {
  Options() = default;
  Options(const Options&) = default;
  Options(Options&&) = default;
  Options& operator=(const Options&) = default;
  Options& operator=(Options&&) = default;
  // Overwrites the job key, which must not stay in freed memory.
  ~Options();

#define ANNULUS_SETTING(name, Type, unset, ...) Type name = unset;
#include "collectives/core/settings.inc"
#undef ANNULUS_SETTING

  // In a communicator split from another: that one's job, and how many were split from it before, plus 1. Not for users
  // to set.
  uint64_t parent_job = 0;
  uint32_t epoch = 0;
  // The same: what TransportConfig::turn was there, and the number of the GPU; -1: none.
  int parent_turn = -1;
  int parent_gpu = -1;
  // The same: BootstrapConfig::listener while such a communicator is created.
  int listener = -1;
};

// The table of all rows. Each row describes a field of Options.
std::span<const Setting> Settings();

// Returns the row of that name, which must exist.
const Setting& SettingNamed(std::string_view name);

// Looks a variable up in this process's environment.
const char* ProcessVariable(const char* variable);

// Sets the options that ANNULUS_* variables name. An empty variable counts as not set.
// Errors: kInvalidArgument  names the variable, its value and what is allowed.
Status ReadVariables(const EnvironmentLookup& lookup, Options* options);

// Fills `options` with the defaults, then from ANNULUS_* variables, then from the launcher's variables. Values that
// remain unknown keep their defaults; Validate checks whether these suffice.
//
// Errors: as ReadVariables; `options` is unchanged.
Status ReadEnvironment(const EnvironmentLookup& lookup, Options* options);
Status ReadEnvironment(Options* options);

// The run of this process (base/launchers.h), whatever else a program chooses.
JobRun ReadRunOfProcess();

// The run that a communicator with these options belongs to.
JobRun JobRunOf(const Options& options);

// Checks the range of every value and that the values fit together. Every communicator's options pass through here,
// whoever filled them in.
//
// Errors: kInvalidArgument  names the field and its variable, the value and what is allowed.
Status Validate(const Options& options);

// ANNULUS_WATCH, which annulus-run --watch sets for its ranks; nobody else should set it. Null when it is not set.
const char* WatchVariable();

// ANNULUS_VERDICTS, which annulus-run sets for its ranks; nobody else should set it. Null when it is not set.
const char* VerdictsVariable();

// ANNULUS_RENDEZVOUS_FROM, which annulus-run sets for rank 0 (transport/port_handout.h). Null when it is not set.
const char* RendezvousFromVariable();

// Names the ANNULUS_* variables of `environment` (as environ: "NAME=value", null-terminated) that nothing reads,
// likely misspelt, each with the nearest known name when there is one: "ANNULUS_CHANELS (is ANNULUS_CHANNELS meant?)".
std::vector<std::string> UnknownVariables(const char* const* environment);

// Logs UnknownVariables of this process as one warning, on the first call only. The ranks of a host mostly have the
// same variables, so only one rank logs: nothing is logged when `local_rank` (-1 where it is not known yet) is more
// than 0.
void WarnOfUnknownVariables(int rank, int local_rank);

}  // namespace annulus
