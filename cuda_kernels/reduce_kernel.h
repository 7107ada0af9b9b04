// The device kernel for slices, for host and device: what each thread does. reduce_kernels.cu launches it on a GPU;
// reduce_on_host.cc runs the same code thread by thread.
//
// A launch does a batch of slices, some blocks on each. No block waits for another, for the host or for a peer. Threads
// read 16 bytes at a time, with several loads under way, where all operands of a slice have the same alignment
// modulo 16.
//
// Threads: those of the device. Each element is read and written by one thread, so a destination may be a source.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda_kernels/portable.h"
#include "cuda_kernels/reduce_element.h"

namespace annulus::cuda {

constexpr int kMaxSlices = 32;  // Most slices in a batch: 3.25 KiB of arguments; a launch can have 4 KiB.
constexpr int kThreadsPerBlock = 512;
constexpr int kMostListed = 64;  // Sources of a slice, and its further destinations.

// One operation on a slice, as SliceOp (collectives/reduce/reducer.h) describes it. All memory can be accessed by the
// device at the address given here.
struct KernelSlice {
  std::byte* dst[2] = {nullptr, nullptr};
  const std::byte* src[2] = {nullptr, nullptr};
  const std::byte* const* many = nullptr;  // All sources, when there are more than two.
  std::byte* const* more = nullptr;        // Destinations beside those two: num_more.
  uint64_t count = 0;                      // Elements.
  double factor = 1;                       // Factor of source number scaled_source. Sums only.
  uint32_t divisor = 0;                    // More than 1: a sum of several sources is divided.
  int16_t num_sources = 0;
  int16_t scaled_source = -1;
  int16_t num_more = 0;
  // The last block to finish stores done_value at *done, after all results; *finished_blocks counts them, from 0 to 0.
  uint32_t* done = nullptr;
  uint32_t* finished_blocks = nullptr;
  uint32_t done_value = 0;
};

struct KernelBatch {
  KernelSlice slices[kMaxSlices];
};
static_assert(sizeof(KernelBatch) <= 4096);

struct alignas(16) Vector {
  uint32_t words[4];
};

// A pointer into device memory or mapped host memory, which is what the compiler calls global.
template <class Pointer>
ANNULUS_PORTABLE Pointer Global(Pointer pointer) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(pointer));
#endif
  return pointer;
}

template <class Element, class Op>
class SliceThread {
 public:
  // `thread` of all `threads` that work on the slice. `sources` lists its sources: `src` or a copy of `many`; `more`
  // is a copy of slice.more.
  ANNULUS_PORTABLE SliceThread(const KernelSlice& slice, const std::byte* const* sources, std::byte* const* more,
                               uint64_t thread, uint64_t threads)
      : slice_(slice), sources_(sources), more_(more), thread_(thread), threads_(threads) {}

  ANNULUS_PORTABLE void Run() const {
    const uint64_t misaligned = Address(slice_.dst[0]) % sizeof(Vector);
    // The alignment of a complex number is that of its parts, so that none of them may begin with a vector.
    if (!SameAlignment() || misaligned % sizeof(Stored) != 0) return RunUnits<Stored>(0, slice_.count);
    const uint64_t to_aligned = (sizeof(Vector) - misaligned) % sizeof(Vector) / sizeof(Stored);
    const uint64_t head = to_aligned < slice_.count ? to_aligned : slice_.count;
    const uint64_t vectors = (slice_.count - head) / kPerVector;
    RunUnits<Vector>(head, vectors);
    RunUnits<Stored>(0, head);
    RunUnits<Stored>(head + vectors * kPerVector, slice_.count - head - vectors * kPerVector);
  }

 private:
  using Stored = typename Element::Stored;
  static constexpr uint64_t kPerVector = sizeof(Vector) / sizeof(Stored);
  // Loads per source that a thread has under way. Fewer for small elements, whose vectors take much code each.
  static constexpr int kLoads = sizeof(Stored) < 4 ? 2 : 4;

  static ANNULUS_PORTABLE uint64_t Address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

  ANNULUS_PORTABLE const std::byte* Source(int i) const { return Global(sources_[i]); }
  // The first two may be null.
  ANNULUS_PORTABLE std::byte* Destination(int i) const { return i < 2 ? slice_.dst[i] : more_[i - 2]; }

  ANNULUS_PORTABLE bool SameAlignment() const {
    uint64_t differences = slice_.dst[1] != nullptr ? Address(slice_.dst[0]) ^ Address(slice_.dst[1]) : 0;
    for (int i = 0; i < slice_.num_more; ++i) differences |= Address(slice_.dst[0]) ^ Address(more_[i]);
    for (int i = 0; i < slice_.num_sources; ++i) differences |= Address(slice_.dst[0]) ^ Address(Source(i));
    return differences % sizeof(Vector) == 0;
  }

