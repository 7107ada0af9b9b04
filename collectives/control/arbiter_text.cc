// Sentences for people; their tests are those of the arbiter.
#include "collectives/control/arbiter_text.h"

#include <algorithm>
#include <cerrno>
#include <string_view>

namespace annulus {
namespace {

struct Field {
  const char* name;
  std::string odd;
  std::string rest;
};

std::string Number(uint64_t value) { return std::to_string(value); }

// User-defined operations have no name, only the slot that is the same on every rank.
std::string OpText(ReduceOp op) {
  if (IsPremulSum(op)) return "premul_sum in slot " + Number(static_cast<int>(op) - kFirstPremulSum);
  if (IsUserOp(op)) return "user operation in slot " + Number(static_cast<int>(op) - kFirstUserOp);
  return OpName(op);
}

// The first field in which the two differ, from most to least telling.
Field DifferingField(const Call& odd, const Call& rest) {
  if (odd.type != rest.type) return {"type", TypeName(odd.type), TypeName(rest.type)};
  if (odd.op != rest.op) return {"operation", OpText(odd.op), OpText(rest.op)};
  if (odd.kind == CollectiveKind::kAllreduceGroup && odd.count == rest.count)
    return {"another division into tensors; digest", std::to_string(odd.root), std::to_string(rest.root)};
  if (HasCommonCounts(odd.kind))
    return {"counts for", Number(odd.count) + " elements", Number(rest.count) + " elements"};
  if (odd.kind != CollectiveKind::kAllreduceGroup && odd.root != rest.root)
    return {"root", std::to_string(odd.root), std::to_string(rest.root)};
  return {"count", Number(odd.count), Number(rest.count)};
}

Verdict MakeVerdict(Code code, int rank, int peer, std::string message, std::string advice) {
  Verdict verdict;
  verdict.code = code;
  verdict.rank = rank;
  verdict.peer = peer;
  verdict.message = std::move(message);
  verdict.advice = std::move(advice);
  return verdict;
}

}  // namespace

std::string RankList(const std::vector<int>& ranks) {
  constexpr size_t kMostNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t named = std::min(ranks.size(), kMostNamed);
  for (size_t i = 0; i < named; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (named < ranks.size()) text += " and " + std::to_string(ranks.size() - named) + " more";
  return text;
}

std::string CallName(const Call& call) {
  return std::string(KindName(call.kind)) + " #" + std::to_string(call.sequence);
}

std::string Difference(const std::string& odd, const Call& odd_call, const std::string& rest, const Call& rest_call) {
  if (odd_call.kind != rest_call.kind) {
    return odd + " called " + KindName(odd_call.kind) + " as collective #" + Number(odd_call.sequence) + ", " + rest +
           " called " + KindName(rest_call.kind);
  }
  const bool is_alike = odd_call.type == rest_call.type && odd_call.op == rest_call.op;
  if (is_alike && HasCommonCounts(odd_call.kind) && odd_call.count == rest_call.count)
    return odd + " called " + CallName(odd_call) + " with other counts than " + rest + ", though of the same sum";
  const Field field = DifferingField(odd_call, rest_call);
  return odd + " called " + CallName(odd_call) + " with " + field.name + " " + field.odd + ", " + rest + " with " +
         field.name + " " + field.rest;
}

const char* AdviceFor(Code code) {
  switch (code) {
    case Code::kMismatch:
      return "Every rank must call the same collectives in the same order with the same arguments.";
    case Code::kTimeout:
      return "If that rank is only slow, raise the timeout (ANNULUS_TIMEOUT_MS).";
    case Code::kPeerLost:
      return "Check the network between the two ranks; then destroy the communicator and create another.";
    case Code::kProtocol:
      return "Check that all ranks run the same version of the library and that nothing alters the data on its way.";
    case Code::kAuth:
      return "Check that all ranks were given the same job key.";
    case Code::kSystem:
      return "Look up the operating system's error; limits on memory, files or sockets are common causes.";
    case Code::kOutOfMemory:
      return "Give that rank more memory, or lower ANNULUS_SLICE_BYTES or ANNULUS_CHANNELS.";
    case Code::kInternal:
      return "This is a bug in Annulus; please report it with the logs of all ranks.";
    default:
      return "";
  }
}

Verdict DeathVerdict(int rank) {
  return MakeVerdict(Code::kPeerLost, rank, Status::kNoRank,
                     RankList({rank}) + " died (its control connection closed without a goodbye)",
                     "Look at that rank's own output, its exit status and the system's log; an out-of-memory kill is a "
                     "common cause.");
}

Verdict LostPathVerdict(const std::vector<int>& ranks) {
  Verdict verdict = MakeVerdict(Code::kPeerLost, ranks.front(), 0,
                                "rank 0 and " + RankList(ranks) + " lost each other: nothing passes between them",
                                "Check the hosts of these ranks and the network between them.");
  verdict.os_errno = ETIMEDOUT;
  return verdict;
}

Verdict SilenceVerdict(const std::vector<int>& ranks, int peer) {
  const char* verb = ranks.size() == 1 ? " does" : " do";
  return MakeVerdict(Code::kTimeout, ranks.front(), peer,
                     RankList(ranks) + verb + " not respond (stopped or unreachable)",
                     "Check whether that process is stopped or held in a debugger, and whether its host is up.");
}

std::string ForAll(std::string report, int reporter) {
  constexpr std::string_view kReporter = "this rank";
  const std::string name = RankList({reporter});
  for (size_t at = report.find(kReporter); at != std::string::npos; at = report.find(kReporter, at + name.size())) {
    report.replace(at, kReporter.size(), name);
  }
  return report;
}

Verdict UnansweredVerdict(int rank, bool path_is_silent) {
  return path_is_silent ? LostPathVerdict({rank}) : SilenceVerdict({0}, Status::kNoRank);
}

Verdict AbortVerdict(int rank, const std::string& reason) {
  return MakeVerdict(Code::kAborted, rank, Status::kNoRank,
                     RankList({rank}) + " aborted the communicator" + (reason.empty() ? "" : ": " + reason),
                     "Look at that rank's own output" + std::string(reason.empty() ? " for the reason." : "."));
}

Verdict BrokenMessageVerdict(int rank, const std::string& what) {
  return MakeVerdict(Code::kProtocol, rank, Status::kNoRank,
                     RankList({rank}) + " sent a broken control message: " + what, AdviceFor(Code::kProtocol));
}

Verdict ArbiterLeftVerdict(int rank, const Call& call) {
  // Every rank reaches this verdict alone, so it must not say more than all of them know.
  Verdict verdict = MakeVerdict(Code::kPeerLost, 0, rank,
                                "rank 0 has left (its communicator was destroyed) while others were at work",
                                "Destroy the communicator on rank 0 only after all ranks have finished with it.");
  verdict.call = call;
  return verdict;
}

}  // namespace annulus
