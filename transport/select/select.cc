#include "transport/select/select.h"

#include <algorithm>
#include <string_view>
#include <type_traits>

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

const char* WordOf(TransportChoice choice) { return kTransportWords[static_cast<size_t>(choice)]; }

template <class Value>
void Put(const char* name, const Value& value, TransportSettings* settings) {
  if constexpr (std::is_same_v<Value, std::string>) {
    settings->Set(name, value);
  } else {
    settings->Set(name, static_cast<int64_t>(value));
  }
}

}  // namespace

TransportList Transports() { return kTransports; }

const TransportInfo* FindTransport(TransportList list, const std::string& name) {
  const auto found = std::ranges::find_if(list, [&](const TransportInfo* each) { return name == each->name; });
  return found == list.end() ? nullptr : *found;
}

const TransportInfo* OnlyTransport(TransportList list, TransportChoice choice) {
  return choice == TransportChoice::kAuto ? nullptr : FindTransport(list, WordOf(choice));
}

TransportFilter FilterOf(TransportList list, const TransportOptions& options) {
  TransportFilter filter(WhyNotSelected(list, options).empty() ? options.transport : TransportChoice::kAuto);
  filter.in_clear = options.encrypt != Encryption::kRequired;
  return filter;
}

std::string WhyNotSelected(TransportList list, const TransportOptions& options) {
  const TransportInfo* const only = OnlyTransport(list, options.transport);
  if (only == nullptr || !only->in_clear || options.encrypt != Encryption::kRequired) return "";
  return std::string("ANNULUS_TRANSPORT=") + only->name + " is not used: " + only->title +
         " sends in clear, and ANNULUS_ENCRYPT is required";
}

bool Allows(const TransportFilter& filter, const TransportInfo& transport) {
  if (transport.in_clear && !filter.in_clear) return false;
  if (filter.choice == TransportChoice::kAuto) return !transport.by_name_only;
  return std::string_view(WordOf(filter.choice)) == transport.name;
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

Status SelectTransport(TransportList list, const SelectEnd& left, const SelectEnd& right, int* index) {
  const bool same_host = left.host_id == right.host_id;
  std::string why;
  for (size_t i = 0; i < list.size(); ++i) {
    const TransportInfo& transport = *list[i];
    if (transport.same_host_only && !same_host) {
      why += std::string(" ") + transport.name + " needs one host;";
    } else if (left.addresses[i].empty() || right.addresses[i].empty()) {
      const SelectEnd& lacking = left.addresses[i].empty() ? left : right;
      const std::string reason = i < lacking.reasons.size() ? lacking.reasons[i] : "";
      why += std::string(" ") + transport.name + (reason.empty() ? " is off at rank " : " is not usable at rank ") +
             std::to_string(lacking.rank) + (reason.empty() ? "" : ": " + reason) + ";";
    } else {
      *index = static_cast<int>(i);
      return Status();
    }
  }
  return {Code::kUnsupported,
          "no transport connects rank " + std::to_string(left.rank) + " and rank " + std::to_string(right.rank) + ":" +
              why + " check ANNULUS_TRANSPORT",
          right.rank, 0};
}

}  // namespace annulus
