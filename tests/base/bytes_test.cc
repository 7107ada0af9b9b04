// The byte codec: the layout of each value, and readers that survive whatever they are given.
#include "base/bytes.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>

namespace annulus {
namespace {

std::string Sample() {
  const std::array<std::byte, 3> raw = {std::byte{7}, std::byte{8}, std::byte{9}};
  ByteWriter out;
  out.U8(0xfe).U16(0x1234).U32(0x89abcdef).U64(0x0123456789abcdef).I32(-2).I64(-3).F64(1.5);
  out.Bytes(raw).Text("text", 10).Blob("blob").LongText("long");
  return out.bytes();
}

// Reads a whole sample; returns whether it is well formed.
bool ReadSample(ByteReader* in) {
  std::array<std::byte, 3> raw;
  in->U8();
  in->U16();
  in->U32();
  in->U64();
  in->I32();
  in->I64();
  in->F64();
  in->Bytes(raw);
  in->Text(10);
  in->Blob(10);
  in->LongText();
  return in->done();
}

TEST(BytesTest, ValuesAreLittleEndianAndTextsBehindTheirLength) {
  const std::string bytes = ByteWriter().U16(0x0102).U32(0x03040506).I32(-2).Text("ab", 9).Blob("c").bytes();
  EXPECT_EQ(bytes, std::string("\x02\x01"
                               "\x06\x05\x04\x03"
                               "\xfe\xff\xff\xff"
                               "\x02\x00"
                               "ab"
                               "\x01\x00\x00\x00"
                               "c",
                               19));
  EXPECT_EQ(ByteWriter().U64(1).LongText("d").bytes(), std::string("\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0d", 17));
  EXPECT_EQ(ByteWriter().I64(-1).F64(1).bytes(),
            std::string("\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\xf0\x3f", 16));
}

TEST(BytesTest, WhatIsWrittenIsRead) {
  const std::string bytes = Sample();
  ByteReader in(bytes);
  EXPECT_EQ(in.U8(), 0xfe);
  EXPECT_EQ(in.U16(), 0x1234);
  EXPECT_EQ(in.U32(), 0x89abcdef);
  EXPECT_EQ(in.U64(), 0x0123456789abcdef);
  EXPECT_EQ(in.I32(), -2);
  EXPECT_EQ(in.I64(), -3);
  EXPECT_EQ(in.F64(), 1.5);
  std::array<std::byte, 3> raw;
  in.Bytes(raw);
  EXPECT_EQ(raw[2], std::byte{9});
  EXPECT_EQ(in.Text(4), "text");
  EXPECT_EQ(in.Blob(4), "blob");
  EXPECT_FALSE(in.done());
  EXPECT_EQ(in.LongText(), "long");
  EXPECT_TRUE(in.done());
}

TEST(BytesTest, EveryShorterInputFailsAndStaysFailed) {
  const std::string bytes = Sample();
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    ByteReader in(std::string_view(bytes).substr(0, cut));
    EXPECT_FALSE(ReadSample(&in)) << cut;
    EXPECT_FALSE(in.ok()) << cut;
  }
  ByteReader in(std::string_view("abc"));
  EXPECT_EQ(in.U32(), 0u);
  EXPECT_EQ(in.U8(), 0u) << "after a failure nothing is read, though there are bytes";
  std::array<std::byte, 2> raw = {std::byte{1}, std::byte{1}};
  in.Bytes(raw);
  EXPECT_EQ(raw[0], std::byte{0});
  EXPECT_FALSE(in.ok());
}

TEST(BytesTest, AnEndThatIsNotOneIsNoticed) {
  const std::string bytes = Sample() + "x";
  ByteReader in(bytes);
  EXPECT_FALSE(ReadSample(&in));
  EXPECT_TRUE(in.ok());
}

TEST(BytesTest, TextsBeyondTheirLimitAreCutByTheWriterAndRefusedByTheReader) {
  EXPECT_EQ(ByteWriter().Text("abcd", 3).bytes(), ByteWriter().Text("abc", 3).bytes());
  const std::string text = ByteWriter().Text("abcd", 4).bytes();
  EXPECT_EQ(ByteReader(text).Text(4), "abcd");
  EXPECT_EQ(ByteReader(text).Text(3), "");
  const std::string blob = ByteWriter().Blob("abcd").bytes();
  ByteReader in(blob);
  EXPECT_EQ(in.Blob(3), "");
  EXPECT_FALSE(in.ok());
}

TEST(BytesTest, LengthsOfAnySizeAreSafe) {
  for (const uint64_t length : {uint64_t{5}, uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0}}) {
    const std::string bytes = ByteWriter().U64(length).bytes() + "text";
    ByteReader in(bytes);
    EXPECT_EQ(in.LongText(), "");
    EXPECT_FALSE(in.ok()) << length;
  }
  const std::string bytes = ByteWriter().U32(~uint32_t{0}).bytes() + "text";
  ByteReader in(bytes);
  EXPECT_EQ(in.Blob(std::numeric_limits<size_t>::max()), "");
  EXPECT_FALSE(in.ok());
}

TEST(BytesTest, AFixedWriterFillsItsBytesAsAGrowingOneWould) {
  std::array<std::byte, 11> bytes;
  FixedWriter out(bytes);
  out.U8(1).I64(-5);
  EXPECT_FALSE(out.full());
  out.U16(3).Bytes({});
  EXPECT_TRUE(out.full());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
            ByteWriter().U8(1).I64(-5).U16(3).bytes());
}

TEST(BytesDeathTest, AFixedWriterEndsTheProgramRatherThanWriteBehindItsBytes) {
  std::array<std::byte, 3> bytes;
  EXPECT_DEATH(FixedWriter(bytes).U32(1), "");
}

}  // namespace
}  // namespace annulus
