#include "launcher/job/hosts.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/parse.h"

namespace annulus {
namespace {

// Whether ssh cannot mistake the name for an option, nor a shell for anything else.
bool IsHostName(const std::string& name) {
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::string(".-_@:%").find(c) != std::string::npos;
  };
  return !name.empty() && name[0] != '-' && name.find("@-") == std::string::npos && std::ranges::all_of(name, allowed);
}

std::optional<HostSlots> ParseHost(const std::string& entry) {
  HostSlots host;
  std::string slots = "1";
  const size_t bracket = entry.find('[');
  const size_t close = entry.find(']');
  const size_t colon = entry.find(':', close == std::string::npos ? 0 : close);
  if (colon != std::string::npos) slots = entry.substr(colon + 1);
  host.name = entry.substr(0, colon);
  if (bracket != std::string::npos && close != std::string::npos) {  // user@[v6]
    if (close + 1 != host.name.size() || bracket > close) return std::nullopt;
    host.name.erase(close, 1).erase(bracket, 1);
  }
  int64_t number;
  if (!IsHostName(host.name) || !ParseNumber(slots, &number) || number < 1 || number > kMaxRanks) return std::nullopt;
  host.slots = static_cast<int>(number);
  return host;
}

std::string Allowed() { return "; allowed: host or host:N, with N from 1 to " + std::to_string(kMaxRanks); }

// "host", "host:N" or "host slots=N".
std::optional<HostSlots> ParseHostLine(const std::string& line) {
  std::istringstream words(line);
  std::string name;
  std::string slots;
  std::string more;
  words >> name >> slots >> more;
  constexpr std::string_view kSlots = "slots=";
  if (slots.empty()) return ParseHost(name);
  if (!more.empty() || !slots.starts_with(kSlots)) return std::nullopt;
  const bool bare_v6 = std::ranges::count(name, ':') > 1 && name.find('[') == std::string::npos;
  return ParseHost((bare_v6 ? "[" + name + "]" : name) + ":" + slots.substr(kSlots.size()));
}

std::string OwnName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "";
  return name.data();
}

std::string Short(const std::string& name) { return name.substr(0, name.find('.')); }

}  // namespace

Status ParseHosts(const std::string& text, std::vector<HostSlots>* hosts) {
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const std::optional<HostSlots> host = ParseHost(entry);
    if (!host) return Status::Invalid("\"" + entry + "\" in the list of hosts is no host" + Allowed());
    hosts->push_back(*host);
  }
  return {};
}

Status ReadHostFile(const std::string& path, std::vector<HostSlots>* hosts) {
  std::ifstream file(path);
  if (!file) return Status::Invalid("the host file " + path + " cannot be read");
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::optional<HostSlots> host = ParseHostLine(line);
    if (!host) {
      return Status::Invalid(path + ":" + std::to_string(number) + ": \"" + line + "\" is no host" + Allowed() +
                             ", or host slots=N");
    }
    hosts->push_back(*host);
  }
  return hosts->empty() ? Status::Invalid("the host file " + path + " names no host") : Status();
}

bool IsThisHost(const std::string& name) {
  if (name == "localhost" || name == "::1" || name.starts_with("127.")) return true;
  const std::string own = OwnName();
  if (own.empty()) return false;
  if (name == own) return true;
  // node1 and node1.cluster are the same host; node1.cluster and node1.other are not.
  const bool one_is_short = name.find('.') == std::string::npos || own.find('.') == std::string::npos;
  return one_is_short && Short(name) == Short(own);
}

Status PlaceRanks(const std::vector<HostSlots>& hosts, int nranks, std::vector<Placement>* placements) {
  int slots = 0;
  for (const HostSlots& host : hosts) slots += host.slots;
  if (nranks == 0) nranks = slots;
  if (nranks > slots) {
    return Status::Invalid("-np is " + std::to_string(nranks) + ", but the hosts have " + std::to_string(slots) +
                           " slots");
  }
  int first = 0;
  for (const HostSlots& host : hosts) {
    const bool here = IsThisHost(host.name);
    for (const Placement& other : *placements) {
      if (other.host == host.name) return Status::Invalid("the host " + host.name + " is listed twice");
      if (here && other.here) return Status::Invalid(other.host + " and " + host.name + " are both this host");
    }
    const int taken = std::min(host.slots, nranks - first);
    if (taken > 0) placements->push_back({host.name, here, first, taken});
    first += taken;
  }
  return {};
}

}  // namespace annulus
