// Text to token ids and back, as a HuggingFace tokenizer.json describes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

#include "common/text/added_tokens.h"
#include "common/text/bpe.h"
#include "common/text/regex_splitter.h"

namespace baton::text {

// Longest text that Encode takes.
inline constexpr size_t kMaxTextBytes = size_t{64} << 20;

// Everything that a tokenizer.json says, read and checked (tokenizer_json.h).
struct TokenizerParts {
  BpeParts model;
  std::vector<AddedToken> added_tokens;
  bool nfc = false;                         // normalizer
  std::vector<std::string> split_patterns;  // pre_tokenizer: Split stages, in order
  bool add_prefix_space = false;            // pre_tokenizer: ByteLevel
  bool byte_level_regex = false;            // pre_tokenizer: ByteLevel use_regex
  std::vector<int32_t> prefix_ids;          // post_processor: before the text
  std::vector<int32_t> suffix_ids;          // post_processor: after the text
};

// Byte-level BPE tokenizer. Gives the ids of HuggingFace tokenizers for the same file. Immutable:
// all methods are const and may be called from any thread. Time is O(n log n) in the length of the
// text.
class Tokenizer {
 public:
  // Reads the text of a tokenizer.json. Anything in it that this class does not know is an error
  // that names it: Unimplemented for a known feature that is not supported (Metaspace,
  // byte_fallback), InvalidArgument otherwise.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> FromJson(std::string_view json_text);

  // Builds from parts that were read elsewhere.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Create(const TokenizerParts& parts);

  // Token ids of `text`. With `add_special_tokens` the post-processor's tokens (BOS) are put around
  // them. Added tokens that occur in the text become their ids either way. InvalidArgument with the
  // byte offset for invalid UTF-8, and for text over kMaxTextBytes.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens) const;

  // Text of `ids`; bytes that are not UTF-8 become U+FFFD. Ids without a token (rows that pad an
  // embedding) give nothing. With `skip_special_tokens` special tokens give nothing either.
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // Raw bytes of one token, not necessarily whole characters; empty for an id without a token.
  // Lives as long as the tokenizer.
  std::string_view TokenBytes(int32_t id) const;

  // True for ids that have a token.
  bool HasToken(int32_t id) const;

  // True for added tokens marked special.
  bool IsSpecial(int32_t id) const;

  // Id of a token by its content as in the file: an added token, or a vocabulary entry in the byte
  // alphabet.
  std::optional<int32_t> TokenId(std::string_view content) const;

  // Largest id plus one. The model's embedding may have more rows.
  int32_t vocab_size() const { return static_cast<int32_t>(entries_.size()); }

 private:
  struct Entry {
    uint32_t offset = 0;  // into token_bytes_
    uint32_t size = 0;
    bool known = false;
    bool special = false;
  };
  struct Scratch;

  Tokenizer() = default;
  absl::Status SetTokenBytes(int32_t id, std::string_view content, bool special);
  absl::Status AddVocabulary(const TokenizerParts& parts);
  absl::Status AddAddedTokens(const TokenizerParts& parts);
  absl::Status EncodeRawSection(std::string_view section, Scratch* scratch) const;
  absl::Status EncodePlain(std::string_view section, size_t stage, Scratch* scratch) const;
  absl::Status EncodeByteLevel(std::string_view piece, Scratch* scratch) const;

  Bpe bpe_;
  AddedTokenMatcher raw_matcher_;
  AddedTokenMatcher normalized_matcher_;
  bool nfc_ = false;
  std::vector<RegexSplitter> splitters_;
  bool add_prefix_space_ = false;
  std::optional<RegexSplitter> byte_level_regex_;
  std::vector<int32_t> prefix_ids_;
  std::vector<int32_t> suffix_ids_;
  absl::flat_hash_map<std::string, int32_t> id_by_content_;
  std::vector<Entry> entries_;  // by id
  std::string token_bytes_;
};

}  // namespace baton::text
