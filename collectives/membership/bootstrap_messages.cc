// The encoding of the rendezvous' messages; docs/wire_protocol.md, "Rendezvous and control".
#include "collectives/membership/bootstrap_messages.h"

#include <sys/random.h>

#include <cstdio>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"

namespace annulus {

std::string Encode(const JoinMessage& message) {
  ByteWriter out;
  out.U32(message.nranks);
  out.U64(message.process);
  out.U64(static_cast<uint64_t>(message.patience));
  out.Text(message.library_file, kMostFileBytes);
  out.Blob(message.blob);
  return out.bytes();
}

std::string Encode(const TableMessage& message) {
  ByteWriter out;
  out.U64(message.job_id);
  out.U16(message.door_port);
  out.Blob(message.ticket);
  out.U32(static_cast<uint32_t>(message.blobs.size()));
  for (const std::string& blob : message.blobs) out.Blob(blob);
  return out.bytes();
}

bool Decode(std::span<const std::byte> body, JoinMessage* message) {
  ByteReader in(body);
  message->nranks = in.U32();
  message->process = in.U64();
  const uint64_t patience = in.U64();
  message->patience = patience > static_cast<uint64_t>(kNoDeadline) ? kNoDeadline : static_cast<Nanoseconds>(patience);
  message->library_file = in.Text(kMostFileBytes);
  message->blob = in.Blob(kMostBlobBytes);
  return in.done();
}

bool Decode(std::span<const std::byte> body, int nranks, TableMessage* message) {
  ByteReader in(body);
  message->job_id = in.U64();
  message->door_port = in.U16();
  message->ticket = in.Blob(kTicketBytes);
  if (in.U32() != static_cast<uint32_t>(nranks)) return false;
  message->blobs.clear();
  for (int rank = 0; rank < nranks && in.ok(); ++rank) message->blobs.push_back(in.Blob(kMostBlobBytes));
  return in.done();
}

Hello RendezvousHello(const BootstrapConfig& config) {
  Hello hello;
  hello.purpose = kRendezvousPurpose;
  hello.identity = config.identity;
  hello.nranks = std::numeric_limits<uint32_t>::max();
  hello.rank = static_cast<uint32_t>(config.rank);
  hello.encrypts = config.encrypts;
  hello.library_version = config.library.version;
  hello.library_build = config.library.build;
  return hello;
}

std::string RandomBytes(size_t bytes) {
  std::string random(bytes, '\0');
  ANNULUS_CHECK(::getrandom(random.data(), bytes, 0) == static_cast<ssize_t>(bytes));  // So few are always there.
  return random;
}

uint64_t RandomNumber() {
  const std::string random = RandomBytes(sizeof(uint64_t));
  uint64_t number = 0;
  std::memcpy(&number, random.data(), sizeof number);
  return number;
}

std::string SecondsText(Nanoseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(duration) / kSecond);
  return text;
}

std::string LocalHostOf(const StreamEndpoint& endpoint) {
  const std::string host = HostText(endpoint);
  // A socket for both families shows IPv4 peers in this form.
  constexpr std::string_view kMapped = "::ffff:";
  return host.rfind(kMapped, 0) == 0 ? host.substr(kMapped.size()) : host;
}

}  // namespace annulus
