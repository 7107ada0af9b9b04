// The four ways, on one piece of memory.
//
// Threads: see gradients.h.
#include "bench/fusion/gradients.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace annulus::fusion {
namespace {

constexpr size_t kPageBytes = 4096;
// Tensors begin at such multiples with at least as much behind them, as memory allocators place them.
constexpr size_t kGapBytes = 64;
// What the gaps hold.
constexpr uint8_t kPoison = 0xa5;

bool IsPoison(const uint8_t* from) {
  return std::all_of(from, from + kGapBytes, [](uint8_t byte) { return byte == kPoison; });
}

}  // namespace

void Gradients::Free::operator()(uint8_t* memory) const { std::free(memory); }

Status Gradients::Create(const std::vector<Tensor>& tensors, const perf::Group& group,
                         std::unique_ptr<Gradients>* result) {
  const perf::InputSpec spec{ANNULUS_FLOAT32, ANNULUS_SUM, group.size(), 1, perf::kPeriod};
  std::unique_ptr<Gradients> created(new Gradients(perf::MakeInput(spec, group.rank()), perf::MakeReduced(spec)));
  ANNULUS_RETURN_IF_ERROR(created->Place(tensors));
  *result = std::move(created);
  return Status();
}

Status Gradients::Place(const std::vector<Tensor>& tensors) {
  size_t bytes = 0, elements = 0;
  for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor) {
    tensors_.push_back({bytes, elements, tensor->elements});
    elements += tensor->elements;
    bytes += (tensor->elements * sizeof(float) + kGapBytes - 1) / kGapBytes * kGapBytes + kGapBytes;
  }
  flat_.push_back({0, 0, elements});
  requests_.reserve(tensors.size());
  bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(kPageBytes, bytes)));
  if (!memory_) return {Code::kOutOfMemory, "cannot allocate " + std::to_string(bytes) + " bytes; set --limit-mib"};
  return Status();
}

void Gradients::Fill(Way way) {
  for (const Placement& place : PlacesOf(way)) {
    uint8_t* const to = memory_.get() + place.offset_bytes;
    input_.Fill(place.first, place.count, to);
    std::memset(to + place.count * sizeof(float), kPoison, kGapBytes);
  }
}

int64_t Gradients::CountWrong(Way way) const {
  int64_t wrong = 0;
  for (const Placement& place : PlacesOf(way)) {
    const uint8_t* const from = memory_.get() + place.offset_bytes;
    wrong += sum_.CountDifferent(place.first, place.count, from);
    wrong += IsPoison(from + place.count * sizeof(float)) ? 0 : 1;
  }
  return wrong;
}

Status Gradients::Sum(Way way, perf::Group& group) {
  switch (way) {
    case Way::kAsync:
      return SumAsync(group);
    case Way::kGroup:
      return SumGroup(group);
    case Way::kBlocking:
    case Way::kFlat:
      break;
  }
  return SumBlocking(PlacesOf(way), group);
}

Status Gradients::SumBlocking(const std::vector<Placement>& places, perf::Group& group) {
  for (const Placement& place : places) {
    void* const buffer = memory_.get() + place.offset_bytes;
    ANNULUS_RETURN_IF_ERROR(
        group.Check(annulus_allreduce(group.comm(), buffer, buffer, place.count, ANNULUS_FLOAT32, ANNULUS_SUM)));
  }
  return Status();
}

Status Gradients::SumAsync(perf::Group& group) {
  requests_.clear();
  annulus_status_t status = ANNULUS_OK;
  for (const Placement& place : tensors_) {
    void* const buffer = memory_.get() + place.offset_bytes;
    annulus_request_t* request = nullptr;
    status = annulus_allreduce_async(group.comm(), buffer, buffer, place.count, ANNULUS_FLOAT32, ANNULUS_SUM, &request);
    if (status != ANNULUS_OK) break;
    requests_.push_back(request);
  }
  return Finish(status, group);
}

Status Gradients::SumGroup(perf::Group& group) {
  requests_.clear();
  calls_.clear();
  for (const Placement& place : tensors_) {
    annulus_call_t& call = calls_.emplace_back();
    call.struct_bytes = sizeof call;
    call.kind = ANNULUS_CALL_ALLREDUCE;
    call.type = ANNULUS_FLOAT32;
    call.op = ANNULUS_SUM;
    call.sendbuf = call.recvbuf = memory_.get() + place.offset_bytes;
    call.count = place.count;
  }
  annulus_request_t* request = nullptr;
  const annulus_status_t status = annulus_submit(group.comm(), calls_.data(), calls_.size(), &request);
  if (status == ANNULUS_OK) requests_.push_back(request);
  return Finish(status, group);
}

Status Gradients::Finish(annulus_status_t status, perf::Group& group) {
  for (annulus_request_t* request : requests_) {
    if (status == ANNULUS_OK) status = annulus_request_wait(request, -1);
    const annulus_status_t freed = annulus_request_free(request);
    if (status == ANNULUS_OK) status = freed;
  }
  return group.Check(status);
}

}  // namespace annulus::fusion
