// A small byte-level tokenizer for tests, as text of a tokenizer.json.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

#include "common/text/byte_alphabet.h"

namespace baton::text {

// 256 byte tokens (ids 0..255 in byte order), then one token per merge, then `added` from id 1000
// on. No normaliser, a ByteLevel pre-tokenizer that keeps the text whole, no post-processor.
inline nlohmann::json TestTokenizerJson(
    const std::vector<std::pair<std::string, std::string>>& merges = {},
    const std::vector<nlohmann::json>& added = {}) {
  nlohmann::json vocab = nlohmann::json::object();
  int next_id = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const char raw = static_cast<char>(byte);
    vocab[SpellBytes({&raw, 1})] = next_id++;
  }
  nlohmann::json merge_list = nlohmann::json::array();
  for (const auto& [left, right] : merges) {
    merge_list.push_back({left, right});
    if (!vocab.contains(left + right)) vocab[left + right] = next_id++;
  }
  nlohmann::json root;
  root["version"] = "1.0";
  root["truncation"] = nullptr;
  root["padding"] = nullptr;
  root["added_tokens"] = nlohmann::json::array();
  int added_id = 1000;
  for (nlohmann::json token : added) {
    token["id"] = added_id++;
    root["added_tokens"].push_back(token);
  }
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  root["post_processor"] = nullptr;
  root["decoder"] = {{"type", "ByteLevel"}};
  root["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", merge_list}};
  return root;
}

}  // namespace baton::text
