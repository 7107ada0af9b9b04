#include "base/cpu_cache.h"

#include <charconv>

#include "base/text_file.h"

namespace annulus {
namespace {

constexpr size_t kUnknownBytes = size_t{32} << 20;
constexpr int kMaxIndices = 16;

std::string ReadWord(const std::string& path) {
  const std::string text = ReadTextFile(path);
  return text.substr(0, text.find_first_of(" \n"));
}

// Parses "32768K" and the like; 0 when the text has another form.
size_t ParseCacheSize(const std::string& text) {
  size_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, number);
  constexpr size_t kLargest = size_t{1} << 20;  // In any unit: no cache is that large, and nothing overflows.
  if (error != std::errc() || number > kLargest) return 0;
  if (unit == end) return number;
  if (*unit == 'K') return number << 10;
  return *unit == 'M' ? number << 20 : 0;
}

}  // namespace

size_t LastLevelCacheBytes(const std::string& folder) {
  size_t bytes = 0;
  size_t last_level = 0;
  for (int index = 0; index < kMaxIndices; ++index) {
    const std::string cache = folder + "/index" + std::to_string(index) + "/";
    const std::string type = ReadWord(cache + "type");
    if (type != "Data" && type != "Unified") continue;
    const size_t level = ParseCacheSize(ReadWord(cache + "level"));
    const size_t size = ParseCacheSize(ReadWord(cache + "size"));
    if (size == 0 || level <= last_level) continue;
    last_level = level;
    bytes = size;
  }
  return bytes;
}

size_t LastLevelCacheBytes() {
  const size_t bytes = LastLevelCacheBytes("/sys/devices/system/cpu/cpu0/cache");
  return bytes > 0 ? bytes : kUnknownBytes;
}

}  // namespace annulus
