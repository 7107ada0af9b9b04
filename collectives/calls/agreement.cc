#include "collectives/calls/agreement.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "collectives/control/arbiter_text.h"
#include "collectives/control/parties.h"

namespace annulus {
namespace {

static_assert(sizeof(size_t) == sizeof(uint64_t));

using Descriptions = std::vector<CallDescription>;
using Sums = std::array<uint64_t, 3>;

// The finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

uint64_t Chain(uint64_t digest, uint64_t value) { return Mix(digest ^ value); }

uint64_t DigestOf(const CallArguments& a, int nranks) {
  const Call call = CallOf(a, nranks, 0);
  uint64_t digest = Chain(static_cast<uint64_t>(call.kind), static_cast<uint64_t>(call.type));
  digest = Chain(digest, static_cast<uint64_t>(call.op));
  digest = Chain(digest, static_cast<uint64_t>(call.root));
  digest = Chain(digest, call.count);
  digest = Chain(digest, static_cast<uint64_t>(a.priority()));
  if (!HasCommonCounts(a.kind)) return digest;
  const std::span<const size_t> counts = CountsOf(a, nranks);
  return std::accumulate(counts.begin(), counts.end(), digest, Chain);
}

// Adds the thing at `index` of `number` to the short digest of its eighth.
void AddToPart(uint64_t index, uint64_t number, uint64_t digest, CallDescription* description) {
  uint8_t& part = description->parts[index * description->parts.size() / number];
  part = static_cast<uint8_t>(Chain(part, digest));
}

// Number of the pair, from 1, among all pairs of ranks of all calls of a group.
struct Pair {
  uint64_t call = 0;
  uint64_t from = 0;
  uint64_t to = 0;

  uint64_t Number(int nranks) const {
    const auto n = static_cast<uint64_t>(nranks);
    return (call * n + from) * n + to + 1;
  }
  static Pair Of(uint64_t number, int nranks) {
    const auto n = static_cast<uint64_t>(nranks);
    return {(number - 1) / n / n, (number - 1) / n % n, (number - 1) % n};
  }
};

// Any of the weights below is as good as random, and differs from pair to pair.
void Add(uint64_t number, uint64_t elements, Sums* sums) {
  (*sums)[0] += elements;
  (*sums)[1] += elements * number;
  (*sums)[2] += elements * Mix(number);
}

// Adds what this rank sends to others in call `index`, minus what it receives from them.
void AddUnmatched(const CallArguments& a, uint64_t index, int rank, int nranks, Sums* sums) {
  const auto own = static_cast<uint64_t>(rank);
  const auto sends = [&](uint64_t to, uint64_t elements) { Add(Pair{index, own, to}.Number(nranks), elements, sums); };
  const auto receives = [&](uint64_t from, uint64_t elements) {
    Add(Pair{index, from, own}.Number(nranks), 0 - elements, sums);
  };
  const bool at_root = rank == a.root;
  if (a.kind == CollectiveKind::kGatherv) sends(static_cast<uint64_t>(a.root), a.count);
  if (a.kind == CollectiveKind::kScatterv) receives(static_cast<uint64_t>(a.root), a.count);
  const bool sends_all = a.kind == CollectiveKind::kAlltoallv || (a.kind == CollectiveKind::kScatterv && at_root);
  const bool receives_all = a.kind == CollectiveKind::kAlltoallv || (a.kind == CollectiveKind::kGatherv && at_root);
  for (uint64_t peer = 0; peer < static_cast<uint64_t>(nranks); ++peer) {
    if (sends_all) sends(peer, a.send_layout.counts[peer]);
    if (receives_all) receives(peer, a.recv_layout.counts[peer]);
  }
}

// Descriptions that are equal but for their sums, which are equal only over all ranks.
bool Same(CallDescription left, const CallDescription& right) {
  left.unmatched = right.unmatched;
  return left == right;
}

Call CallOf(const CallDescription& description, uint64_t sequence) {
  Call call;
  call.sequence = sequence;
  call.kind = description.kind;
  call.type = description.type;
  call.op = description.op;
  call.root = description.root;
  call.count = description.count;
  return call;
}

CallDescription At(std::span<const size_t> numbers, size_t rank) {
  ByteReader in(std::as_bytes(numbers.subspan(rank * kDescriptionWords, kDescriptionWords)));
  CallDescription description;
  description.calls = in.U32();
  description.units = in.U32();
  description.kind = static_cast<CollectiveKind>(in.U8());
  description.type = static_cast<DataType>(in.U8());
  description.op = static_cast<ReduceOp>(in.U8());
  description.refusal = in.U8();
  description.root = in.I32();
  description.count = in.U64();
  description.digest = in.U64();
  for (uint8_t& part : description.parts) part = in.U8();
  for (uint64_t& sum : description.unmatched) sum = in.U64();
  return description;
}

// Whether there is nothing to say. Needs no memory.
bool AllAgree(std::span<const size_t> numbers, int nranks) {
  const CallDescription first = At(numbers, 0);
  Sums sums{};
  for (int rank = 0; rank < nranks; ++rank) {
    const CallDescription each = At(numbers, static_cast<size_t>(rank));
    if (each.refusal != 0 || !Same(each, first)) return false;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += each.unmatched[i];
  }
  return sums == Sums{};
}

Status Refused(const Descriptions& all, uint64_t sequence) {
  const auto refused = [](const CallDescription& each) { return each.refusal != 0; };
  const auto first = std::find_if(all.begin(), all.end(), refused);
  if (first == all.end()) return Status();
  std::vector<int> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].refusal == first->refusal && all[rank].kind == first->kind) ranks.push_back(static_cast<int>(rank));
  }
  const std::string call = first->calls > 1 ? "group #" + std::to_string(sequence) : CallName(CallOf(*first, sequence));
  return {Code::kMismatch,
          RankList(ranks) + " refused " + call + " (" + CodeName(static_cast<Code>(first->refusal)) + ")",
          ranks.front(), 0};
}

