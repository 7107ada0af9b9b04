// Log: one line to standard error per message, "annulus[rank] level: text".
//
// Threads: all functions may be called from any thread; a line is written whole.
// Never called on the data path.
#pragma once

#include <string_view>

namespace annulus {

enum class LogLevel : int { kError = 0, kWarn = 1, kInfo = 2, kDebug = 3 };

// Messages above `level` are dropped. kWarn until set.
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();

// Writes one line. `rank` is the caller's rank, or -1 before it is known.
void Log(LogLevel level, int rank, const char* format, ...) __attribute__((format(printf, 3, 4)));

}  // namespace annulus
