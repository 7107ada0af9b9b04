// Memory of GPUs by descriptors: what a peer may say of it that is not so, and what becomes of what could not be sent,
// did not come or could not be mapped.
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <memory>

#include "collectives/cuda/mapped/cuda_mappings.h"
#include "collectives/cuda/mapped/cuda_pieces.h"
#include "collectives/cuda/mapped/file_post.h"
#include "collectives/reduce/shared_memory.h"
#include "tests/collectives/cuda/cuda_fixture.h"
#include "tests/collectives/cuda/open_files.h"
#include "tests/cuda/mapped_memory.h"
#include "transport/memory/retries.h"

namespace annulus {
namespace {

constexpr size_t kPiece = size_t{64} << 10;  // The stand-in's granularity.

// What this process has exported, as if another had.
class CudaFilesTest : public CudaFixture {
 protected:
  void SetUp() override {
    Start({});
    cuda_ = static_cast<CudaDomain*>(domain_);
    ASSERT_TRUE(cuda_->Use(0, &gpu_).ok());
    ASSERT_TRUE(MappedMemory::Make(cuda_->driver(), gpu_->context(), {3 * kPiece, kPiece, true}, &memory_).ok());
    mappings_.Enter();
  }
  void TearDown() override {
    mappings_.Leave();
    queue_.reset();
    cuda_->pieces().Clear();
    memory_.reset();
    EXPECT_EQ(fake_->Counts().handles, 0);
    EXPECT_EQ(fake_->Counts().ranges, 0);
    CudaFixture::TearDown();
  }

  void Export(size_t bytes, SharedPlace* place, FileLetter* letter) {
    std::shared_ptr<const CudaPieces::Run> run;
    ASSERT_TRUE(cuda_->pieces().Find(*gpu_, memory_->data(), bytes, &run).ok());
    ASSERT_TRUE(run->Export(letter).ok());
    letter->process = place->process = 4711;
    letter->run = run->number();
    std::memcpy(place->handle, &letter->run, sizeof letter->run);
    place->begin = run->begin();
    place->bytes = run->bytes();
    place->files = letter->files.size();
  }
  Status Hold(const SharedPlace& place, const FileLetter* letter) {
    std::byte* found = nullptr;
    const Status status = mappings_.Hold(*gpu_, place, letter, &found);
    if (status.ok()) mappings_.Release(*gpu_, found);
    return status;
  }

