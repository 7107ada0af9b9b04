// The parts of a user's buffers that one rank's call reads and writes.
//
// Threads: plain functions.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/calls/call_arguments.h"

namespace annulus {

// In bytes, from the start of the buffer.
struct BufferPart {
  size_t begin = 0;
  size_t bytes = 0;
};

// Set *parts to those of the send or the receive buffer, in the order of the ranks; neighbours are one. None where the
// rank does not use the buffer. The arguments are valid, and unused buffers null (ForgetUnused).
void SendParts(const CallArguments& arguments, int rank, int nranks, std::vector<BufferPart>* parts);
void RecvParts(const CallArguments& arguments, int rank, int nranks, std::vector<BufferPart>* parts);

// Where the last part of the send or the receive buffer ends, in bytes from its start; 0 where there is none.
size_t SendEnd(const CallArguments& arguments, int rank, int nranks);
size_t RecvEnd(const CallArguments& arguments, int rank, int nranks);

}  // namespace annulus
