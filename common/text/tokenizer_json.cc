#include "common/text/tokenizer_json.h"

#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/text/bounded_json.h"
#include "common/text/concat.h"

namespace baton::text {
namespace {

using nlohmann::json;

absl::Status Malformed(std::string_view where, std::string_view what) {
  return absl::InvalidArgumentError(Concat("tokenizer.json: ", where, " ", what));
}

absl::Status NotSupported(std::string_view where, std::string_view what) {
  return absl::UnimplementedError(Concat("tokenizer.json: ", where, " ", what));
}

// Refuses members of `object` that are not in `known`.
absl::Status CheckKeys(const json& object,
                       std::string_view where,
                       std::initializer_list<std::string_view> known) {
  if (!object.is_object()) return Malformed(where, "must be an object");
  for (const auto& member : object.items()) {
    bool found = false;
    for (const std::string_view key : known) found = found || key == member.key();
    if (!found) return Malformed(where, Concat("has the unknown key \"", member.key(), "\""));
  }
  return absl::OkStatus();
}

// The member, or null when absent.
const json& Member(const json& object, const char* key) {
  static const json kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

absl::StatusOr<bool> ReadBool(const json& object,
                              const char* key,
                              bool fallback,
                              std::string_view where) {
  const json& value = Member(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) return Malformed(Concat(where, ".", key), "must be true or false");
  return value.get<bool>();
}

// A view into `object`.
absl::StatusOr<std::string_view> ReadString(const json& object,
                                            const char* key,
                                            std::string_view where) {
  const json& value = Member(object, key);
  if (!value.is_string()) return Malformed(Concat(where, ".", key), "must be a string");
  return std::string_view(value.get_ref<const std::string&>());
}

absl::StatusOr<int32_t> ReadId(const json& value, std::string_view where) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
      value.get<int64_t>() > std::numeric_limits<int32_t>::max()) {
    return Malformed(where, "must be a token id");
  }
  return static_cast<int32_t>(value.get<int64_t>());
}

absl::StatusOr<std::string_view> ReadType(const json& object, std::string_view where) {
  if (!object.is_object()) return Malformed(where, "must be an object");
  return ReadString(object, "type", where);
}

// --- model ---

bool IsNullOrEmpty(const json& value) {
  return value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty());
}

absl::Status CheckBpeOptions(const json& model) {
  BATON_RETURN_IF_ERROR(CheckKeys(model,
                                  "model",
                                  {"type",
                                   "vocab",
                                   "merges",
                                   "dropout",
                                   "unk_token",
                                   "continuing_subword_prefix",
                                   "end_of_word_suffix",
                                   "fuse_unk",
                                   "byte_fallback",
                                   "ignore_merges"}));
  const json& type = Member(model, "type");  // old GPT-2 files leave it out
  if (!type.is_null() && type != "BPE") {
    return NotSupported("model.type",
                        Concat("is ",
                               type.is_string() ? type.get<std::string>() : "not a string",
                               "; only BPE is supported"));
  }
  BATON_ASSIGN_OR_RETURN(const bool byte_fallback,
                         ReadBool(model, "byte_fallback", false, "model"));
  if (byte_fallback) {
    return NotSupported(
        "model.byte_fallback",
        "is true: SentencePiece-style tokenizers are not supported, only byte-level BPE");
  }
  const json& dropout = Member(model, "dropout");
  if (!dropout.is_null() && dropout != 0.0) return NotSupported("model.dropout", "is set");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!IsNullOrEmpty(Member(model, key))) return NotSupported(Concat("model.", key), "is set");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::pair<std::string, std::string>> ReadMerge(const json& merge, size_t index) {
  const std::string where = Concat("model.merges[", index, "]");
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (!merge.is_string())
    return Malformed(where, "must be \"left right\" or [\"left\", \"right\"]");
  const std::string& both = merge.get_ref<const std::string&>();
  const size_t space = both.find(' ');
  if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
    return Malformed(where, "must hold exactly one space");
  }
  return std::pair(both.substr(0, space), both.substr(space + 1));
}

