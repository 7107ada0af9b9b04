// The contract suite on TCP: one socket, several, with checksums, over IPv6, encrypted, and on links that are made
// again.
#include <memory>
#include <utility>

#include "tests/transport/contract/contract.h"
#include "transport/tcp/tcp.h"

namespace annulus {
namespace {

std::unique_ptr<Transport> MakeOneSocket(TransportConfig config) {
  config.settings.Set("tcp_sockets", 1);
  return CreateTcpTransport(config);
}

std::unique_ptr<Transport> MakeThreeSockets(TransportConfig config) {
  config.settings.Set("tcp_sockets", 3);
  return CreateTcpTransport(config);
}

std::unique_ptr<Transport> MakeChecksummed(TransportConfig config) {
  config.settings.Set("tcp_sockets", 2);
  config.settings.Set("checksum", true);
  return CreateTcpTransport(config);
}

std::unique_ptr<Transport> MakeIpv6(TransportConfig config) {
  config.local_host = "::1";
  return CreateTcpTransport(config);
}

std::unique_ptr<Transport> MakeReconnecting(TransportConfig config) {
  config.settings.Set("tcp_sockets", 1);
  config.settings.Set("reconnect_ms", 1000);
  return CreateTcpTransport(config);
}

std::unique_ptr<Transport> MakeReconnectingOfThree(TransportConfig config) {
  config.settings.Set("tcp_sockets", 3);
  config.settings.Set("reconnect_ms", 1000);
  return CreateTcpTransport(config);
}

std::unique_ptr<Transport> MakeEncrypted(TransportConfig config) {
  config.settings.Set("encrypt", 1);
  return MakeOneSocket(std::move(config));
}

std::unique_ptr<Transport> MakeEncryptedOfThree(TransportConfig config) {
  config.settings.Set("encrypt", 1);
  return MakeThreeSockets(std::move(config));
}

std::unique_ptr<Transport> MakeEncryptedReconnecting(TransportConfig config) {
  config.settings.Set("encrypt", 1);
  return MakeReconnecting(std::move(config));
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Tcp, EndpointContract,
                         FirstUnderThreads(3, {TransportBackend("ThreeSockets", MakeThreeSockets),
                                               TransportBackend("EncryptedOfThree", MakeEncryptedOfThree),
                                               TransportBackend("EncryptedReconnecting", MakeEncryptedReconnecting),
                                               TransportBackend("OneSocket", MakeOneSocket),
                                               TransportBackend("Checksummed", MakeChecksummed),
                                               TransportBackend("Ipv6", MakeIpv6),
                                               TransportBackend("Encrypted", MakeEncrypted),
                                               TransportBackend("Reconnecting", MakeReconnecting),
                                               TransportBackend("ReconnectingOfThree", MakeReconnectingOfThree)}),
                         BackendName);

}  // namespace annulus
