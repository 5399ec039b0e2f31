// Token ids to text while they are being generated.
#pragma once

#include <cstdint>
#include <string>

#include "common/text/tokenizer.h"

namespace baton::text {

// Turns token ids into text one at a time. A token may end inside a UTF-8 character: those bytes
// are held back until the character is whole, so that every piece is valid UTF-8 and the pieces
// together are Tokenizer::Decode of the same ids. Not thread-safe: one object per sequence.
class IncrementalDetokenizer {
 public:
  // `tokenizer` must outlive this object.
  IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // The text that became whole with token `id`, often empty inside a multi-byte character.
  std::string Push(int32_t id);

  // The end of the sequence: U+FFFD when a character was left unfinished, else empty.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::string pending_;  // a valid start of one character, at most 3 bytes
};

}  // namespace baton::text