  // The units (vectors or elements) of this thread, of `units` of them from element `first` on.
  template <class Unit>
  ANNULUS_PORTABLE void RunUnits(uint64_t first, uint64_t units) const {
    for (uint64_t unit = thread_; unit < units; unit += kLoads * threads_) RunSome<Unit>(first, unit, units);
  }

  // Up to kLoads units, `threads_` apart. All loads of a source are issued before the first is used.
  template <class Unit>
  ANNULUS_PORTABLE void RunSome(uint64_t first, uint64_t unit, uint64_t units) const {
    Unit result[kLoads];
    Load(0, first, unit, units, result);
    for (int source = 1; source < slice_.num_sources; ++source) {
      Unit next[kLoads];
      Load(source, first, unit, units, next);
      CombineAll(result, next);
    }
    if constexpr (std::is_same_v<Op, Sum>) {
      if (slice_.divisor > 1 && slice_.num_sources > 1) {
        ForEach(result, [&](Stored& each, int, int) { each = Element::Divide(each, slice_.divisor); });
      }
    }
    for (int i = 0; i < 2 + slice_.num_more; ++i) {
      if (Destination(i) == nullptr) continue;
      Unit* const to = reinterpret_cast<Unit*>(Global(Destination(i)) + first * sizeof(Stored));
      ANNULUS_UNROLL
      for (int k = 0; k < kLoads; ++k) {
        const uint64_t at = unit + static_cast<uint64_t>(k) * threads_;
        if (at < units) to[at] = result[k];
      }
    }
  }

  // Bits need not be taken apart into elements.
  template <class Unit>
  static ANNULUS_PORTABLE void CombineAll(Unit (&result)[kLoads], const Unit (&next)[kLoads]) {
    if constexpr (kIsBitwise<Op>) {
      ANNULUS_UNROLL
      for (int i = 0; i < kLoads; ++i) result[i] = CombineUnits(result[i], next[i]);
    } else {
      ForEach(result,
              [&](Stored& each, int i, int k) { each = Element::template Combine<Op>(each, ElementsOf(next[i])[k]); });
    }
  }
  static ANNULUS_PORTABLE uint8_t CombineUnits(uint8_t a, uint8_t b) {
    return static_cast<uint8_t>(CombineBits<Op>(a, b));
  }
  static ANNULUS_PORTABLE Vector CombineUnits(Vector a, const Vector& b) {
    ANNULUS_UNROLL
    for (int word = 0; word < 4; ++word) a.words[word] = CombineBits<Op>(a.words[word], b.words[word]);
    return a;
  }

  template <class Unit>
  ANNULUS_PORTABLE void Load(int source, uint64_t first, uint64_t unit, uint64_t units, Unit (&to)[kLoads]) const {
    const Unit* const from = reinterpret_cast<const Unit*>(Source(source) + first * sizeof(Stored));
    ANNULUS_UNROLL
    for (int k = 0; k < kLoads; ++k) {
      const uint64_t at = unit + static_cast<uint64_t>(k) * threads_;
      to[k] = at < units ? from[at] : Unit{};
    }
    if constexpr (std::is_same_v<Op, Sum>) {
      if (source != slice_.scaled_source) return;
      ForEach(to, [&](Stored& each, int, int) { each = Element::Scale(each, slice_.factor); });
    }
  }

  // Elements of a unit, which stay in registers.
  template <class Unit>
  struct Elements {
    Stored of[sizeof(Unit) / sizeof(Stored)];
    ANNULUS_PORTABLE Stored& operator[](int k) { return of[k]; }
  };
  template <class Unit>
  static ANNULUS_PORTABLE Elements<Unit> ElementsOf(const Unit& unit) {
    return BitsAs<Elements<Unit>>(unit);
  }

  // Calls function(element, index of its unit, index within the unit).
  template <class Unit, class Function>
  static ANNULUS_PORTABLE void ForEach(Unit (&units)[kLoads], Function function) {
    ANNULUS_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      Elements<Unit> elements = ElementsOf(units[i]);
      ANNULUS_UNROLL
      for (int k = 0; k < static_cast<int>(sizeof(Unit) / sizeof(Stored)); ++k) function(elements[k], i, k);
      units[i] = BitsAs<Unit>(elements);
    }
  }

  const KernelSlice& slice_;
  const std::byte* const* const sources_;
  std::byte* const* const more_;
  const uint64_t thread_;
  const uint64_t threads_;
};

}  // namespace annulus::cuda
