#include "common/text/tokenizer.h"

#include <utility>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/text/byte_alphabet.h"
#include "common/text/concat.h"
#include "common/text/nfc.h"
#include "common/text/tokenizer_json.h"
#include "common/text/utf8.h"

namespace baton::text {
namespace {

constexpr int32_t kMaxTokenId = (1 << 22) - 1;
constexpr size_t kMaxTokenBytesTotal = size_t{1} << 31;

}  // namespace

// State of one Encode call.
struct Tokenizer::Scratch {
  Bpe::Scratch bpe;
  std::vector<int32_t> ids;
};

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::FromJson(std::string_view json_text) {
  BATON_ASSIGN_OR_RETURN(const TokenizerParts parts, ParseTokenizerJson(json_text));
  return Create(parts);
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Create(const TokenizerParts& parts) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  tokenizer->nfc_ = parts.nfc;
  BATON_RETURN_IF_ERROR(tokenizer->AddVocabulary(parts));
  BATON_RETURN_IF_ERROR(tokenizer->AddAddedTokens(parts));
  for (const std::string& pattern : parts.split_patterns) {
    BATON_ASSIGN_OR_RETURN(RegexSplitter splitter, RegexSplitter::Create(pattern));
    tokenizer->splitters_.push_back(std::move(splitter));
  }
  tokenizer->add_prefix_space_ = parts.add_prefix_space;
  if (parts.byte_level_regex) {
    BATON_ASSIGN_OR_RETURN(tokenizer->byte_level_regex_, RegexSplitter::Create(kGpt2Pattern));
  }
  for (const auto* ids : {&parts.prefix_ids, &parts.suffix_ids}) {
    for (const int32_t id : *ids) {
      if (!tokenizer->HasToken(id)) {
        return absl::InvalidArgumentError(
            Concat("post_processor adds id ", id, ", which has no token"));
      }
    }
  }
  tokenizer->prefix_ids_ = parts.prefix_ids;
  tokenizer->suffix_ids_ = parts.suffix_ids;
  return tokenizer;
}

absl::Status Tokenizer::SetTokenBytes(int32_t id, std::string_view content, bool special) {
  if (id < 0 || id > kMaxTokenId) {
    return absl::InvalidArgumentError(
        Concat("id ", id, " of token \"", content, "\" is outside 0..", kMaxTokenId));
  }
  const auto index = static_cast<size_t>(id);
  if (index >= entries_.size()) entries_.resize(index + 1);
  if (entries_[index].known) {
    return absl::InvalidArgumentError(
        Concat("id ", id, " has two tokens, one of them \"", content, "\""));
  }
  // A token with a character outside the byte alphabet stands for its own text (ByteLevel decoder).
  const std::string bytes = BytesFromSpelling(content).value_or(std::string(content));
  if (token_bytes_.size() + bytes.size() > kMaxTokenBytesTotal) {
    return absl::InvalidArgumentError("the vocabulary holds too many bytes");
  }
  entries_[index] = {static_cast<uint32_t>(token_bytes_.size()),
                     static_cast<uint32_t>(bytes.size()),
                     true,
                     special};
  token_bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status Tokenizer::AddVocabulary(const TokenizerParts& parts) {
  BATON_ASSIGN_OR_RETURN(bpe_, Bpe::Create(parts.model));
  for (const auto& [spelling, id] : parts.model.vocab) {
    BATON_RETURN_IF_ERROR(SetTokenBytes(id, spelling, /*special=*/false));
    id_by_content_.emplace(spelling, id);
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::AddAddedTokens(const TokenizerParts& parts) {
  for (const AddedToken& token : parts.added_tokens) {
    const auto [entry, is_new] = id_by_content_.emplace(token.content, token.id);
    if (!is_new && entry->second != token.id) {
      return absl::InvalidArgumentError(
          Concat("added token \"", token.content, "\" has ids ", token.id, " and ", entry->second));
    }
    if (is_new) {
      BATON_RETURN_IF_ERROR(SetTokenBytes(token.id, token.content, token.special));
    } else {
      entries_[static_cast<size_t>(token.id)].special = token.special;
    }
    if (!token.normalized) {
      raw_matcher_.Add(token, token.content);
    } else if (nfc_) {
      BATON_ASSIGN_OR_RETURN(const std::string content, NormalizeNfc(token.content));
      normalized_matcher_.Add(token, content);
    } else {
      normalized_matcher_.Add(token, token.content);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       bool add_special_tokens) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        Concat("text of ", text.size(), " bytes is over the limit of ", kMaxTextBytes));
  }
  const size_t invalid = FindInvalidUtf8(text);
  if (invalid != std::string_view::npos) {
    return absl::InvalidArgumentError(Concat("text is not valid UTF-8 at byte ", invalid));
  }
  Scratch scratch;
  if (add_special_tokens) scratch.ids = prefix_ids_;
  BATON_RETURN_IF_ERROR(
      raw_matcher_.Split(text, [&](const AddedTokenMatcher::Section& section) -> absl::Status {
        if (section.id < 0) return EncodeRawSection(section.text, &scratch);
        scratch.ids.push_back(section.id);
        return absl::OkStatus();
      }));
  if (add_special_tokens) {
    scratch.ids.insert(scratch.ids.end(), suffix_ids_.begin(), suffix_ids_.end());
  }
  return std::move(scratch.ids);
}

absl::Status Tokenizer::EncodeRawSection(std::string_view section, Scratch* scratch) const {
  std::string normalized;
  if (nfc_) {
    BATON_ASSIGN_OR_RETURN(normalized, NormalizeNfc(section));
    section = normalized;
  }
  return normalized_matcher_.Split(section,
                                   [&](const AddedTokenMatcher::Section& part) -> absl::Status {
                                     if (part.id < 0) return EncodePlain(part.text, 0, scratch);
                                     scratch->ids.push_back(part.id);
                                     return absl::OkStatus();
                                   });
}

absl::Status Tokenizer::EncodePlain(std::string_view section,
                                    size_t stage,
                                    Scratch* scratch) const {
  if (stage == splitters_.size()) return EncodeByteLevel(section, scratch);
  return splitters_[stage].Split(
      section, [&](std::string_view piece) { return EncodePlain(piece, stage + 1, scratch); });
}

absl::Status Tokenizer::EncodeByteLevel(std::string_view piece, Scratch* scratch) const {
  std::string prefixed;
  if (add_prefix_space_ && piece[0] != ' ') {
    prefixed = Concat(" ", piece);
    piece = prefixed;
  }
  if (!byte_level_regex_.has_value()) {
    bpe_.Encode(piece, &scratch->bpe, &scratch->ids);
    return absl::OkStatus();
  }
  return byte_level_regex_->Split(piece, [&](std::string_view word) {
    bpe_.Encode(word, &scratch->bpe, &scratch->ids);
    return absl::OkStatus();
  });
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (skip_special_tokens && IsSpecial(id)) continue;
    bytes += TokenBytes(id);
  }
  return RepairUtf8(bytes);
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (!HasToken(id)) return {};
  const Entry& entry = entries_[static_cast<size_t>(id)];
  return std::string_view(token_bytes_).substr(entry.offset, entry.size);
}

bool Tokenizer::HasToken(int32_t id) const {
  return id >= 0 && id < vocab_size() && entries_[static_cast<size_t>(id)].known;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return HasToken(id) && entries_[static_cast<size_t>(id)].special;
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view content) const {
  const auto found = id_by_content_.find(ToAbsl(content));
  if (found == id_by_content_.end()) return std::nullopt;
  return found->second;
}

}  // namespace baton::text
