#include "collectives/membership/meeting_point.h"

#include <string.h>  // explicit_bzero
#include <sys/random.h>

#include <cerrno>

#include "base/bytes.h"
#include "base/parse.h"

namespace annulus {
namespace {

constexpr uint32_t kMagic = 0x504D4E41;  // "ANMP"
constexpr uint16_t kVersion = 1;
constexpr uint16_t kMostAddressBytes = 300;
constexpr size_t kKeyBits = 256;
constexpr uint16_t kDrawnKeyBytes = kKeyBits / 4;  // In hexadecimal.
constexpr size_t kFixedBytes = 4 + 2 + 1 + 2 + 2;
static_assert(kFixedBytes + kMostAddressBytes + kDrawnKeyBytes <= MeetingPointBytes::kMost);

}  // namespace

MeetingPoint::~MeetingPoint() { explicit_bzero(key.data(), key.size()); }

std::string MeetingPointKey(const JobRun& run) {
  return "annulus/rendezvous/" + (run.id.empty() ? "no run" : run.id) + "/" + std::to_string(run.restart);
}

MeetingPointBytes::MeetingPointBytes(const MeetingPoint& point) {
  FixedWriter(room_)
      .U32(kMagic)
      .U16(kVersion)
      .U8(static_cast<uint8_t>(point.key_source))
      .Text(point.address, kMostAddressBytes)
      .Text(point.key, kDrawnKeyBytes);
  bytes_ = kFixedBytes + point.address.size() + point.key.size();
}

MeetingPointBytes::~MeetingPointBytes() { explicit_bzero(room_.data(), room_.size()); }

Status MeetingPointBytes::set_used(size_t bytes) {
  if (bytes > kMost) return Status::Invalid(std::to_string(bytes) + " bytes are more than a meeting point has");
  bytes_ = bytes;
  return Status();
}

Status Decode(std::span<const std::byte> bytes, MeetingPoint* point) {
  ByteReader in(bytes);
  const bool is_known = in.U32() == kMagic && in.U16() == kVersion;
  MeetingPoint read;
  const uint8_t key_source = in.U8();
  read.key_source = static_cast<KeySource>(key_source);
  read.address = in.Text(kMostAddressBytes);
  read.key = in.Text(kDrawnKeyBytes);
  const bool has_key = key_source == static_cast<uint8_t>(KeySource::kDrawn);
  std::string host;
  int port = 0;
  if (!is_known || !in.done() || key_source > static_cast<uint8_t>(KeySource::kGiven) ||
      read.key.size() != (has_key ? kDrawnKeyBytes : 0) || !ParseAddress(read.address, &host, &port)) {
    return {Code::kProtocol, std::to_string(bytes.size()) + " bytes that are no meeting point of Annulus"};
  }
  *point = read;
  return Status();
}

Status DrawKey(std::string* key) {
  std::array<unsigned char, kKeyBits / 8> random;
  // Requests of up to 256 bytes are answered in full, unless a signal comes before there is any randomness.
  ssize_t got = -1;
  do {
    got = ::getrandom(random.data(), random.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(random.size())) return Status::System("drawing a job key", errno);
  constexpr char kDigits[] = "0123456789abcdef";
  key->clear();
  key->reserve(kDrawnKeyBytes);
  for (const unsigned char byte : random) {
    key->push_back(kDigits[byte >> 4]);
    key->push_back(kDigits[byte & 15]);
  }
  explicit_bzero(random.data(), random.size());
  return Status();
}

}  // namespace annulus
