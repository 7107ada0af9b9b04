#include "collectives/membership/meeting.h"

#include <unistd.h>

#include "collectives/membership/host_id.h"
#include "transport/port_handout.h"

namespace annulus {

Meeting::Meeting(const Options& options, const Membership& ranks, const PlanSettings& plan)
    : options_(options), ranks_(ranks) {
  own_.member.host_id = options.host_id.empty() ? FindHostId() : options.host_id;
  own_.member.cores = FindCores();
  own_.plan = plan;
  own_.priorities = static_cast<int>(options.priorities);
  own_.memory_bytes = static_cast<uint64_t>(options.memory_bytes);
  own_.transport = ValueText(SettingNamed("transport"), options);
  own_.tuning = ValueText(SettingNamed("tuning"), options);
  own_.further = FurtherTexts(options);
}

void Meeting::SetAddresses(std::vector<std::string> addresses, std::vector<std::string> reasons) {
  own_.member.addresses = std::move(addresses);
  own_.member.reasons = std::move(reasons);
}

Status Meeting::Join(Deadline deadline, const GiveUp& give_up, const std::function<void()>& met) {
  const int reserved = ReservedListener(deadline);
  BootstrapConfig config;
  config.rank = static_cast<int>(options_.rank);
  config.nranks = ranks_.nranks();
  config.rendezvous = options_.rendezvous;
  config.job_key = options_.job_key;
  config.encrypts = options_.encrypt == Encryption::kRequired;
  config.identity = {JobRunOf(options_), options_.parent_job, options_.epoch};
  config.listener = options_.listener >= 0 ? options_.listener : reserved;
  config.blob = Encode(own_);
  config.deadline = deadline;
  config.give_up = give_up;
  config.met = met;
  Status status = Bootstrap(config, &met_);
  if (reserved >= 0) ::close(reserved);
  return status;
}

int Meeting::ReservedListener(Deadline deadline) const {
  const char* const from = RendezvousFromVariable();
  const bool is_first = options_.rank == 0 && ranks_.epoch() == 0;
  return is_first && from != nullptr && options_.listener < 0 ? FetchPort(from, deadline) : -1;
}

Status Meeting::Conclude(TransportList transports, Membership* membership) const {
  std::vector<PeerInfo> peers(met_.blobs.size());
  for (size_t r = 0; r < peers.size(); ++r)
    ANNULUS_RETURN_IF_ERROR(Decode(met_.blobs[r], static_cast<int>(r), transports.size(), &peers[r]));
  ANNULUS_RETURN_IF_ERROR(CheckAgreement(peers));
  std::vector<Member> members;
  for (PeerInfo& peer : peers) members.push_back(std::move(peer.member));
  *membership = ranks_.Met(transports, std::move(members));
  return Status();
}

}  // namespace annulus
