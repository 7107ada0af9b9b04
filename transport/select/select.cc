#include "transport/select/select.h"

#include <algorithm>
#include <string_view>
#include <type_traits>

#include "transport/reconnect.h"

namespace annulus {

// Each in its backend's folder.
#define ANNULUS_SETTING(...)
#define ANNULUS_TRANSPORT(Backend) extern const TransportInfo k##Backend##Transport;
#include "transport/select/transports.inc"
#undef ANNULUS_TRANSPORT

namespace {

constexpr const TransportInfo* kTransports[] = {
#define ANNULUS_TRANSPORT(Backend) &k##Backend##Transport,
#include "transport/select/transports.inc"
#undef ANNULUS_TRANSPORT
#undef ANNULUS_SETTING
};

constexpr std::string_view kBetweenNetworks = ", ";

const char* WordOf(TransportChoice choice) { return kTransportWords[static_cast<size_t>(choice)]; }

bool Chose(TransportChoice choice, const TransportInfo& transport) {
  return choice == TransportChoice::kAuto || std::string_view(WordOf(choice)) == transport.name;
}

template <class Value>
void Put(const char* name, const Value& value, TransportSettings* settings) {
  if constexpr (std::is_same_v<Value, std::string>) {
    settings->Set(name, value);
  } else {
    settings->Set(name, static_cast<int64_t>(value));
  }
}

// Reads the first entry of a list, and removes it.
std::string_view ReadEntry(std::string_view* list) {
  const std::string_view entry = list->substr(0, list->find(kBetweenNetworks));
  list->remove_prefix(std::min(list->size(), entry.size() + kBetweenNetworks.size()));
  return entry;
}

bool ShareAnEntry(std::string_view left, std::string_view right) {
  while (!left.empty()) {
    const std::string_view entry = ReadEntry(&left);
    for (std::string_view others = right; !others.empty();) {
      if (ReadEntry(&others) == entry) return true;
    }
  }
  return false;
}

// Why `transport` may not link two ranks that both have it.
std::string ApartText(const TransportInfo& transport, const SelectEnd& left, const SelectEnd& right, size_t index) {
  const auto place = [&](const SelectEnd& end) {
    return "rank " + std::to_string(end.rank) + " is in " + std::string(transport.networks(end.addresses[index]));
  };
  return std::string(transport.name) + " may not reach: " + place(left) + ", " + place(right);
}

// What was looked at and not taken.
struct Passed {
  std::string all;        // As it is told when there is no transport.
  std::string told;       // Those that are not merely off or for one host.
  int apart = -1;         // The first that both have, but that may not reach.
  std::string before_it;  // `told`, before that one.

