#include "base/parse.h"

#include <charconv>

namespace annulus {

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
