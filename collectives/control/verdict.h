// Verdict: the failure as every rank of a communicator receives it, and the encoding of the parts that control messages
// share.
//
// Threads: values; one at a time.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "collectives/core/collective.h"

namespace annulus {

struct Verdict {
  Code code = Code::kOk;
  int rank = Status::kNoRank;  // Rank at fault.
  int peer = Status::kNoRank;  // The rank that noticed, or the other end of a link.
  Call call;  // The collective concerned; sequence 0 when there is none, or ranks may have been in several.
  int os_errno = 0;
  std::string message;  // One sentence that names the culprit.
  std::string advice;   // One sentence on what to do.
  bool operator==(const Verdict&) const = default;
};

// Longest texts on the wire; longer ones are cut when written and refused when read.
constexpr uint16_t kMessageTextBytes = 1024;
constexpr uint16_t kAdviceTextBytes = 512;

void WriteCall(const Call& call, ByteWriter* out);
// Returns false when the bytes are not a call: too few, or an unknown kind, type or operation. The Read functions below
// do the same.
bool ReadCall(ByteReader* in, Call* call);

void WriteStatus(const Status& status, ByteWriter* out);
bool ReadStatus(ByteReader* in, Status* status);

void WriteVerdict(const Verdict& verdict, ByteWriter* out);
bool ReadVerdict(ByteReader* in, Verdict* verdict);

}  // namespace annulus