  CudaDomain* cuda_ = nullptr;
  const CudaDevice* gpu_ = nullptr;
  std::unique_ptr<MappedMemory> memory_;
  CudaMappings mappings_;
};

TEST_F(CudaFilesTest, SizesThatAreNotSoAreRefused) {
  SharedPlace place;
  FileLetter letter;
  Export(3 * kPiece, &place, &letter);
  SharedPlace wrong = place;
  wrong.bytes += kPiece;
  EXPECT_EQ(Hold(wrong, &letter).code(), Code::kInvalidArgument);
  wrong.bytes = place.bytes - kPiece;
  EXPECT_EQ(Hold(wrong, &letter).code(), Code::kInvalidArgument);
  wrong = place;
  wrong.files = 2;
  EXPECT_EQ(Hold(wrong, &letter).code(), Code::kInvalidArgument);
  wrong = place;
  wrong.begin = UINT64_MAX - kPiece;
  EXPECT_EQ(Hold(wrong, &letter).code(), Code::kInvalidArgument);
  letter.pieces[1].bytes = UINT64_MAX - kPiece + 1;  // With the others the same sum, modulo 2^64.
  letter.pieces[2].bytes = 3 * kPiece;
  EXPECT_EQ(Hold(place, &letter).code(), Code::kInvalidArgument);
  letter.pieces[1].bytes = letter.pieces[2].bytes = kPiece;
  EXPECT_TRUE(Hold(place, &letter).ok());
  // What is mapped is not found under another size.
  wrong = place;
  wrong.bytes += kPiece;
  EXPECT_FALSE(Hold(wrong, &letter).ok());
  EXPECT_EQ(fake_->Counts().ranges, 2);
}

TEST_F(CudaFilesTest, APieceBeyondItsEndIsMappedByNoDriverAndNotTriedAgain) {
  SharedPlace place;
  FileLetter letter;
  Export(2 * kPiece, &place, &letter);
  letter.pieces[0].bytes = 2 * kPiece;
  place.bytes = 3 * kPiece;
  EXPECT_EQ(Hold(place, &letter).code(), Code::kSystem);
  EXPECT_EQ(Hold(place, &letter).code(), Code::kUnsupported);
  EXPECT_EQ(fake_->Counts().ranges, 1) << "but that of the memory itself";
}

TEST_F(CudaFilesTest, AFileThatIsNoMemoryOfAGpuIsRefused) {
  SharedPlace place;
  FileLetter letter;
  Export(kPiece, &place, &letter);
  close(letter.files[0]);
  letter.files[0] = dup(0);
  EXPECT_EQ(Hold(place, &letter).code(), Code::kSystem);
}

TEST_F(CudaFilesTest, WithoutItsLetterAPlaceWaits) {
  SharedPlace place;
  FileLetter letter;
  Export(kPiece, &place, &letter);
  ++letter.process;
  EXPECT_TRUE(Hold(place, &letter).would_block());
  --letter.process;
  ++letter.run;
  EXPECT_TRUE(Hold(place, &letter).would_block());
}

TEST_F(CudaFilesTest, WhatCouldNotBeMappedIsTriedAgainLater) {
  SharedPlace place;
  FileLetter letter;
  Export(kPiece, &place, &letter);
  fake_->Fail("cuMemImportFromShareableHandle", cuda::Result::kOutOfMemory, 0);
  EXPECT_EQ(Hold(place, &letter).code(), Code::kOutOfMemory);
  for (int i = 0; i < Retries::kFirstPause; ++i) EXPECT_EQ(Hold(place, nullptr).code(), Code::kUnsupported);
  EXPECT_TRUE(Hold(place, nullptr).would_block());
  EXPECT_TRUE(Hold(place, &letter).ok());
}

TEST_F(CudaFilesTest, WhatCouldNotBeSentIsOfferedAgainLater) {
  SharedMemory* const shared = queue_->shared();
  SharedPlace place;
  const auto offers = [&] { return shared->Export(memory_->data(), kPiece, &place) == 0; };
  ASSERT_TRUE(offers());
  for (int pause = Retries::kFirstPause; pause < 100; pause *= 2) {
    EXPECT_EQ(shared->Send(place, {1, 2}).code(), Code::kSystem) << "nobody is there";
    for (int i = 0; i < pause; ++i) EXPECT_FALSE(offers());
    ASSERT_TRUE(offers());
  }
  FilePost post;
  FileLetter letter;
  ASSERT_TRUE(post.Await(place.from).ok());
  ASSERT_TRUE(shared->Send(place, post.address()).ok());
  EXPECT_TRUE(post.Take(place.from, &letter));
  // What others have got is offered, whatever becomes of letters with other memory.
  SharedPlace other;
  ASSERT_EQ(shared->Export(memory_->data(), 2 * kPiece, &other), 0);
  EXPECT_EQ(shared->Send(other, {1, 2}).code(), Code::kSystem);
  EXPECT_EQ(shared->Export(memory_->data(), 2 * kPiece, &other), -1);
  EXPECT_TRUE(offers());
}

TEST_F(CudaFilesTest, WhatTheDriverGaveNoDescriptorsOfIsOfferedAgainLater) {
  SharedMemory* const shared = queue_->shared();
  SharedPlace place;
  SharedPlace other;
  ASSERT_EQ(shared->Export(memory_->data(), kPiece, &place), 0);
  fake_->Fail("cuMemExportToShareableHandle", cuda::Result::kNotSupported, 0);
  EXPECT_FALSE(shared->Send(place, {1, 2}).ok());
  for (int i = 0; i < Retries::kFirstPause; ++i) {
    EXPECT_EQ(shared->Export(memory_->data(), kPiece, &place), -1);
    EXPECT_EQ(shared->Export(memory_->data(), 2 * kPiece, &other), 0);
  }
  EXPECT_EQ(shared->Export(memory_->data(), kPiece, &place), 0);
}

TEST_F(CudaFilesTest, WhatDidNotComeIsAskedForAgainLater) {
  SharedMemory* const shared = queue_->shared();
  SharedPlace place;
  FileLetter letter;
  FileSender sender;
  ASSERT_TRUE(sender.Open().ok());
  Export(kPiece, &place, &letter);
  place.from = sender.name();
  std::byte* found = nullptr;
  SharedAddress to;
  const auto import = [&] { return shared->Import(0, place, kPiece, &found); };
  for (int pause = Retries::kFirstPause; pause < 100; pause *= 2) {
    EXPECT_TRUE(import().would_block());
    ASSERT_TRUE(shared->Await(&to).ok());
    EXPECT_TRUE(import().would_block());
    EXPECT_TRUE(import().would_block());
    shared->Release();
    for (int i = 0; i < pause; ++i) EXPECT_EQ(import().code(), Code::kUnsupported);
    shared->Release();
  }
  EXPECT_TRUE(import().would_block());
  ASSERT_TRUE(shared->Await(&to).ok());
  ASSERT_TRUE(sender.Send(to, letter).ok());
  EXPECT_TRUE(import().ok());
  shared->Release();
}

TEST_F(CudaFilesTest, LettersAreMappedOneByOne) {
  SharedMemory* const shared = queue_->shared();
  SharedPlace places[3];
  FileSender sender;
  ASSERT_TRUE(sender.Open().ok());
  std::byte* found = nullptr;
  SharedAddress to;
  for (size_t i = 0; i < 3; ++i) {
    FileLetter letter;
    Export((i + 1) * kPiece, &places[i], &letter);
    places[i].from = sender.name();
    EXPECT_TRUE(i == 2 || shared->Import(0, places[i], kPiece, &found).would_block());
    ASSERT_TRUE(i == 2 || shared->Await(&to).ok());
    ASSERT_TRUE(sender.Send(to, letter).ok());
  }
  const int64_t before = OpenFiles() - fake_->Counts().handles;  // The stand-in keeps one for each.
  EXPECT_TRUE(shared->Import(0, places[0], kPiece, &found).ok());
  EXPECT_EQ(OpenFiles() - fake_->Counts().handles, before);
  EXPECT_EQ(fake_->Counts().imports, 3) << "what is needed of the three letters";
  EXPECT_TRUE(shared->Import(0, places[1], kPiece, &found).ok());
  shared->Release();
}

TEST_F(CudaFilesTest, OnlyWhatChangedIsClosed) {
  SharedPlace places[3];
  FileLetter letters[3];
  Export(3 * kPiece, &places[0], &letters[0]);
  Export(kPiece, &places[1], &letters[1]);
  EXPECT_TRUE(Hold(places[0], &letters[0]).ok());
  EXPECT_TRUE(Hold(places[1], &letters[1]).ok());
  EXPECT_EQ(fake_->Counts().ranges, 3);
  // The second piece is new: what had only the first stays.
  ASSERT_TRUE(memory_->Replace(1).ok());
  Export(2 * kPiece, &places[2], &letters[2]);
  EXPECT_EQ(letters[2].pieces[0].id, letters[0].pieces[0].id);
  EXPECT_NE(letters[2].pieces[1].id, letters[0].pieces[1].id);
  EXPECT_TRUE(Hold(places[2], &letters[2]).ok());
  EXPECT_EQ(fake_->Counts().ranges, 3);
  EXPECT_EQ(cuda_->pieces().At(letters[0].run), nullptr) << "is held by the process that freed it";
  EXPECT_NE(cuda_->pieces().At(letters[1].run), nullptr);
}

}  // namespace
}  // namespace annulus
