#include "kernels/core/word_sum.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/core/landing_memory.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

std::vector<uint64_t> RandomWords(size_t count) {
  std::mt19937_64 random(TestSeed());
  std::vector<uint64_t> words(count);
  for (uint64_t& word : words) word = random();
  return words;
}

uint64_t SumOf(const std::vector<uint64_t>& words) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(words));
  return *AddWords(std::span(&bytes, 1));
}

// The first outputs of SplitMix64 with seed 0, which a word of 0 gives.
TEST(WordSumTest, WordsAreMixedAsBySplitMix64) {
  EXPECT_EQ(SummedWord(0, 0), 0xe220a8397b1dcdafU);
  EXPECT_EQ(SummedWord(0, 1), 0x6e789e6aa1b965f4U);
  EXPECT_EQ(SummedWord(0, 2), 0x06c45d188009454fU);
  EXPECT_EQ(SumOf({0, 0, 0}), 0xe220a8397b1dcdafU + 0x6e789e6aa1b965f4U + 0x06c45d188009454fU);
}

TEST(WordSumTest, EveryFlippedBitIsNoticed) {
  std::vector<uint64_t> words = RandomWords(20);
  const uint64_t sum = SumOf(words);
  for (uint64_t& word : words) {
    for (int bit = 0; bit < 64; ++bit) {
      word ^= uint64_t{1} << bit;
      EXPECT_NE(SumOf(words), sum) << SeedMessage();
      word ^= uint64_t{1} << bit;
    }
  }
}

TEST(WordSumTest, WordsThatChangePlacesAreNoticed) {
  std::vector<uint64_t> words = RandomWords(20);
  words[7] = 0;
  const uint64_t sum = SumOf(words);
  for (size_t i = 0; i < words.size(); ++i) {
    for (size_t j = i + 1; j < words.size(); ++j) {
      std::swap(words[i], words[j]);
      EXPECT_NE(SumOf(words), sum) << i << " and " << j << "; " << SeedMessage();
      std::swap(words[i], words[j]);
    }
  }
}

TEST(WordSumTest, ZerosThatAreMissingAreNoticed) {
  EXPECT_NE(SumOf({0, 0}), SumOf({0}));
  EXPECT_NE(SumOf({0}), SumOf({}));
}

TEST(WordSumTest, HowBytesAreDividedDoesNotMatter) {
  const std::vector<uint64_t> words = RandomWords(100);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(words));
  const std::vector<std::span<const std::byte>> pieces = {
      bytes.first(8), bytes.subspan(8, 0), bytes.subspan(8, 400), bytes.subspan(408)};
  EXPECT_EQ(*AddWords(pieces), SumOf(words)) << SeedMessage();
  EXPECT_EQ(*HostLanding().WordSum(pieces), SumOf(words)) << SeedMessage();
}

TEST(WordSumTest, PartsOfWordsAreRefused) {
  const std::vector<uint64_t> words(4);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(words));
  for (const std::span<const std::byte> piece : {bytes.first(7), bytes.subspan(4, 8)}) {
    EXPECT_EQ(AddWords(std::span(&piece, 1)).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton::kernels
