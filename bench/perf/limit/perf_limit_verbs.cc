// The plain exchange over RDMA devices.
//
// Threads: see perf_limit_verbs.h.
#include "bench/perf/limit/perf_limit_verbs.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace annulus::perf {
namespace {

constexpr size_t kWriteBytes = size_t{256} << 10;
constexpr Nanoseconds kPatience = 20 * kSecond;
constexpr int kIdleTurns = 50;  // Fruitless turns before the core is offered to other ranks.

// The first device that the setting names; "" when it names none.
std::string FirstDevice(const annulus_config_t& config) {
  std::string devices;
  if (!ReadSetting(config, "verbs_device", &devices).ok()) return "";
  return devices.substr(0, devices.find_first_of(",:"));
}

}  // namespace

Status VerbsProbe::Create(Group& group, const annulus_config_t& config, const std::vector<bool>& edges, Arena arena,
                          std::unique_ptr<Probe>* probe, std::string* why_not) {
  std::unique_ptr<VerbsProbe> created(new VerbsProbe(group, arena));
  Status opened = RawVerbs::Open(FirstDevice(config), arena.input, arena.output, arena.bytes, &created->raw_);
  double usable = opened.ok() ? 1 : 0;
  ANNULUS_RETURN_IF_ERROR(group.Min({&usable, 1}));
  if (usable == 1) opened = created->Connect(group, edges);
  usable = opened.ok() ? usable : 0;
  ANNULUS_RETURN_IF_ERROR(group.Min({&usable, 1}));
  *why_not = opened.ok() ? "a rank could not set up plain RDMA connections" : opened.message();
  if (usable == 1) *probe = std::move(created);
  return Status();
}

Status VerbsProbe::Connect(Group& group, const std::vector<bool>& edges) {
  std::vector<int32_t> mine;
  for (const auto side : {RawVerbs::kNext, RawVerbs::kPrev}) {
    const RawVerbs::Words words = raw_->WordsOf(side);
    mine.insert(mine.end(), words.begin(), words.end());
  }
  std::vector<int32_t> all;
  ANNULUS_RETURN_IF_ERROR(group.Allgather(mine, &all));
  const int prev = (rank_ + nranks_ - 1) % nranks_;
  const auto words_of = [&](int rank, RawVerbs::Side side) {
    RawVerbs::Words words;
    const size_t at = (2 * static_cast<size_t>(rank) + side) * RawVerbs::kWords;
    std::copy_n(all.begin() + static_cast<ptrdiff_t>(at), RawVerbs::kWords, words.begin());
    return words;
  };
  sends_ = edges[static_cast<size_t>(rank_)];
  receives_ = edges[static_cast<size_t>(prev)];
  mixed_ = std::ranges::find(edges, false) != edges.end();
  ANNULUS_RETURN_IF_ERROR(raw_->Connect(RawVerbs::kNext, words_of((rank_ + 1) % nranks_, RawVerbs::kPrev)));
  return raw_->Connect(RawVerbs::kPrev, words_of(prev, RawVerbs::kNext));
}

size_t VerbsProbe::PassBytes(Kind kind, size_t bytes, int nranks) const {
  // As for sockets: hosts with several ranks have more to take between them than a ring has.
  if ((kind == Kind::kAlltoall || kind == Kind::kPingpong) && mixed_) return 0;
  return static_cast<size_t>(static_cast<double>(bytes) * BusFactor(kind, nranks));
}

Status VerbsProbe::Exchange(RawVerbs::Side out, size_t out_bytes, RawVerbs::Side in, size_t in_bytes) {
  const uint64_t send_end = raw_->moved(out).sent + out_bytes;
  received_[in] += in_bytes;  // The neighbour may be ahead: what it wrote then counts for the next pass.
  size_t begun = 0;
  Deadline deadline = DeadlineAfter(kPatience);  // From the last byte that moved.
  for (int idle = 0; raw_->moved(out).sent < send_end || raw_->moved(in).received < received_[in];) {
    const uint64_t before = raw_->moved(out).sent + raw_->moved(in).received;
    for (bool more = begun < out_bytes; more;) {
      const size_t at = begun % arena_.bytes;
      const size_t bytes = std::min({kWriteBytes, out_bytes - begun, arena_.bytes - at});
      ANNULUS_RETURN_IF_ERROR(raw_->Write(out, at, bytes, &more));
      if (more) begun += bytes;
      more = more && begun < out_bytes;
    }
    ANNULUS_RETURN_IF_ERROR(raw_->Poll());
    idle = raw_->moved(out).sent + raw_->moved(in).received > before ? 0 : idle + 1;
    if (idle < kIdleTurns) continue;
    if (idle == kIdleTurns) deadline = DeadlineAfter(kPatience);
    sched_yield();
    if (Now() > deadline) return {Code::kTimeout, "limit probe: a neighbour stopped sending or receiving"};
  }
  return Status();
}

Status VerbsProbe::Pass(Kind kind, size_t pass_bytes, int) {
  const Pattern pattern = PatternOf(kind);
  const bool is_last = rank_ == nranks_ - 1;
  if (pattern == Pattern::kPingpong) {
    const bool answers = rank_ % 2 != 0;
    if (is_last && !answers) return Status();  // The last of an odd number has no partner.
    const auto side = answers ? RawVerbs::kPrev : RawVerbs::kNext;
    ANNULUS_RETURN_IF_ERROR(answers ? Exchange(side, 0, side, pass_bytes) : Exchange(side, pass_bytes, side, 0));
    return answers ? Exchange(side, pass_bytes, side, 0) : Exchange(side, 0, side, pass_bytes);
  }
  const bool chain = pattern == Pattern::kChain;
  const size_t to_send = !sends_ || (chain && is_last) ? 0 : pass_bytes;
  const size_t to_receive = !receives_ || (chain && rank_ == 0) ? 0 : pass_bytes;
  return Exchange(RawVerbs::kNext, to_send, RawVerbs::kPrev, to_receive);
}

std::string VerbsProbe::Description() const {
  return "RDMA: every rank writes to the next what the ring sends while the previous one writes as much to it, over "
         "one "
         "queue pair per link, nothing reduced";
}

}  // namespace annulus::perf
