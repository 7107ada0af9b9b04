/* Rank r's element i is r + i % period, so sums are small whole numbers, exact in any order, and an element that went
 * to the wrong place or came from the wrong rank shows. */

#include "bench/peers/peer_data.h"

#include <stdint.h>
#include <string.h>

enum { kMaxPeriod = 251 }; /* Prime: no power of two that a wrong offset is likely to be a multiple of. */

typedef struct Pattern {
  size_t period;
  size_t element_bytes;
  unsigned char bytes[kMaxPeriod * 4];
} Pattern;

size_t PeerTypeBytes(PeerType type) { return type == kPeerFloat32 ? 4 : 2; }

size_t PeerLargerCount(const PeerCase* work, int size) {
  const int split = work->kind == kPeerReduceScatter || work->kind == kPeerAllgather;
  return split ? work->count * (size_t)size : work->count;
}

static int PassesAround(PeerKind kind) { return kind == kPeerSendrecv || kind == kPeerIsendrecv; }

int PeerIsMessages(PeerKind kind) { return kind == kPeerPingpong || kind == kPeerIpingpong || PassesAround(kind); }

int PeerReceiver(PeerKind kind, int rank, int size) {
  if (PassesAround(kind)) return (rank + 1) % size;
  return (rank ^ 1) < size ? rank ^ 1 : -1;
}

int PeerSender(PeerKind kind, int rank, int size) {
  return PassesAround(kind) ? (rank + size - 1) % size : PeerReceiver(kind, rank, size);
}

/* bfloat16 holds every whole number up to 256, float16 up to 2048. */
static int Period(PeerType type, int size) {
  const int ranks_sum = size * (size - 1) / 2;
  const int longest = type == kPeerFloat32 ? kMaxPeriod : type == kPeerBfloat16 ? (256 - ranks_sum) / size : 31;
  return longest < kMaxPeriod ? longest : kMaxPeriod;
}

int PeerExact(PeerType type, int size) { return size <= 16 && Period(type, size) >= 2; }

/* A small whole number in `type`. */
static void Encode(PeerType type, int value, unsigned char* to) {
  const float number = (float)value;
  uint32_t bits;
  uint16_t half = 0;
  memcpy(&bits, &number, sizeof(bits));
  if (type == kPeerFloat32) {
    memcpy(to, &bits, sizeof(bits));
    return;
  }
  if (type == kPeerBfloat16) half = (uint16_t)(bits >> 16);
  /* binary16: another bias, and the upper 10 of the 23 bits behind the point. */
  if (type == kPeerFloat16 && value > 0) {
    half = (uint16_t)((((bits >> 23) - 127 + 15) << 10) | ((bits >> 13) & 0x3ff));
  }
  memcpy(to, &half, sizeof(half));
}

/* factor * (i % period) + offset for one period. */
static Pattern MakePattern(PeerType type, int size, int factor, int offset) {
  Pattern pattern;
  size_t i;
  pattern.period = (size_t)Period(type, size);
  pattern.element_bytes = PeerTypeBytes(type);
  for (i = 0; i < pattern.period; ++i) {
    Encode(type, factor * (int)i + offset, &pattern.bytes[i * pattern.element_bytes]);
  }
  return pattern;
}

/* Elements from `index` to the end of its period, at most `left`. */
static size_t Run(const Pattern* pattern, size_t index, size_t left) {
  const size_t run = pattern->period - index % pattern->period;
  return run < left ? run : left;
}

static void Write(const Pattern* pattern, size_t first, size_t count, unsigned char* to) {
  size_t i, run;
  for (i = 0; i < count; i += run) {
    run = Run(pattern, first + i, count - i);
    memcpy(to + i * pattern->element_bytes, &pattern->bytes[(first + i) % pattern->period * pattern->element_bytes],
           run * pattern->element_bytes);
  }
}

static size_t CountDifferent(const Pattern* pattern, size_t first, size_t count, const unsigned char* from) {
  const size_t bytes = pattern->element_bytes;
  size_t i, j, run, different = 0;
  for (i = 0; i < count; i += run) {
    const unsigned char* expected = &pattern->bytes[(first + i) % pattern->period * bytes];
    run = Run(pattern, first + i, count - i);
    if (memcmp(from + i * bytes, expected, run * bytes) == 0) continue;
    for (j = 0; j < run; ++j) different += memcmp(from + (i + j) * bytes, expected + j * bytes, bytes) != 0;
  }
  return different;
}

void PeerFill(const PeerCase* work, int rank, int size, void* send, void* recv) {
  const size_t larger = PeerLargerCount(work, size), bytes = PeerTypeBytes(work->type);
  const Pattern pattern = MakePattern(work->type, size, 1, rank);
  const int whole = work->kind != kPeerAllgather;
  const size_t at = work->in_place && !whole ? (size_t)rank * work->count * bytes : 0;
  memset(recv, 0xa5, larger * bytes);
  if (send != recv) memset(send, 0xa5, larger * bytes);
  if (work->kind == kPeerBroadcast && rank != 0) return;
  Write(&pattern, 0, whole ? larger : work->count, (unsigned char*)send + at);
}

size_t PeerCountWrong(const PeerCase* work, int rank, int size, const void* recv) {
  const Pattern sums = MakePattern(work->type, size, size, size * (size - 1) / 2);
  const size_t part_bytes = work->count * PeerTypeBytes(work->type);
  const unsigned char* from = recv;
  size_t wrong = 0;
  int part;
  switch (work->kind) {
    case kPeerBroadcast: {
      const Pattern root = MakePattern(work->type, size, 1, 0);
      return CountDifferent(&root, 0, work->count, from);
    }
    case kPeerAllgather:
      for (part = 0; part < size; ++part) {
        const Pattern given = MakePattern(work->type, size, 1, part);
        wrong += CountDifferent(&given, 0, work->count, from + (size_t)part * part_bytes);
      }
      return wrong;
    case kPeerPingpong:
    case kPeerIpingpong:
    case kPeerSendrecv:
    case kPeerIsendrecv: {
      const int sender = PeerSender(work->kind, rank, size);
      const Pattern sent = MakePattern(work->type, size, 1, sender);
      return sender < 0 ? 0 : CountDifferent(&sent, 0, work->count, from);
    }
    case kPeerReduceScatter:
      if (work->in_place && !kPeerResultAtStart) from += (size_t)rank * part_bytes;
      return CountDifferent(&sums, (size_t)rank * work->count, work->count, from);
    default:
      return CountDifferent(&sums, 0, work->count, from);
  }
}
