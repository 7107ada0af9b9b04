// The objects of the simulated device, and the device itself, which carries out requests. simulated_verbs.h tells what
// it is for.
//
// Threads: all of it is guarded by the device's mutex.
#pragma once

#include <sys/eventfd.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/verbs/provider/simulated_port.h"
#include "tests/verbs/provider/simulated_verbs.h"

namespace annulus {

constexpr int kNicDescriptorFlags = EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE;

struct NicContext : ibv_context {
  int number = 0;  // The device's.
  SimulatedPort port;
  std::deque<ibv_async_event> news;
};

struct NicChannel : ibv_comp_channel {
  std::deque<ibv_cq*> events;
};

struct NicQueue : ibv_cq {
  std::deque<ibv_wc> ready;
  bool armed = false;
  bool overrun = false;
  uint64_t unacknowledged = 0;  // Events that were read.
};

struct NicRegion : ibv_mr {
  int access = 0;
  bool is_protected = false;  // Its pages are kept out of children.
  // Memory of a GPU, as the device finds it; null: it is the process's.
  std::byte* file = nullptr;
  size_t file_bytes = 0;
  uint64_t file_offset = 0;  // Where the region begins in it.

  // Where the device finds what has that address, which lies in the region.
  std::byte* At(uint64_t address) const {
    if (file == nullptr) return reinterpret_cast<std::byte*>(address);
    return file + file_offset + (address - reinterpret_cast<uint64_t>(addr));
  }
};

struct NicRequest {
  ibv_send_wr request{};
  std::vector<ibv_sge> pieces;
  std::vector<std::byte> copy;  // What the request carries itself.
  uint64_t index = 0;           // Among the pair's.
};

struct NicReceive {
  uint64_t id = 0;
  ibv_sge piece{};
};

// A completion on its way to the queue.
struct NicCompletion {
  ibv_wc completion{};
  uint64_t index = 0;    // Index of the request.
  bool is_ready = true;  // Until then those behind it wait, too.
  bool is_asked = true;  // Otherwise nobody is told, unless the request fails.
};

// A READ that is being answered.
struct NicRead {
  NicRequest request;
  uint64_t done_bytes = 0;
};

struct NicPair : ibv_qp {
  ibv_qp_cap cap{};
  uint8_t port = 1;
  uint32_t peer = 0;
  ibv_ah_attr route{};  // Where its packets go.
  bool signals_all = false;
  int access = 0;
  int most_reads = 0;    // READs of its own under way at a time.
  int most_answers = 0;  // READs of its peer that it answers at a time.
  std::deque<NicRequest> requests;
  std::deque<NicRead> reads;  // In order.
  std::deque<NicReceive> receives;
  std::deque<NicCompletion> sent;      // In order.
  std::deque<NicCompletion> received;  // In order.
  uint64_t posted = 0;
  uint64_t reclaimed = 0;  // Requests whose room is free again: all up to the last completion that was polled.
  std::map<uint64_t, uint64_t> completed;  // By id of the completions in the queue: the request's index + 1.
  int not_ready = 0;
};

// The port of a pair, and whether that is its RoCE address. The caller holds the device's mutex.
SimulatedPort PortOf(const NicPair& pair);
bool IsGidOf(const NicPair& pair, const ibv_gid& gid);

// Sets the functions of a device's driver, for the data path.
void SetDataFunctions(ibv_context* context);

class SimulatedNic {
 public:
  static SimulatedNic& Get();

  std::mutex& mutex() { return mutex_; }
  void Wake() { work_.notify_one(); }

  int PostSend(NicPair* pair, ibv_send_wr* request, ibv_send_wr** bad);
  int PostReceive(NicPair* pair, ibv_recv_wr* request, ibv_recv_wr** bad);
  int Poll(NicQueue* queue, int count, ibv_wc* completions);
  // Whether the pair's device stands still.
  bool IsBlocked(const NicPair& pair) const;
  // Ends all that a pair has under way.
  void Flush(NicPair* pair);
  void Raise(NicContext* context, const ibv_async_event& event);

  // Count objects of the library that exist.
  template <class Object>
  Object* Count(Object* object) {
    ++counts.objects;
    return object;
  }
  template <class Object, class Base>
  void Delete(Base* object) {
    --counts.objects;
    delete static_cast<Object*>(object);
  }

  // By number, by key. Public, because the functions of the library add and remove.
  std::map<uint32_t, NicPair*> pairs;
  std::map<uint32_t, NicRegion*> regions;
  std::vector<std::pair<std::byte*, std::vector<std::byte>>> hidden;  // What GPUs do not see yet, and its places.
  std::vector<NicContext*> contexts;
  SimulatedMachine machine;
  SimulatedCounts counts;
  bool protects = false;           // New regions are kept out of children.
  bool protects_too_late = false;  // There are others.
  uint32_t next_number = 17;
  uint64_t allowed = 0;  // As in SimulatedVerbs::Allow.
  uint64_t fail_after = UINT64_MAX;
  ibv_wc_status fail_with = IBV_WC_SUCCESS;
  std::mt19937_64 random{1};

 private:
  SimulatedNic();
  ~SimulatedNic();

  void Run();
  bool Step();
  // Whether the device of a pair carries out a request now.
  bool HasTurn(const NicPair& pair);
  void CarryOut(NicPair* pair);
  // Begins the READ that is the pair's first request.
  void BeginRead(NicPair* pair);
  // Goes on with the pair's first READ.
  void AnswerRead(NicPair* pair);
  ibv_wc_status CheckRead(const NicPair& pair, const NicRequest& request, const NicPair* peer) const;
  // The pair's first READ is over.
  void EndRead(NicPair* pair, ibv_wc_status status);
  NicPair* PeerOf(const NicPair& pair) const;
  ibv_wc_status Carry(NicPair* pair, const NicRequest& request, NicPair* peer);
  ibv_wc_status Receive(const NicRequest& request, const std::vector<std::byte>& data, NicPair* peer);
  bool Gather(const NicRequest& request, std::vector<std::byte>* data);
  NicRegion* FindRegion(uint32_t key, uint64_t address, uint64_t bytes, int access) const;
  void Complete(NicPair* pair, const NicRequest& request, ibv_wc_status status);
  void Fail(NicPair* pair, const NicRequest& request, ibv_wc_status status);
  void Deliver(NicPair* pair, std::deque<NicCompletion>* from, ibv_cq* to);

  std::mutex mutex_;
  std::condition_variable work_;
  bool ends_ = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace annulus
