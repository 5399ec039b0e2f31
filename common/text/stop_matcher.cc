#include "common/text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"

#include "common/text/concat.h"
#include "common/text/utf8.h"

namespace baton::text {

absl::StatusOr<StopMatcher> StopMatcher::Create(std::vector<std::string> stop_strings,
                                                bool include_stop_string) {
  if (stop_strings.size() > kMaxStopStrings) {
    return absl::InvalidArgumentError(
        Concat(stop_strings.size(), " stop strings are over the limit of ", kMaxStopStrings));
  }
  std::vector<Pattern> patterns;
  for (std::string& stop : stop_strings) {
    const size_t index = patterns.size();
    if (stop.empty()) {
      return absl::InvalidArgumentError(Concat("stop string ", index, " is empty"));
    }
    if (stop.size() > kMaxStopBytes) {
      return absl::InvalidArgumentError(
          Concat("stop string ", index, " is over the limit of ", kMaxStopBytes, " bytes"));
    }
    if (FindInvalidUtf8(stop) != std::string_view::npos) {
      return absl::InvalidArgumentError(Concat("stop string ", index, " is not valid UTF-8"));
    }
    patterns.push_back(MakePattern(std::move(stop)));
  }
  StopMatcher matcher;
  matcher.include_stop_string_ = include_stop_string;
  matcher.states_.resize(patterns.size());
  matcher.patterns_ = std::make_shared<const std::vector<Pattern>>(std::move(patterns));
  return matcher;
}

StopMatcher::Pattern StopMatcher::MakePattern(std::string text) {
  Pattern pattern;
  pattern.fallback.assign(text.size() + 1, 0);
  uint16_t k = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    while (k > 0 && text[i] != text[k]) k = pattern.fallback[k];
    if (text[i] == text[k]) ++k;
    pattern.fallback[i + 1] = k;
  }
  pattern.text = std::move(text);
  return pattern;
}

void StopMatcher::Step(char c, const Pattern& pattern, uint16_t* state) {
  while (*state > 0 && pattern.text[*state] != c) *state = pattern.fallback[*state];
  if (pattern.text[*state] == c) ++*state;
}

StopMatcher::Output StopMatcher::Push(std::string_view token_text) {
  if (stopped()) return {{}, true};
  ++num_tokens_;
  return Scan(token_text);
}

StopMatcher::Output StopMatcher::PushFlushed(std::string_view text) {
  if (stopped()) return {{}, true};
  return Scan(text);
}

StopMatcher::Output StopMatcher::Scan(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    for (size_t p = 0; p < states_.size(); ++p) {
      const Pattern& pattern = (*patterns_)[p];
      Step(text[i], pattern, &states_[p]);
      const bool complete = states_[p] == pattern.text.size();
      if (complete && (!stopped() || pattern.text.size() > matched().size())) {
        matched_index_ = static_cast<int>(p);
      }
    }
    if (stopped()) {
      held_ += text.substr(0, i + 1);
      return EmitMatch(held_.size());
    }
  }
  held_ += text;
  size_t keep = 0;
  for (const uint16_t state : states_) keep = std::max<size_t>(keep, state);
  Output output;
  output.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return output;
}

StopMatcher::Output StopMatcher::EmitMatch(size_t end) {
  Output output{std::move(held_), true};
  output.text.resize(include_stop_string_ ? end : end - matched().size());
  held_.clear();
  return output;
}

std::string StopMatcher::Finish() {
  std::fill(states_.begin(), states_.end(), uint16_t{0});
  return std::exchange(held_, {});
}

}  // namespace baton::text
