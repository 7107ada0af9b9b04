// Hosts: which host runs how many ranks, from -H or a file, and which ranks these are.
//
// Threads: plain functions.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace annulus {

constexpr int kMaxRanks = 1024;  // Per job: the launcher keeps pipes and a table for all ranks.

struct HostSlots {
  std::string name;  // A host, an address, or user@host, as ssh accepts it.
  int slots = 1;
};

struct Placement {
  std::string host;
  bool here = false;  // Whether it is this machine, which needs no ssh.
  int first_rank = 0;
  int nranks = 0;
};

// Appends the hosts of "host1:2,user@host2:2,[fe80::1]:4"; without a number a host has one slot.
//
// Errors: kInvalidArgument  shows the wrong entry.
Status ParseHosts(const std::string& text, std::vector<HostSlots>* hosts);

// Appends the hosts of a file: "host slots=N", "host:N" or "host" on each line, "#" opening a comment.
//
// Errors: kInvalidArgument  names file and line.
Status ReadHostFile(const std::string& path, std::vector<HostSlots>* hosts);

// Whether `name` is "localhost", a loopback address, or this machine's name, short or long.
bool IsThisHost(const std::string& name);

// Assigns ranks host by host, one per slot, or `nranks` of them when that is not 0.
//
// Errors: kInvalidArgument  too few slots, or a host is listed twice.
Status PlaceRanks(const std::vector<HostSlots>& hosts, int nranks, std::vector<Placement>* placements);

}  // namespace annulus
