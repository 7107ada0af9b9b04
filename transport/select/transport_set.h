// TransportSet: the transports that one rank listens on while its links are made.
//
// Threads: one at a time.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/select/select.h"

namespace annulus {

class TransportSet {
 public:
  // Those transports of the list that the filter allows.
  TransportSet(TransportList list, const TransportFilter& filter) : list_(list), filter_(filter) {}

  // What peers need to know to choose a transport, as in SelectEnd.
  struct Offer {
    std::vector<std::string> addresses;
    std::vector<std::string> reasons;
  };

  // Starts listening on every transport that is usable here. What the config points to outlives this object.
  // Errors: kUnsupported with the reasons when there is none.
  Status Listen(const TransportConfig& config, Offer* offer);

  // Called with the index of a transport, and with the links that it is to make or has made.
  using Made = std::function<void(size_t transport, const LinkRequest& link, std::unique_ptr<Endpoint> endpoint)>;

  // Makes the links that are wanted of each transport, by its index in the list, and stops listening. Calls `made` for
  // every link once its transport has made all of its own. Those that can go on elsewhere when they fail do so
  // (transport/resume). Errors: those of Transport::Connect.
  Status Connect(std::span<const std::vector<LinkRequest>> wanted, const ConnectContext& context, const Made& made);

 private:
  std::unique_ptr<Endpoint> MayGoOn(const LinkRequest& link, std::unique_ptr<Endpoint> endpoint) const;

  const TransportList list_;
  const TransportFilter filter_;
  TransportConfig config_;                              // Since Listen.
  std::vector<std::unique_ptr<Transport>> transports_;  // By index in the list; null: off or not usable.
};

}  // namespace annulus