std::string SizeText(const CallDescription& description) {
  return description.calls == 1 ? "one collective" : "a group of " + std::to_string(description.calls) + " collectives";
}

struct Range {
  uint64_t first = 0;
  uint64_t last = 0;
};

// Of `number` things in the parts, the first among which there are some that differ. Where their short digests are
// equal by chance, it is unknown.
std::optional<Range> FirstDifferent(const CallDescription& odd, const CallDescription& rest, uint64_t number) {
  const uint64_t parts = odd.parts.size();
  for (uint64_t part = 0; part < parts; ++part) {
    if (odd.parts[part] == rest.parts[part]) continue;
    // Thing i is in part i * parts / number.
    return Range{(part * number + parts - 1) / parts, ((part + 1) * number + parts - 1) / parts - 1};
  }
  return std::nullopt;
}

std::string PartText(const CallDescription& odd, const CallDescription& rest) {
  const std::optional<Range> range = FirstDifferent(odd, rest, odd.calls);
  if (!range) return "a collective";
  if (range->first == range->last) return "collective " + std::to_string(range->first);
  return "one of the collectives " + std::to_string(range->first) + " to " + std::to_string(range->last);
}

// Says in which count the calls differ, of those that are alone; "" where something more telling differs, or it is
// unknown.
std::string CountText(const CallDescription& odd, const CallDescription& rest, int nranks) {
  const bool differs_in_counts =
      HasCommonCounts(odd.kind) && odd.kind == rest.kind && odd.type == rest.type && odd.op == rest.op;
  if (!differs_in_counts) return "";
  const std::optional<Range> range = FirstDifferent(odd, rest, static_cast<uint64_t>(nranks));
  if (!range) return "";
  const auto name = [](uint64_t index) { return "counts[" + std::to_string(index) + "]"; };
  return "; they differ in " + name(range->first) + (range->first == range->last ? "" : " to " + name(range->last));
}

std::string DifferenceText(const Blame& blame, const CallDescription& odd, const CallDescription& rest,
                           uint64_t sequence, int nranks) {
  const std::string ranks = RankList(blame.odd);
  const Call odd_call = CallOf(odd, sequence);
  const Call rest_call = CallOf(rest, sequence);
  const std::string number = "#" + std::to_string(sequence);
  if (odd.calls != rest.calls) {
    return ranks + " submitted " + SizeText(odd) + " as " + number + ", " + blame.others + " " + SizeText(rest);
  }
  if (!(odd_call == rest_call)) {
    return Difference(ranks, odd_call, blame.others, rest_call) +
           (odd.calls == 1 ? CountText(odd, rest, nranks) : " (the first of a group)");
  }
  if (odd.digest == rest.digest) {
    return ranks + " cannot combine the allreduces of group " + number + " as " + blame.others +
           " can: some use what others write";
  }
  if (odd.calls == 1) return ranks + " called " + CallName(odd_call) + " with another priority than " + blame.others;
  return ranks + " called " + PartText(odd, rest) + " of group " + number + " otherwise than " + blame.others;
}

