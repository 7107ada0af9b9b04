#include "collectives/cuda/staged_work.h"

#include <algorithm>

namespace annulus {
namespace {

constexpr size_t kAlignment = 64;  // Alignment of operands in the staging memory, in bytes.

// Bytes of staging for each of the operands on the device.
size_t ShareOf(size_t on_device) {
  return CudaStreams::kStagingBytes / std::max<size_t>(on_device, 1) / kAlignment * kAlignment;
}

size_t OnDevice(const std::vector<Place>& places) {
  return static_cast<size_t>(std::count(places.begin(), places.end(), Place::kDevice));
}

}  // namespace

void StagedWork::Add(int index, const SliceOp& op, const std::vector<Place>& places) {
  Operation& work = operations_[static_cast<size_t>(index)];
  work.op = op;
  work.places = places;
  work.at = 0;
  order_[(begin_ + count_++) % kMost] = static_cast<size_t>(index);
}

void StagedWork::Clear() {
  count_ = 0;
  phase_ = Phase::kBegins;
}

std::byte* StagedWork::ForCpu(CudaStreams* streams, const Operation& work, size_t i, const std::byte* memory) const {
  if (work.places[i] != Place::kDevice) return const_cast<std::byte*>(memory) + work.at * TypeBytes(work.op.type);
  const auto before =
      std::count(work.places.begin(), work.places.begin() + static_cast<std::ptrdiff_t>(i), Place::kDevice);
  return streams->staging().data() + static_cast<size_t>(before) * ShareOf(OnDevice(work.places));
}

Status StagedWork::Advance(CudaStreams* streams, int word, uint32_t* finished) {
  *finished = 0;
  while (!empty()) {
    if (phase_ != Phase::kBegins && !streams->IsDone(word, value_)) return Status();
    switch (phase_) {
      case Phase::kBegins:
        if (first().at < first().op.count) {
          ANNULUS_RETURN_IF_ERROR(Load(streams, word));
          break;
        }
        *finished |= 1U << order_[begin_];
        begin_ = (begin_ + 1) % kMost;
        --count_;
        break;
      case Phase::kLoads:
        ANNULUS_RETURN_IF_ERROR(Compute(streams, word));
        break;
      case Phase::kStores:
        EndPiece();
        break;
    }
  }
  return Status();
}

Status StagedWork::Load(CudaStreams* streams, int word) {
  Operation& work = first();
  const size_t element = TypeBytes(work.op.type);
  work.piece = std::min(work.op.count - work.at, ShareOf(OnDevice(work.places)) / element);
  for (int i = 0; i < work.op.num_sources; ++i) {
    if (work.places[static_cast<size_t>(i)] != Place::kDevice) continue;
    const std::byte* const source = SourceOf(work.op, i);
    ANNULUS_RETURN_IF_ERROR(streams->Copy(CudaStreams::Kind::kFromDevice,
                                          ForCpu(streams, work, static_cast<size_t>(i), source),
                                          source + work.at * element, work.piece * element));
  }
  phase_ = Phase::kLoads;
  return streams->Signal(CudaStreams::Kind::kFromDevice, word, ++value_);
}

Status StagedWork::Compute(CudaStreams* streams, int word) {
  const Operation& work = first();
  const size_t element = TypeBytes(work.op.type);
  const auto num_sources = static_cast<size_t>(work.op.num_sources);
  SliceOp op = work.op;
  op.count = work.piece;
  sources_.clear();
  for (size_t i = 0; i < num_sources; ++i) {
    sources_.push_back(ForCpu(streams, work, i, SourceOf(work.op, static_cast<int>(i))));
    if (i < 2) op.inline_src[i] = sources_[i];
  }
  op.src = sources_.data();
  for (size_t i = 0; i < 2; ++i) {
    if (op.dst[i] != nullptr) op.dst[i] = ForCpu(streams, work, num_sources + i, work.op.dst[i]);
  }
  RunOnHost(op);
  for (size_t i = 0; i < 2; ++i) {
    if (op.dst[i] == nullptr || work.places[num_sources + i] != Place::kDevice) continue;
    ANNULUS_RETURN_IF_ERROR(streams->Copy(CudaStreams::Kind::kToDevice, work.op.dst[i] + work.at * element, op.dst[i],
                                          work.piece * element));
  }
  phase_ = Phase::kStores;
  return streams->Signal(CudaStreams::Kind::kToDevice, word, ++value_);
}

void StagedWork::EndPiece() {
  first().at += first().piece;
  phase_ = Phase::kBegins;
}

}  // namespace annulus
