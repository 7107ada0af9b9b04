// Messages of integers between ranks, for tests.
#pragma once

#include <annulus.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/collectives/harness/cluster.h"

namespace annulus {

// `seed` and the numbers after it. What many tests ask for is copied, which takes less than to count.
inline std::vector<int> Values(size_t count, int seed) {
  static const std::vector<int> numbers = [] {
    std::vector<int> made(1 << 20);
    std::iota(made.begin(), made.end(), 0);
    return made;
  }();
  if (seed >= 0 && static_cast<size_t>(seed) + count <= numbers.size()) {
    return {numbers.begin() + seed, numbers.begin() + seed + static_cast<ptrdiff_t>(count)};
  }
  std::vector<int> values(count);
  std::iota(values.begin(), values.end(), seed);
  return values;
}

inline annulus_status_t Send(annulus_comm_t* comm, const std::vector<int>& values, int peer) {
  return annulus_send(comm, values.data(), values.size(), ANNULUS_INT32, peer);
}

inline annulus_status_t Receive(annulus_comm_t* comm, std::vector<int>* values, int peer) {
  return annulus_recv(comm, values->data(), values->size(), ANNULUS_INT32, peer);
}

inline annulus_request_t* SendAsync(annulus_comm_t* comm, const std::vector<int>& values, int peer) {
  annulus_request_t* request = nullptr;
  EXPECT_EQ(annulus_send_async(comm, values.data(), values.size(), ANNULUS_INT32, peer, &request), ANNULUS_OK);
  return request;
}

inline annulus_request_t* ReceiveAsync(annulus_comm_t* comm, std::vector<int>* values, int peer) {
  annulus_request_t* request = nullptr;
  EXPECT_EQ(annulus_recv_async(comm, values->data(), values->size(), ANNULUS_INT32, peer, &request), ANNULUS_OK);
  return request;
}

inline annulus_status_t Finish(annulus_request_t* request) {
  const annulus_status_t status = annulus_request_wait(request, -1);
  EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
  return status;
}

inline annulus_status_t Sum(annulus_comm_t* comm, int value, int* sum) {
  return annulus_allreduce(comm, &value, sum, 1, ANNULUS_INT32, ANNULUS_SUM);
}

// Over one transport.
class MessagesTest : public testing::TestWithParam<const char*> {
 protected:
  ClusterConfig Config(int nranks) const {
    ClusterConfig config;
    config.nranks = nranks;
    config.transport = GetParam();
    return config;
  }
};

}  // namespace annulus
