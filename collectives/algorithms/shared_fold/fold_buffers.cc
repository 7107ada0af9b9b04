// The buffers of SharedFold: which a rank's folds use, where they are here, and the descriptors that others lack.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/log.h"
#include "collectives/algorithms/shared_fold/shared_fold.h"

namespace annulus {
namespace {

bool IsSameDevice(const SharedPlace& a, const SharedPlace& b) {
  return std::memcmp(a.device, b.device, sizeof a.device) == 0;
}

}  // namespace

size_t SharedFold::InputBytes() const {
  return params_.count * params_.element_bytes *
         (IsReduceScatter(params_.kind) ? static_cast<size_t>(params_.nranks) : 1);
}

size_t SharedFold::OutputBytes() const {
  return params_.count * params_.element_bytes * (IsAllgather(params_.kind) ? static_cast<size_t>(params_.nranks) : 1);
}

bool SharedFold::SendFiles() {
  const SharedPlace& input = own_.offer.input;
  const SharedPlace& output = own_.offer.output;
  const bool is_one = input.begin == output.begin && std::memcmp(input.handle, output.handle, sizeof input.handle) == 0;
  for (int rank = 0; rank < nranks_; ++rank) {
    const Finding& finding = ranks_.findings[static_cast<size_t>(rank)];
    if (rank == rank_ || finding.has != Finding::Has::kLacks || (finding.lacks >> rank_ & 1) == 0) continue;
    Status sent = own_.shared->Send(input, finding.to);
    if (sent.ok() && !is_one) sent = own_.shared->Send(output, finding.to);
    if (sent.ok()) continue;
    const std::string why = "cannot pass GPU memory to rank " + std::to_string(rank) + ": " + sent.message();
    if (told_.IsNew(why)) Log(LogLevel::kInfo, rank_, "%s", why.c_str());
    return false;
  }
  return true;
}

void SharedFold::FindFolds() {
  folds_.chunks.clear();
  for (int chunk = 0; chunk < nranks_; ++chunk) {
    const SharedPlace& device = ranks_.offers[static_cast<size_t>(chunk)].input;
    const auto shares = [&](const Offer& offer) { return IsSameDevice(offer.input, device); };
    if (std::ranges::find_if(ranks_.offers, shares) - ranks_.offers.begin() == rank_) folds_.chunks.push_back(chunk);
  }
}

// All inputs and outputs that this rank's folds use; for reduce-scatters and allgathers that is not everything.
SharedFold::Finding SharedFold::FindBuffers() {
  Finding finding{Finding::Has::kAll, 0, {}};
  for (int rank = 0; rank < nranks_ && !folds_.chunks.empty(); ++rank) {
    Status found = FindBuffersOf(rank);
    if (found.would_block() && !ranks_.have_sent) {
      finding.has = Finding::Has::kLacks;
      finding.lacks |= uint32_t{1} << rank;
      found = own_.shared->Await(&finding.to);
    }
    if (found.ok()) continue;
    const std::string why = "cannot reach the GPU memory of rank " + std::to_string(rank) + ": " +
                            (found.would_block() ? "its descriptors did not come" : found.message());
    if (told_.IsNew(why)) Log(LogLevel::kInfo, rank_, "%s", why.c_str());
    if (!ranks_.have_sent) return Finding();
    finding.has = Finding::Has::kNot;  // But what has come of other ranks is taken: then the next call has it.
  }
  return finding;
}

Status SharedFold::FindBuffersOf(int rank) {
  const auto at = static_cast<size_t>(rank);
  const bool is_own_chunk = std::ranges::find(folds_.chunks, rank) != folds_.chunks.end();
  if (rank == rank_) {
    ranks_.inputs[at] = work_->input.data;
    ranks_.outputs[at] = work_->output.data;
    return Status();
  }
  std::byte* input = nullptr;
  Status found;
  if (Reduces(params_.kind) || is_own_chunk)
    found = own_.shared->Import(own_.device, ranks_.offers[at].input, InputBytes(), &input);
  ranks_.inputs[at] = input;
  if (!found.ok() && !found.would_block()) return found;
  if (IsReduceScatter(params_.kind) && !is_own_chunk) return found;
  // Of an input that has still to come the output is asked for at once.
  Status output = own_.shared->Import(own_.device, ranks_.offers[at].output, OutputBytes(), &ranks_.outputs[at]);
  return output.ok() ? found : output;
}

}  // namespace annulus
