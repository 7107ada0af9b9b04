// The table of all settings: the rows of the .inc files, and the bounds and words that they refer to.
//
// Threads: constants.
#include "base/check.h"
#include "collectives/core/options.h"

namespace annulus {
namespace {

constexpr int64_t kMostRanks = JobPlace::kMostRanks;
constexpr int64_t kMaxTimeoutMs = 86'400'000;         // One day: longer is a mistake in the unit.
constexpr int64_t kMinSliceBytes = 1024;              // Below this, the frame's header outweighs its data.
constexpr int64_t kMaxSliceBytes = 16 * 1024 * 1024;  // Above this, slots no longer fit any cache.
constexpr int64_t kMaxSmallBytes = 64 * 1024;         // Each rank keeps size times as much for the one-hop exchange.
constexpr int64_t kMaxMeshRanks = 4096;
constexpr int64_t kMaxMemoryBytes = int64_t{1} << 46;
constexpr int64_t kMaxSpinUs = 1'000'000;
constexpr int64_t kMaxDevice = 1023;
constexpr int64_t kMaxStreamFoldBytes = int64_t{16} << 30;
constexpr int64_t kMaxDeviceStagedBytes = 64 * 1024 * 1024;  // Each communicator pins as much.
constexpr int64_t kShortestKey = 16;
constexpr int64_t kLongestText = 255;
constexpr int64_t kLongestPath = 1024;

constexpr const char* kTuningWords[] = {"nominal", "measured"};               // By Tuning.
constexpr const char* kReduceOnWords[] = {"auto", "gpu", "cpu"};              // By ReduceOn.
constexpr const char* kLogLevelWords[] = {"error", "warn", "info", "debug"};  // By LogLevel.

constexpr Setting kSettings[] = {
#define ANNULUS_SETTING(name, Type, unset, variable, allowed, ranks, help) \
  MakeSetting<Options, &Options::name>(#name, variable, unset, allowed, ranks, help),
#include "collectives/core/all_settings.inc"
#undef ANNULUS_SETTING
};

}  // namespace

std::span<const Setting> Settings() { return kSettings; }

const Setting& SettingNamed(std::string_view name) {
  const Setting* const found = FindSetting(kSettings, name);
  ANNULUS_CHECK(found != nullptr);
  return *found;
}

}  // namespace annulus
