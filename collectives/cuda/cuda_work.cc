#include "collectives/cuda/cuda_work.h"

#include <algorithm>

#include "collectives/cuda/kernel_form.h"

namespace annulus {
namespace {

// A failed device is noticed after so many polls in vain: milliseconds, so that the driver's lock is left alone.
constexpr int64_t kPollsPerCheck = 65536;

}  // namespace

bool CudaWork::is_full() const {
  return std::none_of(entries_.begin(), entries_.end(),
                      [](const Entry& entry) { return entry.ticket == DomainQueue::kCompleted; });
}

Status CudaWork::Submit(const SliceOp& op, const OperandPlaces& places, Ticket* ticket) {
  if (!error_.ok()) return error_;
  const auto free = std::find_if(entries_.begin(), entries_.end(),
                                 [](const Entry& entry) { return entry.ticket == DomainQueue::kCompleted; });
  if (free == entries_.end()) return Status::WouldBlock();
  const int index = static_cast<int>(free - entries_.begin());
  ++sequence_;
  *free = {sequence_ * kLength + static_cast<uint64_t>(index), static_cast<uint32_t>(sequence_), false, false};
  error_ = Start(op, places, index);
  *ticket = free->ticket;
  return error_;
}

Status CudaWork::Start(const SliceOp& given, const OperandPlaces& places, int index) {
  const SliceOp op = PlainForm(given);
  const cuda::Function kernel = has_kernels_ ? streams_->device().KernelFor(op.type, op.op) : nullptr;
  const bool is_shared = op.device >= 0;
  const bool reaches_all = is_shared || (!places.Has(Place::kPageable) && !places.is_mixed());
  // A copy to one place needs no kernel.
  if (!is_shared && reaches_all && IsPlainCopy(op) && op.dst[1] == nullptr) return StartCopy(op, places, index);
  // Kernels scale the sources of sums only, and read lists of some length.
  const int most = std::max(op.num_sources, op.num_more);
  const bool fits = most <= cuda::kMostListed && (op.scaled_source < 0 || op.op == ReduceOp::kSum);
  if (reaches_all && fits && kernel != nullptr && op.custom.user == nullptr)
    return StartSlice(op, !is_shared && places.Has(Place::kPinned), kernel, index);
  // Staging has room for two destinations; whoever asks for more has asked for a kernel first.
  if (is_shared || op.num_more > 0) return {Code::kUnsupported, "no kernel of the GPU does this operation"};
  entries_[static_cast<size_t>(index)].is_staged = true;
  staged_.Add(index, op, places.all());
  return AdvanceStaged();
}

Status CudaWork::StartCopy(const SliceOp& op, const OperandPlaces& places, int index) {
  using Kind = CudaStreams::Kind;
  const Kind kind = places.all()[1] == Place::kDevice ? Kind::kToDevice : Kind::kFromDevice;
  const bool from_host = places.all()[0] != Place::kDevice;
  ANNULUS_RETURN_IF_ERROR(streams_->Copy(kind, op.dst[0], op.inline_src[0], op.count * TypeBytes(op.type), from_host));
  return streams_->Signal(kind, index, entries_[static_cast<size_t>(index)].value);
}

Status CudaWork::StartSlice(const SliceOp& op, bool touches_host, cuda::Function kernel, int index) {
  if (slices_ > 0 && kernel != kernel_) ANNULUS_RETURN_IF_ERROR(Flush());
  kernel_ = kernel;
  cuda::KernelSlice* const slice = &batch_.slices[slices_++];
  *slice = cuda::KernelSlice();
  for (int i = 0; i < 2; ++i) {
    slice->dst[i] = op.dst[i];
    slice->src[i] = i < op.num_sources ? SourceOf(op, i) : nullptr;
  }
  if (op.num_sources > 2) {
    const std::byte** const list = streams_->ListAt(index);
    std::copy_n(op.src, op.num_sources, list);
    slice->many = list;
  }
  if (op.num_more > 0) {
    std::byte** const list = streams_->TargetsAt(index);
    std::copy_n(op.more, op.num_more, list);
    slice->more = list;
  }
  slice->num_more = static_cast<int16_t>(op.num_more);
  slice->count = op.count;
  slice->factor = op.custom.factor;
  slice->divisor = op.divisor;
  slice->num_sources = static_cast<int16_t>(op.num_sources);
  slice->scaled_source = static_cast<int16_t>(op.scaled_source);
  slice->done = streams_->WordAt(index);
  slice->done_value = entries_[static_cast<size_t>(index)].value;
  slice->finished_blocks = streams_->CounterAt(index);
  most_bytes_ = std::max(most_bytes_, op.count * TypeBytes(op.type));
  touches_host_ |= touches_host;
  return slices_ == cuda::kMaxSlices ? Flush() : Status();
}

Status CudaWork::Flush() {
  if (slices_ == 0) return Status();
  const unsigned blocks = BlocksFor(slices_, most_bytes_, touches_host_, streams_->device().multiprocessors());
  const unsigned slices = slices_;
  slices_ = 0;
  most_bytes_ = 0;
  touches_host_ = false;
  return streams_->Launch(kernel_, &batch_, slices, blocks);
}

Status CudaWork::AdvanceStaged() {
  uint32_t finished = 0;
  ANNULUS_RETURN_IF_ERROR(staged_.Advance(streams_.get(), kStagingWord, &finished));
  for (size_t i = 0; i < entries_.size(); ++i) {
    if ((finished >> i & 1) != 0) entries_[i].is_finished = true;
  }
  return Status();
}

Status CudaWork::Poll(Ticket ticket, bool* done) {
  *done = false;
  if (!error_.ok()) return error_;
  Entry* const entry = &entries_[ticket % kLength];
  // What Drain dropped counts as done.
  *done = entry->ticket != ticket;
  if (*done) return Status();
  error_ = Flush();
  if (error_.ok() && !staged_.empty()) error_ = AdvanceStaged();
  if (error_.ok() && ++idle_polls_ % kPollsPerCheck == 0) error_ = streams_->Check();
  if (!error_.ok()) return error_;
  *done = entry->is_staged ? entry->is_finished : streams_->IsDone(static_cast<int>(ticket % kLength), entry->value);
  if (*done) {
    *entry = Entry();
    idle_polls_ = 0;
  }
  return Status();
}

void CudaWork::Drain() {
  slices_ = 0;
  const Status status = streams_->Synchronize();
  staged_.Clear();
  entries_.fill(Entry());
  // A device that failed accesses nothing any more.
  if (error_.ok()) error_ = status;
}

}  // namespace annulus
