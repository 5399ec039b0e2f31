#include "common/engine/sampling/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "common/base/check.h"
#include "common/engine/sampling/top_logits.h"
#include "common/engine/sampling_params.h"

namespace baton::engine {
namespace {

// Candidates sorted at once while the nucleus of top_p is looked for; most nuclei are smaller.
constexpr size_t kSortStep = 256;

bool MoreLikely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token_id < b.token_id;
}

double WeightSum(std::span<const Candidate> candidates) {
  double sum = 0.0;
  for (const Candidate& candidate : candidates) {
    sum += candidate.weight;
  }
  return sum;
}

Candidate MakeCandidate(int32_t token_id, float logit, float highest, float temperature) {
  const double distance = static_cast<double>(logit) - static_cast<double>(highest);
  return {.token_id = token_id,
          .logit = logit,
          .weight = std::exp(distance / static_cast<double>(temperature))};
}

void Collect(std::span<const float> logits, float temperature, std::vector<Candidate>& candidates) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  candidates.clear();
  float highest = kNever;
  for (const float logit : logits) {
    highest = std::max(highest, logit);
  }
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > kNever) {
      candidates.push_back(
          MakeCandidate(static_cast<int32_t>(id), logits[id], highest, temperature));
    }
  }
}

// Puts candidates [begin, end) of the order "most likely first" into their places.
void SortRange(std::vector<Candidate>& candidates, size_t begin, size_t end) {
  const auto first = candidates.begin();
  const auto from = first + static_cast<std::ptrdiff_t>(begin);
  const auto to = first + static_cast<std::ptrdiff_t>(end);
  if (to != candidates.end()) {
    std::nth_element(from, to, candidates.end(), MoreLikely);
  }
  std::sort(from, to, MoreLikely);
}

void KeepTopK(int32_t top_k, std::vector<Candidate>& candidates) {
  const size_t keep = std::min(candidates.size(), static_cast<size_t>(top_k));
  SortRange(candidates, 0, keep);
  candidates.resize(keep);
}

// `sorted` of the candidates are in their places already.
void KeepTopP(float top_p, size_t sorted, std::vector<Candidate>& candidates) {
  const double wanted = static_cast<double>(top_p) * WeightSum(candidates);
  double sum = 0.0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (i >= sorted) {
      const size_t end = std::min(candidates.size(), std::max(kSortStep, sorted * 4));
      SortRange(candidates, sorted, end);
      sorted = end;
    }
    sum += candidates[i].weight;
    if (sum >= wanted) {
      candidates.resize(i + 1);
      return;
    }
  }
}

// The most likely candidate has weight 1.
void KeepMinP(float min_p, std::vector<Candidate>& candidates) {
  std::erase_if(candidates, [&](const Candidate& candidate) {
    return candidate.weight < static_cast<double>(min_p);
  });
}

// top_p and min_p, of candidates of which `sorted` are in their places.
void KeepLikely(const SamplingParams& params, size_t sorted, std::vector<Candidate>& candidates) {
  if (params.top_p < 1.0f) {
    KeepTopP(params.top_p, sorted, candidates);
  }
  if (params.min_p > 0.0f) {
    KeepMinP(params.min_p, candidates);
  }
}

}  // namespace

void SelectCandidates(const SamplingParams& params,
                      std::span<const float> logits,
                      std::vector<Candidate>& candidates) {
  Collect(logits, params.temperature, candidates);
  size_t sorted = 0;
  if (params.top_k > 0) {
    KeepTopK(params.top_k, candidates);
    sorted = candidates.size();
  }
  KeepLikely(params, sorted, candidates);
}

void SelectCandidates(const SamplingParams& params,
                      const TopLogits& top,
                      std::vector<Candidate>& candidates) {
  BATON_CHECK(params.top_k > 0);
  const auto usable = [&](size_t i) {
    return std::min(top.values[i], std::numeric_limits<float>::max());
  };
  candidates.clear();
  const size_t count = std::min(top.ids.size(), static_cast<size_t>(params.top_k));
  for (size_t i = 0; i < count; ++i) {
    candidates.push_back(MakeCandidate(top.ids[i], usable(i), usable(0), params.temperature));
  }
  KeepLikely(params, candidates.size(), candidates);
}

int32_t DrawCandidate(std::span<const Candidate> candidates, double uniform) {
  BATON_CHECK(!candidates.empty());
  const double wanted = uniform * WeightSum(candidates);
  double sum = 0.0;
  for (const Candidate& candidate : candidates) {
    sum += candidate.weight;
    if (sum > wanted) {
      return candidate.token_id;
    }
  }
  return candidates.back().token_id;
}

}  // namespace baton::engine
