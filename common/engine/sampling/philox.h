// Philox4x32-10, a counter-based random number generator (Salmon, Moraes, Dror, Shaw: "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011). The output is a pure function of counter and key,
// so a draw needs no state that would have to travel with a sequence.
#pragma once

#include <array>
#include <cstdint>

namespace baton::engine {

// Ten rounds over one 128-bit counter block.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// What a draw depends on, and nothing else: the same on every worker, in every batch.
struct DrawKey {
  uint64_t seed = 0;
  int32_t sequence_index = 0;  // which of the request's n sequences
  int64_t position = 0;        // absolute position that the drawn token takes
};

// Uniform in [0, 1) with 53 random bits.
double UniformDraw(const DrawKey& key);

}  // namespace baton::engine
