// StagedBuffers: the buffers of calls that lie on a device, and the staging memory that stands for them: the ranks do
// the call there, as on host memory, between copies of the inputs and of the outputs. What lies in host memory stays
// where it is.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/calls/buffer_parts.h"
#include "collectives/calls/call_arguments.h"
#include "collectives/reduce/stream_call.h"

namespace annulus {

class StagedBuffers {
 public:
  StagedBuffers(int rank, int nranks) : rank_(rank), nranks_(nranks) {}

  // Where both buffers of a call begin in the staging memory, in bytes. In place they overlap as the user's do.
  struct Place {
    size_t send_at = 0;
    size_t recv_at = 0;
  };

  // The place of a call's buffers from *end on, which becomes the end of theirs. The arguments are complete and valid.
  Place Arrange(const CallArguments& call, size_t* end) const;
  // Most bytes that Arrange adds to *end; 0: none lies on a device.
  size_t MostBytes(const CallArguments& call) const;
  // Has the call use staging memory, and adds the copies that this needs: only what the call reads and writes.
  void Replace(CallArguments* call, const Place& place, std::byte* staging, std::vector<StreamCopy>* inputs,
               std::vector<StreamCopy>* outputs);

 private:
  size_t SendBytesOnDevice(const CallArguments& call) const;
  size_t RecvBytesOnDevice(const CallArguments& call) const;

  const int rank_;
  const int nranks_;
  // Kept so that later calls need no memory.
  std::vector<BufferPart> send_parts_;
  std::vector<BufferPart> recv_parts_;
};

}  // namespace annulus
