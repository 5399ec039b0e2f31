#include "common/engine/sampling/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"

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

void Collect(std::span<const float> logits, float temperature, std::vector<Candidate>& candidates) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  candidates.clear();
  float highest = kNever;
  for (const float logit : logits) {
    highest = std::max(highest, logit);
  }
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > kNever) {
      const double weight =
          std::exp((static_cast<double>(logits[id]) - highest) / static_cast<double>(temperature));
      candidates.push_back(
          {.token_id = static_cast<int32_t>(id), .logit = logits[id], .weight = weight});
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
  if (params.top_p < 1.0f) {
    KeepTopP(params.top_p, sorted, candidates);
  }
  if (params.min_p > 0.0f) {
    // The most likely candidate has weight 1.
    std::erase_if(candidates, [&](const Candidate& candidate) {
      return candidate.weight < static_cast<double>(params.min_p);
    });
  }
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
