#include "collectives/comm/tuner.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <tuple>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "collectives/algorithms/table.h"

namespace annulus {
namespace {

constexpr double kMeasuringSeconds = 0.015;  // For each algorithm and size.
constexpr int32_t kMostCalls = 200;
// If a large call would take longer than this, the middle sizes must suffice.
constexpr double kMostLargeSeconds = 0.2;

// Rank 0's result of reading its file.
struct FileNews {
  int32_t found = 0;
  int32_t code = 0;
  std::array<char, 512> message{};
  MeasuredFactors factors{};
};

// Sizes of the broadcasts by which ranks exchange data here, in bytes.
constexpr size_t kFactorsBytes = std::tuple_size_v<MeasuredFactors> * (8 + 3 * 8);
constexpr size_t kNewsBytes = 4 + 4 + sizeof(FileNews::message) + kFactorsBytes;

void Write(const MeasuredFactors& factors, FixedWriter* out) {
  for (const AlgorithmFactors& each : factors) {
    out->I64(each.is_measured).F64(each.message).F64(each.byte).F64(each.large);
  }
}

void Read(ByteReader* in, MeasuredFactors* factors) {
  for (AlgorithmFactors& each : *factors) {
    each.is_measured = in->I64();
    each.message = in->F64();
    each.byte = in->F64();
    each.large = in->F64();
  }
}

void Write(const FileNews& news, FixedWriter* out) {
  out->I32(news.found).I32(news.code).Bytes(std::as_bytes(std::span(news.message)));
  Write(news.factors, out);
}

void Read(ByteReader* in, FileNews* news) {
  news->found = in->I32();
  news->code = in->I32();
  in->Bytes(std::as_writable_bytes(std::span(news->message)));
  Read(in, &news->factors);
}

}  // namespace

Status Tuner::Spread(void* data, size_t bytes) {
  ANNULUS_RETURN_IF_ERROR(GivenUp());
  CallArguments arguments;
  arguments.kind = CollectiveKind::kBroadcast;
  arguments.sendbuf = data;
  arguments.recvbuf = data;
  arguments.count = bytes;
  arguments.type = DataType::kUint8;
  return job_.run(arguments);
}

Status Tuner::Allreduce(size_t bytes) {
  CallArguments arguments;
  arguments.kind = CollectiveKind::kAllreduce;
  arguments.sendbuf = buffer_.data();
  arguments.recvbuf = buffer_.data();
  arguments.count = bytes / sizeof(float);
  arguments.type = DataType::kFloat32;
  return job_.run(arguments);
}

Status Tuner::Time(size_t bytes, Timing* timing) {
  buffer_.resize(std::max(buffer_.size(), bytes / sizeof(float)));
  ANNULUS_RETURN_IF_ERROR(GivenUp());
  ANNULUS_RETURN_IF_ERROR(Allreduce(bytes));  // Warms up.
  ANNULUS_RETURN_IF_ERROR(GivenUp());
  Nanoseconds begin = Now();
  ANNULUS_RETURN_IF_ERROR(Allreduce(bytes));  // Shows how many calls there is time for.
  const double once = std::max<double>(1, static_cast<double>(Now() - begin)) / kSecond;
  int32_t calls = static_cast<int32_t>(std::clamp<double>(kMeasuringSeconds / once, 1, kMostCalls));
  ANNULUS_RETURN_IF_ERROR(Spread(&calls, sizeof calls));
  calls = std::clamp(calls, 1, kMostCalls);
  std::vector<double> times;
  for (int call = 0; call < calls; ++call) {
    ANNULUS_RETURN_IF_ERROR(GivenUp());
    begin = Now();
    ANNULUS_RETURN_IF_ERROR(Allreduce(bytes));
    times.push_back(static_cast<double>(Now() - begin) / kSecond);
  }
  // The lower quartile is used because other work on the machine makes calls longer, never shorter.
  const size_t quartile = times.size() / 4;
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(quartile));
  *timing = {bytes, times[quartile]};
  return Spread(&timing->seconds, sizeof timing->seconds);
}

