// The parent's ranks exchange their colours and keys. The first rank of each colour reserves a port and sends it to the
// others. Then each colour meets there like any other job.
#include "collectives/comm/split.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "base/parse.h"
#include "collectives/comm/exchange_values.h"
#include "collectives/core/options.h"
#include "transport/forked_child.h"
#include "transport/reserved_port.h"
#include "transport/security/door.h"

namespace annulus {
namespace {

struct Choice {
  int32_t colour = 0;
  int32_t key = 0;
};

// Longest "[v6]:port", with the end of the string.
using AddressText = std::array<char, 64>;

// The parent's ranks with this colour, in the new order.
std::vector<int> Members(const std::vector<Choice>& choices, int colour) {
  std::vector<int> members;
  for (size_t rank = 0; rank < choices.size(); ++rank) {
    if (choices[rank].colour == colour) members.push_back(static_cast<int>(rank));
  }
  std::stable_sort(members.begin(), members.end(),
                   [&](int left, int right) { return choices[left].key < choices[right].key; });
  return members;
}

// Returns what the parent knows as a status if the new communicator cannot come about. Deaths of ranks of other colours
// do not matter, except that without rank 0 of the parent nobody would tell of more.
Status GivenUp(Communicator* parent, const std::vector<int>& members, bool expected) {
  const std::optional<Verdict> reason = parent->Parted(members, expected);
  return reason ? Status(reason->code, reason->message, reason->rank, reason->os_errno) : Status();
}

}  // namespace

Status Split(Communicator* parent, int colour, int key, std::unique_ptr<Communicator>* child) {
  std::vector<Choice> choices;
  ANNULUS_RETURN_IF_ERROR(ExchangeValues(parent, Choice{colour, key}, &choices));
  const uint32_t epoch = parent->CountSplit();  // All ranks have come here, and so count alike.
  const std::vector<int> members = Members(choices, colour);
  const bool leads = colour >= 0 && members.size() > 1 && members[0] == parent->rank();
  ReservedPort port;
  AddressText own{};
  Status reserved;
  if (leads) {
    reserved = NamingWhoIsOut(parent->rank(), "the port of the new communicator", port.Reserve(parent->local_host()));
  }
  if (leads && reserved.ok()) {
    CloseInForkedChildren(port.listener());  // Else ranks would wait at it when this process has gone.
    const std::string text = FormatAddress(parent->local_host(), port.port());
    std::copy_n(text.begin(), std::min(text.size(), own.size() - 1), own.begin());
  }
  // A rank that failed takes part too: the others must not wait for it.
  std::vector<AddressText> addresses;
  ANNULUS_RETURN_IF_ERROR(ExchangeValues(parent, own, &addresses));
  ANNULUS_RETURN_IF_ERROR(std::move(reserved));
  if (colour < 0) return Status();

  Options options = parent->options();
  options.rank = std::find(members.begin(), members.end(), parent->rank()) - members.begin();
  options.size = static_cast<int64_t>(members.size());
  options.local_rank = options.local_size = -1;
  options.tuning_file.clear();  // The parent owns it: two communicators would overwrite each other's data.
  options.launcher = "a split of another communicator";
  options.run_doubt.clear();
  options.parent_job = parent->job();
  options.parent_turn = parent->machine().turn;
  options.parent_gpu = parent->machine().gpu;
  options.epoch = epoch;
  options.listener = port.listener();
  addresses[members[0]].back() = 0;
  options.rendezvous = addresses[members[0]].data();
  if (members.size() > 1 && options.rendezvous.empty()) {
    return {Code::kSystem, "rank " + std::to_string(members[0]) + " could not reserve a port for the new communicator",
            members[0], 0};
  }
  const auto given_up = [parent, &members] { return GivenUp(parent, members, false); };
  const Status created =
      Communicator::Create(options, parent->membership().Among(members), parent->resources(), {given_up}, child);
  if (created.ok()) return created;
  // Prefer the parent's message, if there is one: it names ranks by the numbers that the caller knows. Another rank may
  // have received it first, and told us through the new communicator.
  const bool concerns_parent = created.code() == Code::kPeerLost || created.code() == Code::kAborted;
  ANNULUS_RETURN_IF_ERROR(GivenUp(parent, members, concerns_parent));
  return created;
}

}  // namespace annulus
