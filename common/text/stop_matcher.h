// Stop strings over streamed text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::text {

// Limits on the stop strings of one request.
inline constexpr size_t kMaxStopStrings = 64;
inline constexpr size_t kMaxStopBytes = 4096;  // of one stop string

// Finds the first stop string in text that arrives token by token. Text that may be the start of a
// stop string is held back until it is clear, so nothing of a stop string is ever delivered by
// mistake. The match that ends first wins, the longest one among those ending together; so the
// result does not depend on where token borders fall. Costs one automaton step (Knuth, Morris,
// Pratt 1977) per byte and stop string. Not thread-safe: one object per sequence. Copies share the
// compiled stop strings, three bytes per byte of theirs.
class StopMatcher {
 public:
  // InvalidArgument for an empty or non-UTF-8 stop string or one over the limits. No stop strings
  // is fine: text then passes through unchanged.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stop_strings,
                                            bool include_stop_string);

  struct Output {
    std::string text;      // to deliver now
    bool stopped = false;  // a stop string was found in the text pushed so far
  };

  // Adds the text of one token (may be empty: the token still counts). After a match it does
  // nothing and returns no text, so tokens past the match are neither delivered nor counted.
  Output Push(std::string_view token_text);

  // Adds text that belongs to no token: what the detokenizer flushes at the end of a sequence.
  Output PushFlushed(std::string_view text);

  // The end of the sequence: text held back is delivered, as no stop string can follow.
  std::string Finish();

  bool stopped() const { return matched_index_ >= 0; }

  // Which stop string matched, as an index into the list given to Create; -1 while none has.
  int matched_index() const { return matched_index_; }

  // The stop string that matched; requires stopped().
  const std::string& matched() const {
    return (*patterns_)[static_cast<size_t>(matched_index_)].text;
  }

  // Tokens consumed: all that were pushed, up to and including the one that completed the match.
  size_t num_tokens() const { return num_tokens_; }

 private:
  struct Pattern {
    std::string text;
    std::vector<uint16_t> fallback;  // KMP failure function, [text.size() + 1]
  };
  static_assert(kMaxStopBytes <= UINT16_MAX);

  StopMatcher() = default;
  static Pattern MakePattern(std::string text);
  static void Step(char c, const Pattern& pattern, uint16_t* state);
  Output Scan(std::string_view text);
  Output EmitMatch(size_t end);

  std::shared_ptr<const std::vector<Pattern>> patterns_;
  std::vector<uint16_t> states_;  // per pattern: bytes of its text that the input now ends with
  bool include_stop_string_ = false;
  std::string held_;
  int matched_index_ = -1;
  size_t num_tokens_ = 0;
};

}  // namespace baton::text
