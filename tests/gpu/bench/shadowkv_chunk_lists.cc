#include "tests/gpu/bench/shadowkv_chunk_lists.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <random>
#include <vector>

#include "tests/gpu/bench/shadowkv_load.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kSeed = 20240527;

// The chunks of each head that are not static.
std::vector<std::vector<int32_t>> Selectable(const ShadowKvLoad& load,
                                             const std::vector<int32_t>& static_ids) {
  std::vector<std::vector<int32_t>> chunks(static_cast<size_t>(load.config().kv_heads));
  auto first = static_ids.begin();
  for (std::vector<int32_t>& of_head : chunks) {
    const auto last = first + load.layout.static_chunks;
    for (int32_t chunk = 0; chunk < load.layout.coded.chunks; ++chunk) {
      if (!std::binary_search(first, last, chunk)) of_head.push_back(chunk);
    }
    first = last;
  }
  return chunks;
}

// Chunks that a head of a row misses, for each turn.
using Misses = std::array<std::vector<bool>, ShadowKvChunkLists::kTurns>;

// Copies a head's list of each turn out of its chunks in random order: the last `hits` chunks of
// the first list are the first ones of the second. Lists of turns are turn_ids apart.
void TakeTurns(const std::vector<int32_t>& chunks,
               int64_t budget,
               int64_t hits,
               int64_t turn_ids,
               std::vector<int32_t>::iterator target,
               Misses& misses) {
  for (int32_t turn = 0; turn < ShadowKvChunkLists::kTurns; ++turn) {
    const auto first = chunks.begin() + turn * (budget - hits);
    const auto missed = turn == 0 ? first : first + hits;
    std::for_each(missed, missed + (budget - hits), [&](int32_t chunk) {
      misses[static_cast<size_t>(turn)][static_cast<size_t>(chunk)] = true;
    });
    const auto list = target + turn * turn_ids;
    std::copy(first, first + budget, list);
    std::sort(list, list + budget);
  }
}

}  // namespace

ShadowKvChunkLists::ShadowKvChunkLists(const ShadowKvLoad& load,
                                       const std::vector<int32_t>& static_ids,
                                       int64_t hits) {
  const int64_t budget = load.config().budget_chunks();
  const int64_t turn_ids = load.layers * load.layer_ids();
  ids_.resize(static_cast<size_t>(kTurns * turn_ids));
  std::mt19937 random(kSeed);
  std::vector<std::vector<int32_t>> chunks = Selectable(load, static_ids);
  auto target = ids_.begin();
  int64_t missed = 0;
  for (int64_t sequence = 0; sequence < load.sequences(); ++sequence) {
    Misses misses;
    misses.fill(std::vector<bool>(static_cast<size_t>(load.layout.coded.chunks)));
    for (std::vector<int32_t>& of_head : chunks) {
      std::shuffle(of_head.begin(), of_head.end(), random);
      TakeTurns(of_head, budget, hits, turn_ids, target, misses);
      target += budget;
    }
    for (const std::vector<bool>& of_turn : misses) {
      missed += std::count(of_turn.begin(), of_turn.end(), true);
    }
  }
  missed_chunks_ = static_cast<double>(missed) / (kTurns * load.layers);
}

}  // namespace baton::kernels::cuda
