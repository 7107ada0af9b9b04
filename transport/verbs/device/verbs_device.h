// Which device, port and address the verbs links of a rank use, and why there is none.
//
// The best address is the one that the rank also has towards the rendezvous; then any RoCE v2 address of IPv4 or an
// InfiniBand port; then one of IPv6. The index of an address differs between machines and changes as interfaces come
// and go, so it is never assumed. Among equally good ones the device's name decides: hosts with the same cards have the
// same names, but the library's order is that in which each kernel has found them. Of several devices with good
// addresses in the network of the best one, a near one is taken (verbs_ports.h). Devices of iWARP are left out: their
// queue pairs are connected in another way.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transport/transport.h"
#include "transport/verbs/device/verbs_api.h"
#include "transport/verbs/device/verbs_near.h"

namespace annulus {

// Largest LID of a port; those above are of multicast groups.
inline constexpr uint16_t kMostLid = 0xbfff;

// What the user asks for; "" and 0: anything.
struct VerbsWish {
  std::string device;
  int port = 0;
  std::string gid;  // Numeric IPv4 or IPv6 address.
  int pkey_index = 0;
  std::string local_host;  // The rank's own numeric address; only preferred.
  VerbsNeighbour near;     // Only preferred.
  int turn = 0;            // Which of equally good ones it is to be, counted round and round.

  static VerbsWish Of(const TransportConfig& config);
};

// An open device, and what to use of it. Closes the device.
class VerbsDevice {
 public:
  VerbsDevice(const VerbsApi* api, ibv_context* context, std::string name)
      : api_(api), context_(context), name_(std::move(name)) {}
  ~VerbsDevice() { api_->close_device(context_); }
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  // Opens the device with the best address, and behind it all others with a good one, the best ones first. Errors:
  // kUnsupported with a reason for each device, and what to do about it.
  static Status FindAll(const VerbsApi* api, const VerbsWish& wish, std::vector<std::unique_ptr<VerbsDevice>>* found);
  // The first of them.
  static Status Find(const VerbsApi* api, const VerbsWish& wish, std::unique_ptr<VerbsDevice>* found);

  const VerbsApi* api() const { return api_; }
  ibv_context* context() const { return context_; }
  // "rxe0, port 1, RoCE v2 10.0.0.1", and why it was taken, if that was not for its address.
  std::string Describe() const;
  void SetReason(std::string why) { reason_ = std::move(why); }
  const std::string& name() const { return name_; }
  uint8_t port() const { return use_.port; }
  int gid_index() const { return use_.gid_index; }
  const std::array<uint8_t, 16>& gid() const { return use_.gid; }
  bool ethernet() const { return use_.ethernet; }
  uint16_t lid() const { return use_.lid; }
  // Whether each packet needs a global header, also within the subnet.
  bool needs_global() const { return use_.needs_global; }
  // Partition key: 15 bits, and the highest one in full members.
  uint16_t pkey() const { return use_.pkey; }
  ibv_mtu mtu() const { return use_.mtu; }
  // Of the link, as the device tells; 0: it does not.
  double gbit_per_second() const { return use_.gbit_per_second; }
  int max_cqe() const { return max_cqe_; }
  // READs that a queue pair can have under way, and those of its peer that it can answer at a time; 0: none.
  int most_reads() const { return most_reads_; }
  int most_answers() const { return most_answers_; }

 private:
  // A port of the device and its best address.
  struct Use {
    uint8_t port = 0;
    int gid_index = 0;
    std::array<uint8_t, 16> gid{};
    bool ethernet = false;
    uint16_t lid = 0;
    bool needs_global = false;
    uint16_t pkey = 0;
    ibv_mtu mtu = IBV_MTU_1024;
    double gbit_per_second = 0;
  };

  // How well the device's best port suits; 0 when there is none, and *why says so.
  int Rate(const VerbsWish& wish, std::string* why);
  int RatePort(uint8_t port, const VerbsWish& wish, Use* use, std::string* why) const;
  int RateGids(const VerbsWish& wish, Use* use, std::string* why) const;

  const VerbsApi* const api_;
  ibv_context* const context_;
  const std::string name_;
  std::string reason_;
  Use use_;
  int max_cqe_ = 0;
  int most_reads_ = 0;
  int most_answers_ = 0;
};

// An address as a GID: IPv4 is mapped into IPv6. Returns false when `text` is no numeric address.
bool GidOf(const std::string& text, std::array<uint8_t, 16>* gid);

// "10.0.0.1" or "fe80::1".
std::string GidText(const std::array<uint8_t, 16>& gid);

}  // namespace annulus