Status Differing(const Descriptions& all, uint64_t sequence) {
  const auto same_as_first = [&](const CallDescription& each) { return Same(each, all[0]); };
  if (std::ranges::all_of(all, same_as_first)) return Status();
  std::vector<int> ranks(all.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto same = [&](int left, int right) { return Same(all[left], all[right]); };
  const int nranks = static_cast<int>(all.size());
  const Blame blame = BlameOf(PartiesOf(ranks, same), nranks);
  const int culprit = blame.odd.back();
  return {Code::kMismatch, DifferenceText(blame, all[culprit], all[blame.rest.front()], sequence, nranks), culprit, 0};
}

// The only pair whose counts do not match, if it is only one. *surplus becomes the number of elements by which more is
// sent than received.
std::optional<Pair> OnlyPair(Sums sums, uint64_t calls, int nranks, int64_t* surplus) {
  *surplus = static_cast<int64_t>(sums[0]);
  if (*surplus < 0) {
    for (uint64_t& sum : sums) sum = 0 - sum;
  }
  if (sums[0] == 0 || sums[1] % sums[0] != 0) return std::nullopt;
  const uint64_t number = sums[1] / sums[0];
  const auto n = static_cast<uint64_t>(nranks);
  if (number == 0 || number > calls * n * n || sums[2] != sums[0] * Mix(number)) return std::nullopt;
  return Pair::Of(number, nranks);
}

Status Unmatched(const Descriptions& all, uint64_t sequence) {
  Sums sums{};
  for (const CallDescription& each : all) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += each.unmatched[i];
  }
  if (sums == Sums{}) return Status();
  int64_t surplus = 0;
  const int nranks = static_cast<int>(all.size());
  const std::optional<Pair> pair = OnlyPair(sums, all[0].calls, nranks, &surplus);
  std::string where = CallName(CallOf(all[0], sequence));
  if (all[0].calls > 1) {
    where = "group #" + std::to_string(sequence);
    if (pair) where = "collective " + std::to_string(pair->call) + " of " + where;
  }
  if (!pair) return {Code::kMismatch, "the counts of several pairs of ranks do not match in " + where};
  const uint64_t difference = surplus < 0 ? 0 - static_cast<uint64_t>(surplus) : static_cast<uint64_t>(surplus);
  return {Code::kMismatch,
          "rank " + std::to_string(pair->from) + " sends rank " + std::to_string(pair->to) + " " +
              std::to_string(difference) + (difference == 1 ? " element " : " elements ") +
              (surplus < 0 ? "fewer" : "more") + " than that expects in " + where,
          static_cast<int>(std::max(pair->from, pair->to)), 0};
}

}  // namespace

CallDescription Describe(std::span<const CallArguments> calls, std::span<const size_t> units, int rank, int nranks) {
  CallDescription description;
  const auto is_collective = [](const CallArguments& each) { return !IsMessage(each.kind); };
  description.calls = static_cast<uint32_t>(std::ranges::count_if(calls, is_collective));
  description.units = static_cast<uint32_t>(std::accumulate(units.begin(), units.end(), uint64_t{0}, Chain));
  uint64_t index = 0;
  for (const CallArguments& each : calls) {
    if (IsMessage(each.kind)) continue;
    if (index == 0) {
      const Call first = CallOf(each, nranks, 0);
      description.kind = first.kind;
      description.type = first.type;
      description.op = first.op;
      description.root = first.root;
      description.count = first.count;
    }
    const uint64_t digest = DigestOf(each, nranks);
    description.digest = Chain(description.digest, digest);
    if (description.calls > 1) AddToPart(index, description.calls, digest, &description);
    if (description.calls == 1 && HasCommonCounts(each.kind)) {
      for (uint64_t rank = 0; const size_t count : CountsOf(each, nranks)) {
        AddToPart(rank++, static_cast<uint64_t>(nranks), count, &description);
      }
    }
    AddUnmatched(each, index, rank, nranks, &description.unmatched);
    ++index;
  }
  return description;
}

CallDescription DescribeRefusal(Code why, CollectiveKind kind, size_t calls) {
  CallDescription description;
  description.calls = static_cast<uint32_t>(calls);
  description.kind = kind;
  description.refusal = static_cast<uint8_t>(why);
  return description;
}

void Put(const CallDescription& description, std::span<size_t> numbers) {
  FixedWriter out(std::as_writable_bytes(numbers.first(kDescriptionWords)));
  out.U32(description.calls).U32(description.units);
  out.U8(static_cast<uint8_t>(description.kind)).U8(static_cast<uint8_t>(description.type));
  out.U8(static_cast<uint8_t>(description.op)).U8(description.refusal);
  out.I32(description.root).U64(description.count).U64(description.digest);
  for (const uint8_t part : description.parts) out.U8(part);
  for (const uint64_t sum : description.unmatched) out.U64(sum);
}

Status CheckAgreement(std::span<const size_t> numbers, int nranks, uint64_t sequence) {
  const std::span<const size_t> gathered = numbers.subspan(kDescriptionWords);
  if (AllAgree(gathered, nranks)) return Status();
  Descriptions all;
  for (size_t rank = 0; rank < static_cast<size_t>(nranks); ++rank) all.push_back(At(gathered, rank));
  ANNULUS_RETURN_IF_ERROR(Refused(all, sequence));
  ANNULUS_RETURN_IF_ERROR(Differing(all, sequence));
  return Unmatched(all, sequence);
}

}  // namespace annulus
