#include "collectives/comm/failure_report.h"

#include <new>

#include "base/clock.h"
#include "base/log.h"

namespace annulus {

const Verdict* FailureReport::Told() {
  const Control* const control = setup_->control();
  return control != nullptr && control->has_verdict() ? &control->verdict() : nullptr;
}

void FailureReport::Announce(const Verdict& verdict) {
  if (Board* const board = setup_->monitor()->board(); board != nullptr) board->failed.Set(1);
  if (TraceFile* const file = setup_->trace_file(); file != nullptr) file->trace()->SetVerdict(verdict, Now());
  setup_->TellLauncher(verdict);
  Log(LogLevel::kError, setup_->rank(), "%s: %s", CodeName(verdict.code), verdict.message.c_str());
}

void FailureReport::KeepTrace() {
  TraceFile* const file = setup_->trace_file();
  if (file == nullptr) return;
  try {
    const Status written = file->Write(TraceFile::kFailureEvents);
    if (!written.ok()) Log(LogLevel::kWarn, setup_->rank(), "%s", written.message().c_str());
  } catch (const std::bad_alloc&) {
    Log(LogLevel::kWarn, setup_->rank(), "no memory is left to write the timeline");
  }
}

}  // namespace annulus
