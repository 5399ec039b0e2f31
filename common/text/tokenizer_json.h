// Reads the text of a HuggingFace tokenizer.json.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"

#include "common/text/tokenizer.h"

namespace baton::text {

// Layout: "tokenizer.json (byte-level BPE)" of the SwiftKV fact sheet (3.6). Byte-level BPE only.
// `truncation` and `padding` are not applied, as HuggingFace transformers does not apply them
// either unless a call asks for it. Unimplemented names a feature that is known and not supported,
// InvalidArgument names a key or value that is not known or malformed. Thread-safe.
absl::StatusOr<TokenizerParts> ParseTokenizerJson(std::string_view json_text);

}  // namespace baton::text