Status Tuner::MeasureAlgorithm(Algorithm algorithm, AlgorithmFactors* factors) {
  const TimedSizes sizes = SizesToTime(job(), algorithm);
  if (sizes.few == 0) return Status();
  PlanSettings wanted = job_.plan;
  wanted.algorithm = algorithm;
  job_.choose(AlgorithmChoice(wanted, job_.topology));
  Timing few;
  Timing many;
  Timing large;
  ANNULUS_RETURN_IF_ERROR(Time(sizes.few, &few));
  if (sizes.many > 0) ANNULUS_RETURN_IF_ERROR(Time(sizes.many, &many));
  const Timing& most = sizes.many > 0 ? many : few;
  if (sizes.large > 0 && ExpectedSeconds(most, sizes.large) <= kMostLargeSeconds) {
    ANNULUS_RETURN_IF_ERROR(Time(sizes.large, &large));
    if (ExpectedSeconds(large, kLargestTimedBytes) <= kMeasuringSeconds) {
      ANNULUS_RETURN_IF_ERROR(Time(kLargestTimedBytes, &large));
    }
  }
  if (job_.rank == 0) *factors = FitFactors(job(), algorithm, few, many, large);
  return Status();
}

Status Tuner::Measure(MeasuredFactors* factors) {
  for (size_t place = 0; place < factors->size(); ++place) {
    const Algorithm algorithm = kAlgorithms[place].algorithm;
    if (RowOf(algorithm).stands_in_for_ring != nullptr) continue;  // It is not chosen by its costs.
    ANNULUS_RETURN_IF_ERROR(MeasureAlgorithm(algorithm, &(*factors)[place]));
  }
  job_.choose(nominal_);
  std::array<std::byte, kFactorsBytes> bytes;
  FixedWriter out(bytes);
  Write(*factors, &out);
  ANNULUS_RETURN_IF_ERROR(Spread(bytes.data(), bytes.size()));
  ByteReader in(bytes);
  Read(&in, factors);
  return Status();
}

TuningSubject Tuner::Subject() const {
  const PlanSettings& plan = job_.plan;
  const Topology& topology = job_.topology;
  TuningSubject subject;
  subject.nranks = topology.nranks;
  subject.host_of = topology.host_of;
  if (topology.near != nullptr) subject.near = topology.near->name;
  if (topology.far != nullptr) subject.far = topology.far->name;
  subject.ranks_per_core = topology.ranks_per_core;
  subject.small_bytes = plan.small_bytes;
  subject.slice_bytes = plan.slice_bytes;
  subject.channels = plan.channels;
  subject.transport_settings = job_.transport_settings;
  return subject;
}

Status Tuner::Tune(const std::string& file, std::string* source) {
  if (job_.topology.nranks == 1) return Status();
  const bool keeps_file = job_.rank == 0 && !file.empty();
  FileNews news;
  if (keeps_file) {
    std::optional<MeasuredFactors> found;
    const Status status = ReadTuningFile(file, Subject(), &found);
    news.found = found.has_value() ? 1 : 0;
    if (found) news.factors = *found;
    news.code = static_cast<int32_t>(status.code());
    status.message().copy(news.message.data(), news.message.size() - 1);
  }
  std::array<std::byte, kNewsBytes> bytes;
  FixedWriter out(bytes);
  Write(news, &out);
  ANNULUS_RETURN_IF_ERROR(Spread(bytes.data(), bytes.size()));
  ByteReader in(bytes);
  Read(&in, &news);
  news.message.back() = 0;
  if (news.code != 0) return {static_cast<Code>(news.code), news.message.data(), 0, 0};
  *source = "the tuning file of rank 0";
  if (news.found == 0) {
    *source = "measured when the communicator was made";
    ANNULUS_RETURN_IF_ERROR(Measure(&news.factors));
    if (keeps_file) {
      const Status written = WriteTuningFile(file, Subject(), news.factors);
      if (!written.ok()) Log(LogLevel::kWarn, job_.rank, "%s", written.message().c_str());
    }
  }
  job_.choose(AlgorithmChoice(job_.plan, job_.topology, news.factors));
  return Status();
}

}  // namespace annulus
