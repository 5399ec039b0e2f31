// Cuts text into pieces with a regular expression, as the pre-tokenizer of a tokenizer.json asks.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::text {

// The pattern of a ByteLevel pre-tokenizer with use_regex (HuggingFace ByteLevel, from GPT-2).
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Splits with behaviour "Isolated": every match is a piece, and so is every gap between matches.
// PCRE2 with UTF, UCP and JIT. The file's patterns are written for Oniguruma; what that engine
// reads differently is translated (\s) or refused at Create, never silently reinterpreted.
// Immutable and thread-safe after Create.
class RegexSplitter {
 public:
  // Unimplemented for a construct that PCRE2 and Oniguruma read differently, InvalidArgument for a
  // malformed pattern.
  static absl::StatusOr<RegexSplitter> Create(std::string_view pattern);

  RegexSplitter(RegexSplitter&&) noexcept;
  RegexSplitter& operator=(RegexSplitter&&) noexcept;
  ~RegexSplitter();

  // Calls `visit` with each non-empty piece in order; together they are `text` (valid UTF-8). Stops
  // at the first error of `visit`. InvalidArgument when a match exceeds the backtracking limit.
  absl::Status Split(std::string_view text,
                     absl::FunctionRef<absl::Status(std::string_view)> visit) const;

 private:
  struct Code;
  explicit RegexSplitter(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

// The pattern as PCRE2 must see it. \s becomes the White_Space characters, because PCRE2's own \s
// also holds U+180E. Exposed for tests.
absl::StatusOr<std::string> TranslateOnigurumaPattern(std::string_view pattern);

}  // namespace baton::text
