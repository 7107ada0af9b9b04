#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace annulus {
namespace {

std::atomic<int> g_level{static_cast<int>(LogLevel::kWarn)};
constexpr const char* kLevelNames[] = {"error", "warning", "info", "debug"};
constexpr int kMaxLineBytes = 2048;  // Longer messages are cut: one write() keeps a line whole.

}  // namespace

void SetLogLevel(LogLevel level) { g_level.store(static_cast<int>(level), std::memory_order_relaxed); }

LogLevel GetLogLevel() { return static_cast<LogLevel>(g_level.load(std::memory_order_relaxed)); }

void Log(LogLevel level, int rank, const char* format, ...) {
  if (level > GetLogLevel()) return;
  char line[kMaxLineBytes];
  const char* name = kLevelNames[static_cast<int>(level)];
  int used = rank < 0 ? std::snprintf(line, sizeof line, "annulus %s: ", name)
                      : std::snprintf(line, sizeof line, "annulus[%d] %s: ", rank, name);
  std::va_list arguments;
  va_start(arguments, format);
  used += std::vsnprintf(line + used, sizeof line - used, format, arguments);
  va_end(arguments);
  if (used > kMaxLineBytes - 1) used = kMaxLineBytes - 1;
  line[used++] = '\n';
  // A failure to write the log cannot be reported anywhere.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, used);
}

}  // namespace annulus