absl::StatusOr<BpeParts> ReadModel(const json& model) {
  BATON_RETURN_IF_ERROR(CheckBpeOptions(model));
  BpeParts parts;
  const json& vocab = Member(model, "vocab");
  if (!vocab.is_object()) return Malformed("model.vocab", "must be an object");
  parts.vocab.reserve(vocab.size());
  for (const auto& [spelling, id_json] : vocab.items()) {
    BATON_ASSIGN_OR_RETURN(const int32_t id,
                           ReadId(id_json, Concat("model.vocab[\"", spelling, "\"]")));
    parts.vocab.emplace_back(spelling, id);
  }
  const json& merges = Member(model, "merges");
  if (!merges.is_array()) return Malformed("model.merges", "must be an array");
  parts.merges.reserve(merges.size());
  for (const json& merge : merges) {
    BATON_ASSIGN_OR_RETURN(auto pair, ReadMerge(merge, parts.merges.size()));
    parts.merges.push_back(std::move(pair));
  }
  BATON_ASSIGN_OR_RETURN(parts.ignore_merges, ReadBool(model, "ignore_merges", false, "model"));
  return parts;
}

// --- added_tokens ---

absl::StatusOr<AddedToken> ReadAddedToken(const json& entry, std::string_view where) {
  BATON_RETURN_IF_ERROR(CheckKeys(
      entry, where, {"id", "content", "special", "lstrip", "rstrip", "normalized", "single_word"}));
  AddedToken token;
  BATON_ASSIGN_OR_RETURN(token.id, ReadId(Member(entry, "id"), Concat(where, ".id")));
  BATON_ASSIGN_OR_RETURN(const std::string_view content, ReadString(entry, "content", where));
  token.content = std::string(content);
  BATON_ASSIGN_OR_RETURN(token.special, ReadBool(entry, "special", false, where));
  BATON_ASSIGN_OR_RETURN(token.lstrip, ReadBool(entry, "lstrip", false, where));
  BATON_ASSIGN_OR_RETURN(token.rstrip, ReadBool(entry, "rstrip", false, where));
  BATON_ASSIGN_OR_RETURN(token.normalized, ReadBool(entry, "normalized", !token.special, where));
  BATON_ASSIGN_OR_RETURN(token.single_word, ReadBool(entry, "single_word", false, where));
  return token;
}

