// Finds the added tokens of a tokenizer.json in text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace baton::text {

// One entry of `added_tokens`. lstrip/rstrip: the match swallows white space on that side.
// single_word: no match beside a word character. normalized: looked for in normalised rather than
// in raw text.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool single_word = false;
};

// Splits text at added tokens, leftmost match first and the longest one there, with the rules of
// HuggingFace tokenizers (AddedVocabulary). Immutable and thread-safe once filled.
class AddedTokenMatcher {
 public:
  // `content` is what to look for: the token's content, normalised if the token is matched in
  // normalised text. Empty content never matches.
  void Add(const AddedToken& token, std::string_view content);

  bool empty() const { return tokens_.empty(); }

  // A run of text without a match (id < 0), or one matched token.
  struct Section {
    int32_t id = -1;
    std::string_view text;
  };

  // Calls `visit` with the sections of `text` (valid UTF-8) in order; stops at the first error of
  // `visit`.
  absl::Status Split(std::string_view text,
                     absl::FunctionRef<absl::Status(const Section&)> visit) const;

 private:
  // Index into tokens_ of the longest token at the front of `text`, -1 when none starts there.
  int32_t LongestAt(std::string_view text) const;

  // Trie over bytes: (node << 8 | byte) -> node; node 0 is the root.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> token_at_node_ = {-1};
  std::vector<bool> starts_token_ = std::vector<bool>(256, false);
  std::vector<AddedToken> tokens_;
};

}  // namespace baton::text
