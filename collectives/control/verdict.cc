// The encoding of calls, statuses and verdicts; docs/wire_protocol.md, "Rendezvous and control".
#include "collectives/control/verdict.h"

namespace annulus {
namespace {

// A code from the wire must be a failure: peers never send "OK" or "in progress".
bool ReadFailureCode(ByteReader* in, Code* code) {
  const int32_t value = in->I32();
  if (!in->ok() || value < static_cast<int>(Code::kInvalidArgument) || value > static_cast<int>(Code::kInternal))
    return false;
  *code = static_cast<Code>(value);
  return true;
}

}  // namespace

void WriteCall(const Call& call, ByteWriter* out) {
  out->U64(call.sequence);
  out->U8(static_cast<uint8_t>(call.kind));
  out->U8(static_cast<uint8_t>(call.type));
  out->U8(static_cast<uint8_t>(call.op));
  out->I32(call.root);
  out->U64(call.count);
}

bool ReadCall(ByteReader* in, Call* call) {
  Call read;
  read.sequence = in->U64();
  const uint8_t kind = in->U8();
  const uint8_t type = in->U8();
  const uint8_t op = in->U8();
  read.root = in->I32();
  read.count = in->U64();
  if (!in->ok() || kind > static_cast<uint8_t>(kLastKind) || type >= kNumDataTypes ||
      !IsOp(static_cast<ReduceOp>(op))) {
    return false;
  }
  read.kind = static_cast<CollectiveKind>(kind);
  read.type = static_cast<DataType>(type);
  read.op = static_cast<ReduceOp>(op);
  *call = read;
  return true;
}

void WriteStatus(const Status& status, ByteWriter* out) {
  out->I32(static_cast<int32_t>(status.code()));
  out->I32(status.peer());
  out->I32(status.os_errno());
  out->Text(status.message(), kMessageTextBytes);
}

bool ReadStatus(ByteReader* in, Status* status) {
  Code code;
  if (!ReadFailureCode(in, &code)) return false;
  const int peer = in->I32();
  const int os_errno = in->I32();
  std::string message = in->Text(kMessageTextBytes);
  if (!in->ok()) return false;
  *status = Status(code, std::move(message), peer, os_errno);
  return true;
}

void WriteVerdict(const Verdict& verdict, ByteWriter* out) {
  out->I32(static_cast<int32_t>(verdict.code));
  out->I32(verdict.rank);
  out->I32(verdict.peer);
  WriteCall(verdict.call, out);
  out->I32(verdict.os_errno);
  out->Text(verdict.message, kMessageTextBytes);
  out->Text(verdict.advice, kAdviceTextBytes);
}

bool ReadVerdict(ByteReader* in, Verdict* verdict) {
  Verdict read;
  if (!ReadFailureCode(in, &read.code)) return false;
  read.rank = in->I32();
  read.peer = in->I32();
  if (!ReadCall(in, &read.call)) return false;
  read.os_errno = in->I32();
  read.message = in->Text(kMessageTextBytes);
  read.advice = in->Text(kAdviceTextBytes);
  if (!in->ok()) return false;
  *verdict = std::move(read);
  return true;
}

}  // namespace annulus
