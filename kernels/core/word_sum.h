// A checksum that many threads add up in any order: that of bytes in a device's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace baton::kernels {

inline constexpr size_t kSummedWordBytes = sizeof(uint64_t);

// What word `index` adds to the sum, modulo 2^64: SplitMix64's output for it as the state `index`
// steps on (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, figure
// 16). It is one-to-one in `word`, so a change of one word is always noticed and others but for one
// in 2^64; words that change places are noticed since their steps differ.
constexpr uint64_t SummedWord(uint64_t word, uint64_t index) {
  uint64_t z = word + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// kInvalidArgument when a piece does not begin at a word's alignment or is not of whole words.
absl::Status CheckWords(std::span<const std::span<const std::byte>> pieces);

// The sum of the host's `pieces`, one behind the other, as little-endian words that are numbered
// from 0. As CheckWords.
absl::StatusOr<uint64_t> AddWords(std::span<const std::span<const std::byte>> pieces);

}  // namespace baton::kernels
