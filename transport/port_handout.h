// PortHandout: how annulus-run gives rank 0 the socket that listens at the rendezvous, so that nobody else can ever
// listen there. Rank 0 asks at a UNIX socket whose name is in its environment: other than an inherited descriptor, that
// reaches a program through whatever wrappers start it, and gives every communicator of the process a copy.
//
// Threads: one.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace annulus {

class PortHandout {
 public:
  static constexpr const char* kVariable = "ANNULUS_RENDEZVOUS_FROM";

  PortHandout() = default;
  PortHandout(const PortHandout&) = delete;
  PortHandout& operator=(const PortHandout&) = delete;
  ~PortHandout();

  // Offers copies of `listener`, which stays the caller's and outlives this. Call once. Errors: kSystem.
  Status Open(int listener);

  // Readable when somebody asks; -1 when not open.
  int fd() const { return door_; }
  // Gives a copy to each who asks, if it is a process of this user or root. Pauses for a moment where the system has no
  // descriptor for that.
  void Serve();

  // "NAME=value" for rank 0's environment.
  std::string variable() const { return std::string(kVariable) + "=" + name_; }

 private:
  int listener_ = -1;
  int door_ = -1;
  std::string name_;
};

// Asks for a copy at the UNIX socket called `name`. Returns a socket, which the caller owns, or -1 when nobody of this
// user answers there until the deadline. What it is remains to be checked.
int FetchPort(const std::string& name, Deadline deadline);

}  // namespace annulus
