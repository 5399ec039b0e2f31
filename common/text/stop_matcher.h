// Stop strings over streamed text.
#pragma once

#include <cstddef>
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
// Pratt 1977) per byte and stop string. Not thread-safe: one object per sequence.
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

  // Tokens consumed: all that were pushed, up to and including the one that completed the match.
  size_t num_tokens() const { return num_tokens_; }

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;  // KMP failure function, [text.size() + 1]
    size_t state = 0;              // bytes of `text` that the input now ends with
  };

  StopMatcher() = default;
  static Pattern MakePattern(std::string text);
  static void Step(char c, Pattern* pattern);
  Output Scan(std::string_view text);
  Output EmitMatch(size_t end);

  std::vector<Pattern> patterns_;
  bool include_stop_string_ = false;
  std::string held_;
  int matched_index_ = -1;
  size_t num_tokens_ = 0;
};

}  // namespace baton::text
