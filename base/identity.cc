#include "base/identity.h"

#include <cstdio>

namespace annulus {

std::string ShortRunId(const std::string& id) {
  if (id.size() <= JobRun::kMostBytes) return id;
  uint64_t hash = 14'695'981'039'346'656'037u;  // FNV-1a, 64 bits.
  for (const char c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 1'099'511'628'211u;
  char end[18];
  std::snprintf(end, sizeof end, "~%016llx", static_cast<unsigned long long>(hash));
  return id.substr(0, JobRun::kMostBytes - (sizeof end - 1)) + end;
}

std::string JobRunText(const JobRun& run) {
  std::string text = run.id.empty() ? "no run" : "run " + run.id;
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text + " restart " + std::to_string(run.restart);
}

}  // namespace annulus
