// Job: what all ranks of one run share - the key, the rendezvous port - and each rank's environment.
//
// Threads: one.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/launcher/arguments.h"

namespace annulus {

using Variables = std::map<std::string, std::string>;

// A TCP port of 127.0.0.1 that nobody else gets while this lives. The socket is bound with SO_REUSEPORT but never
// listens, so rank 0 can bind the same port with SO_REUSEPORT and gets every connection.
class ReservedPort {
 public:
  ReservedPort() = default;
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  ~ReservedPort();

  Status Reserve();
  int port() const { return port_; }

 private:
  int socket_ = -1;
  int port_ = 0;
};

class Job {
 public:
  // Reserves the port, makes a key unless the environment has one, and checks the ANNULUS_* settings that the ranks
  // will read, so that a mistake is reported once and not by every rank.
  Status Prepare(const Arguments& arguments, const char* const* environment);

  // "NAME=value" for execve.
  std::vector<std::string> EnvironmentOf(int rank) const;

 private:
  Status CheckSettings() const;
  Variables VariablesOf(int rank) const;

  int nranks_ = 0;
  ReservedPort port_;
  Variables shared_;
};

// 256 random bits in hexadecimal. Empty when the system has no randomness to give.
std::string MakeJobKey();

}  // namespace annulus
