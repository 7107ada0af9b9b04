#include "tests/collectives/cuda/cuda_fixture.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace annulus {
namespace {

// The stand-in takes any image.
constexpr std::array<std::byte, 1> kImage{};

// A reduction as a user would write it, for any type: the bytes' exclusive or.
void XorBytes(const void* a, const void* b, void* to, size_t count, annulus_type_t type, void*) {
  const size_t bytes = count * TypeBytes(static_cast<DataType>(type));
  for (size_t i = 0; i < bytes; ++i) {
    static_cast<std::byte*>(to)[i] = static_cast<const std::byte*>(a)[i] ^ static_cast<const std::byte*>(b)[i];
  }
}

}  // namespace

CudaPlace::CudaPlace(Kind kind, size_t bytes, cuda::FakeControl* fake, CudaDomain* domain)
    : kind_(kind), bytes_(std::max<size_t>(bytes, 1)), fake_(fake), domain_(domain) {
  switch (kind_) {
    case Kind::kDevice:
      data_ = fake_->Allocate(0, bytes_);
      break;
    case Kind::kSlot:
      data_ = domain_->AllocateSlots(bytes_);
      break;
    case Kind::kPageable:
      pageable_.resize(bytes_);
      data_ = pageable_.data();
      break;
  }
}

CudaPlace::~CudaPlace() {
  if (kind_ == Kind::kDevice) fake_->Free(data_);
  if (kind_ == Kind::kSlot) domain_->FreeSlots(data_, bytes_);
}

void CudaPlace::Write(const Bytes& content) {
  if (content.empty()) return;
  if (kind_ == Kind::kDevice) {
    fake_->Write(data_, content.data(), content.size());
  } else {
    std::memcpy(data_, content.data(), content.size());
  }
}

Bytes CudaPlace::Read() const {
  Bytes content(bytes_);
  if (kind_ == Kind::kDevice) {
    fake_->Read(content.data(), data_, bytes_);
  } else {
    std::memcpy(content.data(), data_, bytes_);
  }
  return content;
}

void CudaFixture::Start(const cuda::FakeOptions& options) {
  Stop();
  fake_ = cuda::ResetFakeCuda(options);
  domain_ = std::make_unique<CudaDomain>(cuda::OpenFakeCuda(), kImage);
  ASSERT_TRUE(domain_->OpenQueue(&queue_).ok());
}

void CudaFixture::Stop() {
  queue_.reset();
  domain_.reset();
}

// Everything was given back, and nothing was done wrong.
void CudaFixture::TearDown() {
  Stop();
  if (fake_ == nullptr) return;
  const cuda::FakeCounts counts = fake_->Counts();
  EXPECT_EQ(counts.contexts, 0);
  EXPECT_EQ(counts.streams, 0);
  EXPECT_EQ(counts.libraries, 0);
  EXPECT_EQ(counts.pinned_ranges, 0);
  EXPECT_EQ(counts.allocations, 0);
  EXPECT_EQ(counts.lazy_loads, 0);
  EXPECT_EQ(fake_->Violations(), std::vector<std::string>());
}

std::unique_ptr<CudaPlace> CudaFixture::NewPlace(Kind kind, const Bytes& content) {
  auto place = std::make_unique<CudaPlace>(kind, content.size(), fake_, domain_.get());
  place->Write(content);
  return place;
}

void CudaFixture::Wait(DomainQueue* queue, Ticket ticket) {
  bool done = ticket == DomainQueue::kCompleted;
  while (!done) {
    const Status status = queue->Poll(ticket, &done);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
}

void CudaFixture::Run(const SliceOp& op) {
  Ticket ticket = DomainQueue::kCompleted;
  const Status status = queue_->Submit(op, &ticket);
  ASSERT_TRUE(status.ok()) << status.ToString();
  Wait(queue_.get(), ticket);
}

void CudaFixture::RunRandom(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t bound) { return random() % bound; };
  SliceOp op;
  op.type = static_cast<DataType>(below(kNumDataTypes));
  op.op = static_cast<ReduceOp>(below(kNumReduceOps));
  op.count = below(4) == 0 ? below(40'000) : below(300);
  op.num_sources = static_cast<int>(below(2) == 0 ? 1 + below(2) : 1 + below(6));
  if (op.op == ReduceOp::kAvg) op.divisor = static_cast<uint32_t>(below(5));
  if (op.op == ReduceOp::kSum && below(3) == 0) {
    op.scaled_source = static_cast<int>(below(static_cast<uint64_t>(op.num_sources)));
    op.custom.factor = 3;
  }
  if (op.scaled_source < 0 && op.num_sources > 1 && below(5) == 0) op.custom.function = &XorBytes;
  // Mostly device memory and slots, as a link has them; sometimes memory that no device can access.
  const auto kind = [&] { return below(8) == 0 ? Kind::kPageable : below(2) == 0 ? Kind::kSlot : Kind::kDevice; };
  std::vector<std::unique_ptr<CudaPlace>> places;
  std::vector<const std::byte*> device_sources;
  std::vector<Bytes> sources;
  std::vector<const std::byte*> host_sources;
  for (int i = 0; i < op.num_sources; ++i) {
    sources.push_back(RandomElements(op.type, op.count, &random));
    places.push_back(NewPlace(i == 0 ? Kind::kDevice : kind(), sources.back()));
    device_sources.push_back(places.back()->data());
  }
  for (const Bytes& source : sources) host_sources.push_back(source.data());
  const size_t num_outputs = 1 + below(2);
  std::vector<Bytes> expected(num_outputs, Bytes(op.count * TypeBytes(op.type)));
  std::vector<std::unique_ptr<CudaPlace>> outputs;
  SliceOp on_host = op;
  const auto set_sources = [](SliceOp* to, const std::vector<const std::byte*>& from) {
    to->src = from.data();
    for (size_t i = 0; i < 2 && i < from.size(); ++i) to->inline_src[i] = from[i];
  };
  set_sources(&op, device_sources);
  set_sources(&on_host, host_sources);
  for (size_t i = 0; i < num_outputs; ++i) {
    outputs.push_back(NewPlace(kind(), expected[i]));
    // In place, sometimes.
    op.dst[i] = i == 0 && below(3) == 0 ? places[0]->data() : outputs[i]->data();
    on_host.dst[i] = expected[i].data();
  }
  RunOnHost(on_host);
  Run(op);
  for (size_t i = 0; i < num_outputs && op.count > 0; ++i) {
    const CudaPlace& output = op.dst[i] == places[0]->data() ? *places[0] : *outputs[i];
    ASSERT_TRUE(output.Read() == expected[i])
        << "seed " << seed << ", " << TypeName(op.type) << " " << OpName(op.op) << ", output " << i;
  }
}

}  // namespace annulus
