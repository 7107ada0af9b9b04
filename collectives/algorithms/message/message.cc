#include "collectives/algorithms/message/message.h"

#include <algorithm>

namespace annulus {
namespace {

void AddLinks(int rank, const AlgorithmJob& job, std::vector<NeededLink>* links) {
  for (int peer = 0; peer < job.nranks() && HasMesh(job.nranks(), job.settings); ++peer) {
    if (peer != rank) links->push_back({peer, MessageChannel(job.settings)});
  }
}

// One runner per peer and direction, once they are used.
size_t MemoryBytes(const AlgorithmJob& job) {
  if (!HasMesh(job.nranks(), job.settings)) return 0;
  return 2 * static_cast<size_t>(job.nranks() - 1) * MessageRunner::MemoryBytes(job.settings);
}

}  // namespace

const AlgorithmRow kMessageRow = {Algorithm::kMessage, nullptr, nullptr, AddLinks, MemoryBytes, nullptr};

MessageRunner::MessageRunner(Endpoint* endpoint, const PlanSettings& settings)
    : endpoint_(endpoint),
      channel_(static_cast<uint32_t>(MessageChannel(settings))),
      short_path_(endpoint->shortcuts().short_path),
      short_bytes_(
          std::min({size_t{endpoint->limits().short_bytes}, DirectSliceBytes(settings), kMostCopiedAtOnceBytes})),
      lent_slice_bytes_(LentSliceBytes(settings)),
      lent_bytes_(Lends(endpoint->limits()) ? std::min(lent_slice_bytes_, kMostLentAtOnceBytes) : 0),
      shares_memory_(endpoint->limits().shares_memory),
      whole_{shares_memory_ ? kMostCopiedAtOnceBytes + 1 : 0,
             lent_bytes_ > 0 ? endpoint->shortcuts().in_place : nullptr} {
  pipelines_.emplace_back(MessageChannel(settings), WindowSteps(settings));
  all_endpoints_.push_back(endpoint);
}

void MessageRunner::Start(const ScheduleParams& params, const Work* work, Recv* first) {
  schedule_ = MessageSchedule(params);
  pipelines_.front().Start(&schedule_, work, nullptr, first);
}

AtOnce MessageRunner::SendOrBegin(const Call& call, const std::byte* data, size_t bytes) {
  if (short_path_ == nullptr) return AtOnce::kNo;
  if (bytes <= lent_bytes_) {
    const AtOnce lent = LendAtOnce(call, data, bytes);
    if (lent != AtOnce::kNo) return lent;
  }
  if (bytes > short_bytes_) return AtOnce::kNo;
  if (!short_path_->SendCopy(TagOf(call), data, static_cast<uint32_t>(bytes)).ok()) return AtOnce::kNo;
  if (short_path_->Flush() || shares_memory_) return AtOnce::kDone;
  flushes_ = true;
  return AtOnce::kBegun;
}

bool MessageRunner::AsksToLend(const std::byte* data, size_t bytes) const {
  InPlace* const in_place = endpoint_->shortcuts().in_place;
  return in_place != nullptr && in_place->Lends(data, std::min(bytes, lent_slice_bytes_));
}

AtOnce MessageRunner::LendAtOnce(const Call& call, const std::byte* data, size_t bytes) {
  InPlace* const in_place = endpoint_->shortcuts().in_place;
  if (in_place == nullptr || !in_place->Lends(data, bytes)) return AtOnce::kNo;
  lent_ = Send();
  lent_.tag = TagOf(call);
  lent_.data = data;
  lent_.bytes = lent_.ready = static_cast<uint32_t>(bytes);
  if (!endpoint_->PostSend(&lent_).ok()) return AtOnce::kNo;
  short_path_->Flush();
  flushes_ = true;
  return AtOnce::kBegun;
}

Status MessageRunner::Advance(bool* moved) {
  if (!flushes_) return PipelineRunner::Advance(moved);
  // A link that has ended has nothing left to flush, which is not as if all had arrived.
  ANNULUS_RETURN_IF_ERROR(endpoint_->Progress(moved));
  // Left as it is by an error, which whoever asks next has to be told too.
  ANNULUS_RETURN_IF_ERROR(Work::OutcomeOfSend(lent_.code, endpoint_->peer()));
  flushes_ = !short_path_->Flush() || lent_.code == Code::kInProgress;
  return Status();
}

}  // namespace annulus
