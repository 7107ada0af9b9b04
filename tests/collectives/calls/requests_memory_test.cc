// Requests when memory runs out: what ends needs none, and what is refused leaves nothing behind.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/calls/mutex.h"
#include "collectives/calls/requests.h"
#include "tests/transport/allocation_counter.h"

namespace annulus {
namespace {

// Too long for a string to hold within itself.
const std::string kLabel(1000, 'x');

class RequestsMemoryTest : public ::testing::Test {
 protected:
  Status Make(std::span<const CallArguments> calls, Request** made) {
    return requests_->MakeWithin({}, calls, true, made);
  }

  RequestTable table_;
  Mutex mu_;
  // Only named in the table.
  Communicator* const owner_ = reinterpret_cast<Communicator*>(&table_);
  Callbacks callbacks_;
  std::optional<Requests> requests_{std::in_place, RequestsConfig{&table_, owner_, &callbacks_, 0, 2, &mu_}};
};

TEST_F(RequestsMemoryTest, AnEndWithACallbackNeedsNone) {
  ASSERT_TRUE(callbacks_.Start().ok());
  constexpr size_t kCalls = 1000;
  std::promise<void> may_go_on;
  std::future<void> awaited = may_go_on.get_future();
  std::atomic<size_t> called{0};
  CallOptions options;
  // The thread of callbacks is held up by the first.
  options.done_context = &awaited;
  options.done = [](void* context, annulus_status_t) { static_cast<std::future<void>*>(context)->wait(); };
  CallArguments arguments;
  arguments.options = &options;
  Request* first = nullptr;
  ASSERT_TRUE(Make({&arguments, 1}, &first).ok());
  requests_->Finish(first, Code::kOk);
  options.done_context = &called;
  options.done = [](void* context, annulus_status_t) { ++*static_cast<std::atomic<size_t>*>(context); };
  std::vector<Request*> made(kCalls);
  for (Request*& each : made) ASSERT_TRUE(Make({&arguments, 1}, &each).ok());
  FailAllocation(1);
  for (Request* const each : made) requests_->Finish(each, Code::kOk);
  EXPECT_FALSE(StopFailing());
  may_go_on.set_value();
  callbacks_.Finish();
  EXPECT_EQ(called, kCalls);
  EXPECT_EQ(requests_->MemoryBytes(), 0u);
}

TEST_F(RequestsMemoryTest, CallbacksOneAfterTheOtherUseTheSame) {
  ASSERT_TRUE(callbacks_.Start().ok());
  std::promise<void> called;
  CallOptions options;
  options.done_context = &called;
  options.done = [](void* context, annulus_status_t) { static_cast<std::promise<void>*>(context)->set_value(); };
  CallArguments arguments;
  arguments.options = &options;
  const auto call = [&] {
    called = std::promise<void>();
    std::future<void> end = called.get_future();
    const size_t before = AllocationsOfThisThread();
    Request* made = nullptr;
    EXPECT_TRUE(Make({&arguments, 1}, &made).ok());
    requests_->Finish(made, Code::kOk);
    const size_t taken = AllocationsOfThisThread() - before;
    end.wait();
    return taken;
  };
  for (int i = 0; i < 3; ++i) call();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(call(), 0u);
}

TEST_F(RequestsMemoryTest, AGroupThatFailsTakesTheLabelWithoutAny) {
  CallOptions options;
  options.label = kLabel.c_str();
  CallArguments arguments;
  arguments.options = &options;
  const std::array<CallArguments, 2> calls = {arguments, arguments};
  std::vector<Request*> made(2);
  ASSERT_TRUE(Make(calls, made.data()).ok());
  const Request* const group = requests_->MakeGroup(made);
  const RequestHandle handle = group->handle;
  FailAllocation(1);
  for (Request* const each : made) requests_->Finish(each, Code::kTimeout);
  EXPECT_FALSE(StopFailing());
  FailedCall failed;
  EXPECT_EQ(requests_->Wait(handle, 0, nullptr, &failed).code(), Code::kTimeout);
  EXPECT_EQ(failed.label, kLabel);
  EXPECT_EQ(requests_->Free(handle, nullptr).code(), Code::kOk);
}

TEST_F(RequestsMemoryTest, ARefusalWithoutMemoryForItsWordsIsStillOne) {
  CallArguments arguments;
  Request* made = nullptr;
  ASSERT_TRUE(requests_->MakeWithin({}, {&arguments, 1}, false, &made).ok());
  const RequestHandle handle = made->handle;
  Request* const agreement = requests_->MakeAgreement(1);
  requests_->Hold(agreement, {&made, 1});
  const Status why(Code::kMismatch, kLabel);
  FailAllocation(1);
  requests_->Refuse(agreement, why);
  EXPECT_TRUE(StopFailing());
  FailedCall failed;
  EXPECT_EQ(requests_->Wait(handle, 0, nullptr, &failed).code(), Code::kMismatch);
  EXPECT_EQ(requests_->Free(handle, nullptr).code(), Code::kOk);
}

// Many requests that were let go are recycled when more are made. If that were done in the midst of a batch that is
// then refused, some of the batch would lie among those that stay.
TEST_F(RequestsMemoryTest, ABatchThatIsRefusedAfterOthersWereLetGoLeavesNothing) {
  constexpr size_t kKept = 300;
  const CallArguments plain;
  CallOptions options;
  options.label = kLabel.c_str();
  CallArguments labelled;
  labelled.options = &options;
  std::vector<Request*> kept(kKept);
  for (Request*& each : kept) ASSERT_TRUE(requests_->MakeWithin({}, {&plain, 1}, false, &each).ok());
  for (Request* const each : kept) requests_->Finish(each, Code::kOk);
  for (size_t i = 0; i + 1 < kKept; ++i) ASSERT_TRUE(requests_->FreeDone(kept[i]->handle));
  const std::vector<CallArguments> calls(2 * kKept, labelled);
  std::vector<Request*> made(calls.size());
  const size_t before = requests_->MemoryBytes();
  for (size_t k = 1, refused = 1; refused > 0; ++k) {
    FailAllocation(k);
    bool is_made = true;
    try {
      is_made = Make(calls, made.data()).ok();
    } catch (const std::bad_alloc&) {
      is_made = false;
    }
    refused = StopFailing() ? 1 : 0;
    ASSERT_EQ(is_made, refused == 0);
    if (is_made) break;
    ASSERT_EQ(requests_->MemoryBytes(), before) << "allocation " << k;
  }
}

}  // namespace
}  // namespace annulus
