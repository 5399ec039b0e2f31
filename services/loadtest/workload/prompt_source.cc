#include "services/loadtest/workload/prompt_source.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace baton::loadtest {
namespace {

constexpr std::array kWords = {
    "the",   "a",     "of",    "and",   "to",     "in",     "river", "stone", "light",  "old",
    "green", "house", "man",   "woman", "child",  "time",   "year",  "day",   "way",    "thing",
    "world", "life",  "hand",  "part",  "place",  "week",   "case",  "point", "work",   "fact",
    "night", "water", "road",  "door",  "window", "garden", "paper", "book",  "story",  "music",
    "found", "gave",  "took",  "made",  "said",   "went",   "under", "over",  "before", "after",
    "small", "great", "early", "late",  "warm",   "cold",   "north", "south", "east",   "west"};

}  // namespace

PromptSource::PromptSource(const inference::v1::ModelInfo& model)
    : tokens_(std::max(model.vocab_size(), 1u)) {
  const auto& ends = model.eos_token_ids();
  const auto first = std::ranges::min_element(ends);
  if (first != ends.end() && *first >= tokens_ / 2 && *first < tokens_) {
    tokens_ = std::max(*first, 1u);
  }
  std::ranges::copy_if(
      ends, std::back_inserter(avoided_), [this](uint32_t id) { return id < tokens_; });
}

void PromptSource::AppendTokens(int64_t count,
                                std::mt19937_64& random,
                                std::vector<uint32_t>* tokens) const {
  tokens->reserve(tokens->size() + static_cast<size_t>(count));
  std::uniform_int_distribution<uint32_t> draw(0, tokens_ - 1);
  while (count > 0) {
    const uint32_t token = draw(random);
    if (std::ranges::find(avoided_, token) == avoided_.end() || avoided_.size() >= tokens_) {
      tokens->push_back(token);
      --count;
    }
  }
}

void PromptSource::AppendWords(int64_t count, std::mt19937_64& random, std::string* text) {
  std::uniform_int_distribution<size_t> draw(0, kWords.size() - 1);
  for (int64_t i = 0; i < count; ++i) {
    *text += text->empty() ? "" : " ";
    *text += kWords[draw(random)];
  }
}

}  // namespace baton::loadtest
