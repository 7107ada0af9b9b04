// Algorithm: the algorithms for collectives, and the names by which users choose one.
//
// Threads: constants.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

namespace annulus {

enum class Algorithm : uint8_t {
#define ANNULUS_ALGORITHM(Name, ...) k##Name,
#define ANNULUS_ONLY_ALGORITHM(Name, ...) k##Name,
#include "collectives/core/algorithms.inc"
#undef ANNULUS_ONLY_ALGORITHM
#undef ANNULUS_ALGORITHM
};

// The order in which contributions are added: that of the ring (docs/determinism.md), with its bits, or another one.
enum class Order : uint8_t { kRing, kOther };

struct AlgorithmName {
  Algorithm algorithm;
  const char* name;  // As in ANNULUS_ALGORITHM.
  Order order;
};

// Algorithms that can be chosen.
inline constexpr AlgorithmName kAlgorithms[] = {
#define ANNULUS_ALGORITHM(Name, name, order) {Algorithm::k##Name, name, order},
#define ANNULUS_ONLY_ALGORITHM(...)
#include "collectives/core/algorithms.inc"
#undef ANNULUS_ONLY_ALGORITHM
#undef ANNULUS_ALGORITHM
};

// Those for calls that only one algorithm does. Nothing is added.
inline constexpr AlgorithmName kOnlyAlgorithms[] = {
#define ANNULUS_ALGORITHM(...)
#define ANNULUS_ONLY_ALGORITHM(Name, name) {Algorithm::k##Name, name, Order::kRing},
#include "collectives/core/algorithms.inc"
#undef ANNULUS_ONLY_ALGORITHM
#undef ANNULUS_ALGORITHM
};

constexpr size_t kAlgorithmCount = std::size(kAlgorithms) + std::size(kOnlyAlgorithms);

// Name of the library's own choice.
inline constexpr const char* kAutoAlgorithm = "auto";

namespace internal {
constexpr auto ListAlgorithmWords() {
  std::array<const char*, std::size(kAlgorithms) + 1> words{kAutoAlgorithm};
  for (size_t i = 0; i < std::size(kAlgorithms); ++i) words[i + 1] = kAlgorithms[i].name;
  return words;
}
}  // namespace internal

// All values of ANNULUS_ALGORITHM.
inline constexpr auto kAlgorithmWords = internal::ListAlgorithmWords();

constexpr const char* AlgorithmText(Algorithm algorithm) {
  for (const AlgorithmName& each : kAlgorithms) {
    if (each.algorithm == algorithm) return each.name;
  }
  for (const AlgorithmName& each : kOnlyAlgorithms) {
    if (each.algorithm == algorithm) return each.name;
  }
  return "";
}

constexpr Order OrderOf(Algorithm algorithm) {
  for (const AlgorithmName& each : kAlgorithms) {
    if (each.algorithm == algorithm) return each.order;
  }
  return Order::kRing;  // Nothing is added.
}

// Returns false and leaves *algorithm unchanged when no algorithm that can be chosen has that name.
constexpr bool FindAlgorithm(std::string_view name, Algorithm* algorithm) {
  for (const AlgorithmName& each : kAlgorithms) {
    if (name != each.name) continue;
    *algorithm = each.algorithm;
    return true;
  }
  return false;
}

// The choice as a setting (base/settings.h): its index in kAlgorithmWords; none: the library's own choice.
constexpr int64_t SettingNumber(const std::optional<Algorithm>& choice) {
  for (size_t i = 0; choice && i < std::size(kAlgorithms); ++i) {
    if (kAlgorithms[i].algorithm == *choice) return static_cast<int64_t>(i) + 1;
  }
  return choice ? static_cast<int64_t>(std::size(kAlgorithmWords)) : 0;  // Not a word of the setting.
}
constexpr void SetSettingNumber(int64_t number, std::optional<Algorithm>* choice) {
  *choice = number == 0 ? std::nullopt : std::optional(kAlgorithms[static_cast<size_t>(number) - 1].algorithm);
}

}  // namespace annulus