absl::Status ReadAddedTokens(const json& list, TokenizerParts* parts) {
  if (list.is_null()) return absl::OkStatus();
  if (!list.is_array()) return Malformed("added_tokens", "must be an array");
  for (const json& entry : list) {
    const std::string where = Concat("added_tokens[", parts->added_tokens.size(), "]");
    BATON_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(entry, where));
    parts->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// --- normalizer, pre_tokenizer, post_processor, decoder ---
// A Sequence may hold Sequences; the depth limit of the JSON bounds the recursion.

absl::Status ReadNormalizer(const json& normalizer, TokenizerParts* parts) {
  if (normalizer.is_null()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const std::string_view type, ReadType(normalizer, "normalizer"));
  if (type == "NFC") {
    parts->nfc = true;
    return CheckKeys(normalizer, "normalizer NFC", {"type"});
  }
  if (type == "Sequence") {
    BATON_RETURN_IF_ERROR(CheckKeys(normalizer, "normalizer", {"type", "normalizers"}));
    for (const json& step : Member(normalizer, "normalizers")) {
      BATON_RETURN_IF_ERROR(ReadNormalizer(step, parts));
    }
    return absl::OkStatus();
  }
  return NotSupported("normalizer", Concat("\"", type, "\" is not supported, only NFC"));
}

absl::Status ReadSplit(const json& split, TokenizerParts* parts) {
  BATON_RETURN_IF_ERROR(
      CheckKeys(split, "pre_tokenizer Split", {"type", "pattern", "behavior", "invert"}));
  BATON_ASSIGN_OR_RETURN(const std::string_view behavior,
                         ReadString(split, "behavior", "pre_tokenizer Split"));
  if (behavior != "Isolated") {
    return NotSupported("pre_tokenizer Split.behavior",
                        Concat("\"", behavior, "\" is not supported"));
  }
  BATON_ASSIGN_OR_RETURN(const bool invert,
                         ReadBool(split, "invert", false, "pre_tokenizer Split"));
  if (invert) return NotSupported("pre_tokenizer Split.invert", "is true");
  const json& pattern = Member(split, "pattern");
  BATON_RETURN_IF_ERROR(CheckKeys(pattern, "pre_tokenizer Split.pattern", {"Regex"}));
  BATON_ASSIGN_OR_RETURN(const std::string_view regex,
                         ReadString(pattern, "Regex", "pre_tokenizer Split.pattern"));
  parts->split_patterns.emplace_back(regex);
  return absl::OkStatus();
}

absl::Status ReadByteLevelPreTokenizer(const json& byte_level, TokenizerParts* parts) {
  constexpr std::string_view kWhere = "pre_tokenizer ByteLevel";
  BATON_RETURN_IF_ERROR(
      CheckKeys(byte_level, kWhere, {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  BATON_ASSIGN_OR_RETURN(parts->add_prefix_space,
                         ReadBool(byte_level, "add_prefix_space", true, kWhere));
  BATON_ASSIGN_OR_RETURN(parts->byte_level_regex, ReadBool(byte_level, "use_regex", true, kWhere));
  return absl::OkStatus();
}

// `has_byte_level` becomes true at the ByteLevel stage, which must be the last.
absl::Status ReadPreTokenizer(const json& pre_tokenizer,
                              bool* has_byte_level,
                              TokenizerParts* parts) {
  BATON_ASSIGN_OR_RETURN(const std::string_view type, ReadType(pre_tokenizer, "pre_tokenizer"));
  if (type == "Sequence") {
    BATON_RETURN_IF_ERROR(CheckKeys(pre_tokenizer, "pre_tokenizer", {"type", "pretokenizers"}));
    for (const json& step : Member(pre_tokenizer, "pretokenizers")) {
      BATON_RETURN_IF_ERROR(ReadPreTokenizer(step, has_byte_level, parts));
    }
    return absl::OkStatus();
  }
  if (*has_byte_level)
    return NotSupported("pre_tokenizer", Concat("has ", type, " after ByteLevel"));
  if (type == "Split") return ReadSplit(pre_tokenizer, parts);
  if (type == "ByteLevel") {
    *has_byte_level = true;
    return ReadByteLevelPreTokenizer(pre_tokenizer, parts);
  }
  return NotSupported(
      "pre_tokenizer",
      Concat("\"", type, "\" is not supported, only Split and ByteLevel (byte-level BPE)"));
}

absl::Status ReadTemplateToken(const json& item,
                               const json& special_tokens,
                               std::vector<int32_t>* ids) {
  BATON_ASSIGN_OR_RETURN(
      const std::string_view name,
      ReadString(item, "id", "post_processor TemplateProcessing.single SpecialToken"));
  const std::string where =
      Concat("post_processor TemplateProcessing.special_tokens[\"", name, "\"]");
  if (!special_tokens.is_object() || !special_tokens.contains(std::string(name)))
    return Malformed(where, "is missing");
  const json& token = special_tokens[std::string(name)];
  if (!token.is_object() || !Member(token, "ids").is_array())
    return Malformed(where, "must hold ids");
  for (const json& id_json : token["ids"]) {
    BATON_ASSIGN_OR_RETURN(const int32_t id, ReadId(id_json, where));
    ids->push_back(id);
  }
  return absl::OkStatus();
}

absl::Status ReadTemplate(const json& post, TokenizerParts* parts) {
  constexpr std::string_view kWhere = "post_processor TemplateProcessing";
  BATON_RETURN_IF_ERROR(CheckKeys(post, kWhere, {"type", "single", "pair", "special_tokens"}));
  const json& single = Member(post, "single");
  if (!single.is_array()) return Malformed(kWhere, "must have an array \"single\"");
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool seen_text = false;
  for (const json& item : single) {
    BATON_RETURN_IF_ERROR(
        CheckKeys(item, "post_processor TemplateProcessing.single", {"SpecialToken", "Sequence"}));
    if (item.contains("SpecialToken")) {
      BATON_RETURN_IF_ERROR(ReadTemplateToken(
          item["SpecialToken"], Member(post, "special_tokens"), seen_text ? &after : &before));
    } else if (seen_text || !item.contains("Sequence")) {
      return Malformed(kWhere, "\"single\" must name the text exactly once");
    } else {
      seen_text = true;
    }
  }
  if (!seen_text) return Malformed(kWhere, "\"single\" must name the text exactly once");
  parts->prefix_ids.insert(parts->prefix_ids.begin(), before.begin(), before.end());
  parts->suffix_ids.insert(parts->suffix_ids.end(), after.begin(), after.end());
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const json& post, TokenizerParts* parts) {
  if (post.is_null()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const std::string_view type, ReadType(post, "post_processor"));
  if (type == "ByteLevel") return absl::OkStatus();  // trims offsets only
  if (type == "TemplateProcessing") return ReadTemplate(post, parts);
  if (type == "Sequence") {
    BATON_RETURN_IF_ERROR(CheckKeys(post, "post_processor", {"type", "processors"}));
    for (const json& step : Member(post, "processors")) {
      BATON_RETURN_IF_ERROR(ReadPostProcessor(step, parts));
    }
    return absl::OkStatus();
  }
  return NotSupported("post_processor", Concat("\"", type, "\" is not supported"));
}

absl::Status CheckDecoder(const json& decoder) {
  BATON_ASSIGN_OR_RETURN(const std::string_view type, ReadType(decoder, "decoder"));
  if (type == "ByteLevel") return absl::OkStatus();
  const json& steps = Member(decoder, "decoders");
  if (type == "Sequence" && steps.is_array() && steps.size() == 1) return CheckDecoder(steps[0]);
  return NotSupported("decoder", Concat("\"", type, "\" is not supported, only ByteLevel"));
}

absl::StatusOr<TokenizerParts> ReadTokenizer(const json& root) {
  BATON_RETURN_IF_ERROR(CheckKeys(root,
                                  "file",
                                  {"version",
                                   "truncation",
                                   "padding",
                                   "added_tokens",
                                   "normalizer",
                                   "pre_tokenizer",
                                   "post_processor",
                                   "decoder",
                                   "model"}));
  const json& version = Member(root, "version");
  if (!version.is_null() && version != "1.0") return Malformed("version", "must be \"1.0\"");
  TokenizerParts parts;
  BATON_ASSIGN_OR_RETURN(parts.model, ReadModel(Member(root, "model")));
  BATON_RETURN_IF_ERROR(ReadAddedTokens(Member(root, "added_tokens"), &parts));
  BATON_RETURN_IF_ERROR(ReadNormalizer(Member(root, "normalizer"), &parts));
  bool has_byte_level = false;
  BATON_RETURN_IF_ERROR(ReadPreTokenizer(Member(root, "pre_tokenizer"), &has_byte_level, &parts));
  if (!has_byte_level)
    return NotSupported("pre_tokenizer",
                        "has no ByteLevel stage; only byte-level BPE is supported");
  BATON_RETURN_IF_ERROR(ReadPostProcessor(Member(root, "post_processor"), &parts));
  BATON_RETURN_IF_ERROR(CheckDecoder(Member(root, "decoder")));
  return parts;
}

}  // namespace

absl::StatusOr<TokenizerParts> ParseTokenizerJson(std::string_view json_text) {
  const absl::StatusOr<json> root = ParseBoundedJson(json_text, JsonLimits{});
  if (!root.ok()) return WithContext(root.status(), "tokenizer.json");
  return ReadTokenizer(*root);
}

}  // namespace baton::text
