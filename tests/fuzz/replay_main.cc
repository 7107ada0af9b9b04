// Runs a fuzz target without a fuzzer: every file of its corpus, then seeded random mutations of them.
//
// Usage: replay CORPUS_FILE...   (the same on every run; a failing input is printed as hex by the check that fails)
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Input = std::vector<uint8_t>;

constexpr int kMutations = 20000;
constexpr size_t kMaxBytes = 400;

// Overwrites, flips, inserts, removes or cuts, as fuzzers do.
Input Mutate(Input input, std::mt19937_64* random) {
  const int changes = 1 + static_cast<int>((*random)() % 4);
  for (int i = 0; i < changes; ++i) {
    const uint8_t value = static_cast<uint8_t>((*random)());
    const size_t at = input.empty() ? 0 : (*random)() % input.size();
    switch ((*random)() % 6) {
      case 0:
        if (input.size() < kMaxBytes) input.insert(input.begin() + at, value);
        break;
      case 1:
        if (!input.empty()) input.erase(input.begin() + at);
        break;
      case 2:
        input.resize(at);
        break;
      case 3:
        if (!input.empty()) input[at] ^= static_cast<uint8_t>(1 << value % 8);
        break;
      case 4:
        while (input.size() < kMaxBytes && (*random)() % 64 != 0) input.push_back(static_cast<uint8_t>((*random)()));
        break;
      default:
        if (!input.empty()) input[at] = value;
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Input> corpus = {{}};
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", argv[i]);
      return 1;
    }
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (corpus.size() < 2) {
    std::fprintf(stderr, "no corpus given\n");
    return 1;
  }
  for (const Input& input : corpus) LLVMFuzzerTestOneInput(input.data(), input.size());
  std::mt19937_64 random(1);
  for (int i = 0; i < kMutations; ++i) {
    const Input input = Mutate(corpus[random() % corpus.size()], &random);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu corpus files and %d mutations passed\n", corpus.size() - 1, kMutations);
  return 0;
}
