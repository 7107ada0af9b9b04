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
    // For people: the devices of this machine that links may use; "" where there are none to name.
    std::string devices;
  };

  // Starts listening on every transport that is usable here. What the config points to outlives this object.
  // Errors: kUnsupported with the reasons when there is none.
  Status Listen(const TransportConfig& config, Offer* offer);

  // Whoever wants links.
  class Owner {
   public:
    // The transport of that index has made one.
    virtual void OnLink(size_t transport, const LinkRequest& link, std::unique_ptr<Endpoint> endpoint) = 0;
    // A device of the transport has refused one that has another transport, at either end. *transport and *link become
    // what is to be made in its place, by a transport further down the list. The other end makes the same choice.
    virtual Status Replace(size_t* transport, LinkRequest* link, const std::string& why) = 0;

   protected:
    ~Owner() = default;
  };

  // Makes the links that are wanted of each transport, by its index in the list, and stops listening. The owner gets
  // every link once its transport has made all of its own. Those that can go on elsewhere when they fail do so
  // (transport/resume). Errors: those of Transport::Connect and Owner::Replace.
  Status Connect(std::vector<std::vector<LinkRequest>> wanted, ConnectContext context, Owner* owner);

 private:
  std::unique_ptr<Endpoint> MayGoOn(const LinkRequest& link, std::unique_ptr<Endpoint> endpoint) const;

  const TransportList list_;
  const TransportFilter filter_;
  TransportConfig config_;                              // Since Listen.
  std::vector<std::unique_ptr<Transport>> transports_;  // By index in the list; null: off or not usable.
};

}  // namespace annulus
