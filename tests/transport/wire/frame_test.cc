// Tests of the frame header and its checksum.
#include "transport/wire/frame.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "transport/wire/crc32c.h"

namespace annulus {
namespace {

using Buffer = std::array<std::byte, kFrameHeaderBytes>;

std::vector<std::byte> Ramp(int first, int step) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < 32; ++i) bytes.push_back(static_cast<std::byte>(first + i * step));
  return bytes;
}

FrameHeader Sample() {
  return {.flags = kFrameChecksummed,
          .bytes = 262144,
          .payload_crc = 0x12345678,
          .sequence = 0x1122334455667788,
          .tag = {{1, 2, 3, 0xffffffffffffffff}}};
}

Buffer Written(const FrameHeader& header) {
  Buffer buffer;
  WriteFrameHeader(header, buffer);
  return buffer;
}

// Changes a field as a peer with a bug would: the header's checksum is right.
template <class Integer>
Status ParseWith(size_t at, Integer value) {
  Buffer buffer = Written(Sample());
  StoreLittle<Integer>(buffer.data() + at, value);
  StoreLittle<uint32_t>(buffer.data() + 60, Crc32c(std::span(buffer).first(60)));
  FrameHeader header;
  return ParseFrameHeader(buffer, &header);
}

bool Mentions(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

TEST(Crc32cTest, GivesTheValuesOfRfc3720) {
  EXPECT_EQ(Crc32c(Ramp(0, 0)), 0x8a9136aau);
  EXPECT_EQ(Crc32c(Ramp(0xff, 0)), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(Ramp(0, 1)), 0x46dd794eu);
  EXPECT_EQ(Crc32c(Ramp(31, -1)), 0x113fdb5cu);
  const char digits[] = "123456789";
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(digits, 9))), 0xe3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
}

TEST(Crc32cTest, PiecesGiveTheSameAsTheWhole) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(10000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 50; ++round) {
    uint32_t crc = 0;
    for (size_t at = 0; at < bytes.size();) {
      const size_t piece = std::min<size_t>(bytes.size() - at, random() % 3000);
      crc = ExtendCrc32c(crc, std::span(bytes).subspan(at, piece));
      at += piece;
    }
    EXPECT_EQ(crc, Crc32c(bytes));
  }
}

TEST(FrameTest, WhatIsWrittenIsParsed) {
  FrameHeader header;
  ASSERT_TRUE(ParseFrameHeader(Written(Sample()), &header).ok());
  EXPECT_EQ(header, Sample());
}

TEST(FrameTest, OneThatAsksComesInPlaceOfASliceAndCarriesNothing) {
  FrameHeader asks;
  asks.type = FrameType::kAsk;
  FrameHeader header;
  ASSERT_TRUE(ParseFrameHeader(Written(asks), &header).ok());
  EXPECT_EQ(header, asks);
  EXPECT_TRUE(Mentions(ParseFrameHeader(Written(asks), &header, FrameType::kResume), "type"));
  asks.bytes = 1;
  EXPECT_TRUE(Mentions(ParseFrameHeader(Written(asks), &header), "payload length is 1, at most 0"));
}

TEST(FrameTest, TheLayoutIsFixed) {
  const Buffer buffer = Written(Sample());
  EXPECT_EQ(std::memcmp(buffer.data(), "\nANF\x01\x01\x01\x00", 8), 0);
  EXPECT_EQ(LoadLittle<uint32_t>(buffer.data() + 8), 262144u);
  EXPECT_EQ(LoadLittle<uint32_t>(buffer.data() + 12), 0x12345678u);
  EXPECT_EQ(LoadLittle<uint64_t>(buffer.data() + 16), 0x1122334455667788u);
  EXPECT_EQ(LoadLittle<uint64_t>(buffer.data() + 24), 1u);
  EXPECT_EQ(LoadLittle<uint64_t>(buffer.data() + 48), 0xffffffffffffffffu);
  EXPECT_EQ(LoadLittle<uint32_t>(buffer.data() + 56), 0u);
}

TEST(FrameTest, EverySingleFlippedBitIsFound) {
  for (size_t bit = 0; bit < 8 * kFrameHeaderBytes; ++bit) {
    Buffer buffer = Written(Sample());
    buffer[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    FrameHeader header;
    EXPECT_EQ(ParseFrameHeader(buffer, &header).code(), Code::kProtocol) << "bit " << bit;
    EXPECT_EQ(header, FrameHeader()) << "the output was written";
  }
}

TEST(FrameTest, EveryWrongFieldIsNamed) {
  EXPECT_TRUE(Mentions(ParseWith<uint32_t>(0, 7), "magic is 0x7"));
  EXPECT_TRUE(Mentions(ParseWith<uint8_t>(4, 2), "version is 0x2, expected 0x1"));
  EXPECT_TRUE(Mentions(ParseWith<uint8_t>(5, 9), "type is 0x9"));
  EXPECT_TRUE(Mentions(ParseWith<uint16_t>(6, 0x8001), "flags is 0x8001"));
  EXPECT_TRUE(Mentions(ParseWith<uint32_t>(8, 0xffffffff), "payload length is 4294967295, at most 1073741824"));
  EXPECT_TRUE(Mentions(ParseWith<uint16_t>(6, 0), "payload checksum"));
  EXPECT_TRUE(Mentions(ParseWith<uint32_t>(56, 1), "reserved"));
  Buffer buffer = Written(Sample());
  buffer[60] ^= std::byte{1};
  FrameHeader header;
  EXPECT_TRUE(Mentions(ParseFrameHeader(buffer, &header), "header checksum"));
}

TEST(FrameTest, TheLargestPayloadIsAllowed) { EXPECT_TRUE(ParseWith<uint32_t>(8, kMaxFramePayload).ok()); }

}  // namespace
}  // namespace annulus