  void Add(const std::string& why, bool tell) {
    all += " " + why + ";";
    if (tell) told += (told.empty() ? "" : "; ") + why;
  }
};

}  // namespace

TransportList Transports() { return kTransports; }

const TransportInfo* FindTransport(TransportList list, const std::string& name) {
  const auto found = std::ranges::find_if(list, [&](const TransportInfo* each) { return name == each->name; });
  return found == list.end() ? nullptr : *found;
}

const TransportInfo* OnlyTransport(TransportList list, TransportChoice choice) {
  return FindTransport(list, WordOf(choice));
}

TransportFilter FilterOf(TransportList list, const TransportOptions& options) {
  const bool lacks_it = OnlyTransport(list, options.transport) != nullptr && !WhyNotSelected(list, options).empty();
  TransportFilter filter(lacks_it ? TransportChoice::kAuto : options.transport);
  filter.in_clear = options.encrypt != Encryption::kRequired;
  return filter;
}

std::string WhyNotSelected(TransportList list, const TransportOptions& options) {
  if (options.encrypt != Encryption::kRequired) return "";
  for (const TransportInfo* each : list) {
    if (!each->in_clear || !Chose(options.transport, *each)) continue;
    return std::string(each->name) + " is not used: it sends in clear, and ANNULUS_ENCRYPT is required";
  }
  return "";
}

bool Allows(const TransportFilter& filter, const TransportInfo& transport) {
  return Chose(filter.choice, transport) && (filter.in_clear || !transport.in_clear);
}

const TransportInfo* ContinuingTransport(TransportList list) {
  const auto found = std::ranges::find_if(list, [](const TransportInfo* each) { return each->over_stream != nullptr; });
  return found == list.end() ? nullptr : *found;
}

size_t LinkMemoryBytes(TransportList list, const TransportInfo& transport, const TransportConfig& config) {
  const TransportInfo* const other = ContinuingTransport(list);
  const bool continues =
      transport.continuable && other != nullptr && ReconnectMs(config.settings.Number("reconnect_ms"), false) > 0;
  if (!continues) return transport.link_memory(config);
  TransportConfig first = config;
  first.continues = true;
  return transport.link_memory(first) + other->over_stream_memory(config);
}

size_t MostLinkPorts(TransportList list, const TransportOptions& options) {
  const TransportFilter filter = FilterOf(list, options);
  size_t most = 1;
  for (const TransportInfo* each : list) {
    if (each->most_ports == nullptr || !Allows(filter, *each)) continue;
    most = std::max(most, each->most_ports(SettingsOf(options)));
  }
  return most;
}

Status CheckTransport(TransportList list, TransportChoice choice) {
  if (choice == TransportChoice::kAuto || OnlyTransport(list, choice) != nullptr) return Status();
  return Status::Invalid(std::string("transport (ANNULUS_TRANSPORT) is \"") + WordOf(choice) +
                         "\", which is not among the transports of this job");
}

TransportSettings SettingsOf(const TransportOptions& options) {
  TransportSettings settings;
#define ANNULUS_SETTING(name, ...) Put(#name, options.name, &settings);
#include "transport/select/transport_settings.inc"
#undef ANNULUS_SETTING
  return settings;
}

bool Reach(const TransportInfo& transport, std::string_view left, std::string_view right) {
  if (transport.networks == nullptr) return true;
  return ShareAnEntry(transport.networks(left), transport.networks(right));
}

Status SelectTransport(TransportList list, const SelectEnd& left, const SelectEnd& right, int* index,
                       std::string* passed_over, size_t first) {
  Passed passed;
  const auto take = [&](int taken, const std::string& why) {
    *index = taken;
    if (passed_over != nullptr) *passed_over = why;
    return Status();
  };
  for (size_t i = first; i < list.size(); ++i) {
    const TransportInfo& transport = *list[i];
    if (transport.same_host_only && left.host_id != right.host_id) {
      passed.Add(std::string(transport.name) + " needs one host", false);
    } else if (left.addresses[i].empty() || right.addresses[i].empty()) {
      const SelectEnd& lacking = left.addresses[i].empty() ? left : right;
      const std::string reason = i < lacking.reasons.size() ? lacking.reasons[i] : "";
      passed.Add(std::string(transport.name) + (reason.empty() ? " is off at rank " : " is not usable at rank ") +
                     std::to_string(lacking.rank) + (reason.empty() ? "" : ": " + reason),
                 !reason.empty());
    } else if (Reach(transport, left.addresses[i], right.addresses[i])) {
      return take(static_cast<int>(i), passed.told);
    } else {
      if (passed.apart < 0) {
        passed.apart = static_cast<int>(i);
        passed.before_it = passed.told;
      }
      passed.Add(ApartText(transport, left, right, i), true);
    }
  }
  if (passed.apart >= 0) return take(passed.apart, passed.before_it);
  return {Code::kUnsupported,
          "no transport connects rank " + std::to_string(left.rank) + " and rank " + std::to_string(right.rank) + ":" +
              passed.all + " check ANNULUS_TRANSPORT",
          right.rank, 0};
}

}  // namespace annulus
