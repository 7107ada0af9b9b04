// Links over the simulated provider that go on over TCP, made as TransportSet makes them, for tests of links alone.
//
// Threads: as transport/transport.h says.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/resume/resuming_endpoint.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/verbs.h"

namespace annulus {

class ResumingTransport final : public Transport {
 public:
  using OnMade = std::function<void(Endpoint* endpoint)>;
  using OverStream = std::function<decltype(TcpOverStream)>;

  // `on_made` runs once a link of this rank is made. `over_stream` makes the second links.
  explicit ResumingTransport(TransportConfig config, int reconnect_ms = 20'000, OnMade on_made = nullptr,
                             OverStream over_stream = TcpOverStream)
      : config_(std::move(config)), on_made_(std::move(on_made)), over_stream_(std::move(over_stream)) {
    config_.continues = true;
    config_.settings.Set("reconnect_ms", reconnect_ms);
    first_ = CreateVerbsTransportOver(SimulatedVerbs::Api(), "", config_);
  }

  const char* Name() const override { return first_->Name(); }
  Status Probe() const override { return first_->Probe(); }
  Status LocalAddress(std::string* address) override { return first_->LocalAddress(address); }

  Status Connect(std::span<const LinkRequest> links, const ConnectContext& context,
                 std::vector<std::unique_ptr<Endpoint>>* endpoints) override {
    ANNULUS_RETURN_IF_ERROR(first_->Connect(links, context, endpoints));
    for (size_t i = 0; i < links.size(); ++i) {
      std::unique_ptr<Endpoint>& endpoint = (*endpoints)[i];
      if (endpoint->shortcuts().continuable == nullptr) continue;
      const auto go_on = [config = config_, link = links[i], over_stream = over_stream_](
                             LinkStream stream, std::unique_ptr<Endpoint>* second) {
        return over_stream(config, link, std::move(stream), second);
      };
      endpoint = std::make_unique<ResumingEndpoint>(std::move(endpoint), config_.rank, go_on);
      if (on_made_) on_made_(endpoint.get());
    }
    return Status();
  }

 private:
  TransportConfig config_;
  const OnMade on_made_;
  const OverStream over_stream_;
  std::unique_ptr<Transport> first_;
};

}  // namespace annulus
