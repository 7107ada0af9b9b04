// Select: the list of transports, and which of them a pair of ranks uses.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "transport/select/transport_options.h"
#include "transport/transport_info.h"

namespace annulus {

// All transports of the library, the preferred one first.
TransportList Transports();

// Returns null when the list has no transport of that name.
const TransportInfo* FindTransport(TransportList list, const std::string& name);

// The transport that the user selected; null for kAuto, or when the list does not have it.
const TransportInfo* OnlyTransport(TransportList list, TransportChoice choice);

// What the user's settings allow.
struct TransportFilter {
  TransportFilter(TransportChoice wanted = TransportChoice::kAuto) : choice(wanted) {}  // NOLINT: the usual case.
  TransportChoice choice;
  bool in_clear = true;  // Also those that send in clear over networks.
};

// The filter of these settings. Where encryption is required and the selected transport sends in clear, it allows any
// other.
TransportFilter FilterOf(TransportList list, const TransportOptions& options);

// Why the filter lacks a transport that the user's choice has; "" where it has all.
std::string WhyNotSelected(TransportList list, const TransportOptions& options);

// Whether the filter allows `transport`.
bool Allows(const TransportFilter& filter, const TransportInfo& transport);

// The transport of the list whose links go on over the streams of those that have stopped; null: there is none.
const TransportInfo* ContinuingTransport(TransportList list);

// TransportInfo::link_memory, and what the link takes that goes on for it, if one may.
size_t LinkMemoryBytes(TransportList list, const TransportInfo& transport, const TransportConfig& config);

// The most ports that a link may have with these settings, of any transport that they allow.
size_t MostLinkPorts(TransportList list, const TransportOptions& options);

// Errors: kInvalidArgument when the user selected one that the list does not have.
Status CheckTransport(TransportList list, TransportChoice choice);

// The values of all settings of transports.
TransportSettings SettingsOf(const TransportOptions& options);

// One end of a pair.
struct SelectEnd {
  int rank = 0;
  std::string host_id;
  // Address at which each transport listens, by index in the list; "" where it is not usable.
  std::span<const std::string> addresses;
  // Why it is not usable; "" where it is, or is off. May be empty as a whole.
  std::span<const std::string> reasons = {};
};

// Whether ranks with these addresses of `transport` are known to reach each other.
bool Reach(const TransportInfo& transport, std::string_view left, std::string_view right);

// Chooses a transport for the pair; both ends make the same choice: the first of the list that both have and that is
// known to reach from one to the other, or else the first that both have. Output: index in the list;
// *passed_over: why it is none before it that one of the ranks wanted to use. Transports before `first` do not count.
// Errors: kUnsupported naming the ranks and why no transport fits.
Status SelectTransport(TransportList list, const SelectEnd& left, const SelectEnd& right, int* index,
                       std::string* passed_over = nullptr, size_t first = 0);

}  // namespace annulus
