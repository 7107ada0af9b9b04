// Door: accepts connections at a listener, runs the handshake with each, and hands on those that prove themselves. All
// others are strangers: they are dropped, counted, and logged once per reason, and delay nobody.
//
// Threads: the one that runs the io_context. Held by shared_ptr: handlers that are still queued keep it alive, and find
// it closed.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "base/clock.h"
#include "base/secret.h"
#include "base/status.h"
#include "transport/security/strays.h"
#include "transport/security/stream_handshake.h"
#include "transport/stream_socket.h"

namespace annulus {

class Door : public std::enable_shared_from_this<Door> {
 public:
  // A peer that has proven itself.
  struct Proven {
    std::string from;
    Deadline limit;  // When it would have been dropped without a proof.
    std::shared_ptr<StreamHandshake> handshake;
  };

  struct Plan {
    Hello hello;  // This rank's hello, as for an acceptor's Handshake.
    Secret key;
    size_t expected = 0;    // Number of peers that may wait for proof at once without being a crowd.
    Nanoseconds limit = 0;  // Time that a connection has for its proof.
    StreamHandshake::Decide decide;
    std::function<void(Proven)> on_proven;
    // If any: a rank of this job has come whose setting of encryption is another, which the status says.
    std::function<void(const Status&)> on_unlike;
    // Keeps one descriptor back, for a peer that comes when the process has no other left.
    bool keeps_spare = false;
    // The process or the system has no descriptor left, and no stranger holds one. Called again until that changes.
    std::function<void(const Status&)> on_exhausted;
  };

  Door(asio::io_context* context, Plan plan);

  // Begins to accept. `listener` stays the caller's and outlives Close().
  void Open(StreamListener* listener);

  // Drops all who have not proven themselves. No function of the plan is called any more. Idempotent.
  void Close();

  // Counts and logs a dropped connection that had passed the door.
  void Note(Strays::Reason reason, const std::string& from, const std::string& detail);
  void LogSummary() const { strays_.LogSummary(); }
  // The connection dropped last: where it came from and why it was dropped; "" when there was none.
  const std::string& last_dropped() const { return last_dropped_; }

 private:
  struct Visitor {
    explicit Visitor(asio::io_context& context) : timer(context) {}
    std::string from;
    std::string host;
    const int* from_its_host = nullptr;
    uint64_t turn = 0;  // In which it was accepted.
    Nanoseconds since = 0;
    Deadline limit = 0;
    asio::steady_timer timer;
    std::shared_ptr<StreamHandshake> handshake;
  };
  using Visitors = std::list<Visitor>;

  void Await();
  void AcceptSome();
  // Deals with accept's failure. Whether to accept on at once.
  bool Recover(int os_errno);
  void Pause();
  void Greet(int fd, const StreamEndpoint& from);
  void OnResult(Visitors::iterator visitor, Status status);
  void DropSlow(const StreamHandshake* handshake);
  void DropFromCrowd();
  bool DropSilent();
  void KeepSpare();
  // Whether there was a spare descriptor to give up.
  bool UseSpare();
  void Drop(Visitors::iterator visitor, Strays::Reason reason, const std::string& detail);
  void Remove(Visitors::iterator visitor);

  asio::io_context* const context_;
  const Plan plan_;
  Strays strays_;
  std::string last_dropped_;
  StreamListener* listener_ = nullptr;  // Null when closed.
  int spare_ = -1;                      // A descriptor of nothing; -1: none.
  asio::steady_timer pause_;
  Visitors visitors_;                 // Oldest first.
  std::map<std::string, int> hosts_;  // Number of visitors by host.
  uint64_t turn_ = 0;                 // Number of the turn in which connections are accepted.
  std::minstd_rand random_;           // Chooses among visitors that are alike.
};

// "rank 3 has no file descriptor left for <what>: Too many open files (EMFILE; its limit, ulimit -n, is 1024)".
Status OutOfDescriptors(int rank, const std::string& what, int os_errno);

// `status`, but OutOfDescriptors if it says that descriptors have run out and names no rank.
Status NamingWhoIsOut(int rank, const std::string& what, Status status);

// Whether the errno is about descriptors that have run out.
bool IsOutOfDescriptors(int os_errno);

}  // namespace annulus
