// Random prompts with given lengths.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/loadtest/arrivals/trace.h"
#include "services/loadtest/workload/length_distribution.h"
#include "services/loadtest/workload/workload.h"

namespace baton::loadtest {

struct SyntheticOptions {
  LengthDistribution input;   // tokens (or words) of a turn, the shared prefix not counted
  LengthDistribution output;  // max_tokens
  // Words as text, which the router tokenizes, instead of token ids.
  bool words = false;
  // Tokens (or words) at the front of every first turn, one of `prefixes` different ones.
  int64_t prefix_length = 0;
  int64_t prefixes = 1;
  int64_t turns = 1;
  bool ignore_eos = true;
  uint64_t seed = 1;
};

// Endless. A prompt that would not fit `model`'s context with its answer is cut at its front, or,
// in words, sent as it is. A turn's prompt is the conversation so far and a new input. The n-th
// conversation is the same in every run with the same options.
std::unique_ptr<Workload> MakeSyntheticWorkload(const SyntheticOptions& options,
                                                const inference::v1::ModelInfo& model);

// One request per entry, in order: prompts of the entry's lengths, whose blocks are equal where
// their ids are. What a prompt has beyond its ids' blocks is its own, the same for the same `seed`.
// Greedy in length: exactly output_tokens are asked for (ignore_eos).
std::unique_ptr<Workload> MakeTraceWorkload(std::vector<TraceEntry> trace,
                                            const inference::v1::ModelInfo& model,
                                            uint64_t seed);

}  // namespace baton::loadtest
