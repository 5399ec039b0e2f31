#include "common/text/detokenizer.h"

#include <string_view>

#include "common/text/utf8.h"

namespace baton::text {

std::string IncrementalDetokenizer::Push(int32_t id) {
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return {};
  pending_ += tokenizer_->TokenBytes(id);
  std::string_view rest = pending_;
  std::string piece;
  while (!rest.empty()) {
    const Utf8Item item = NextUtf8(rest);
    if (item.kind == Utf8Kind::kIncomplete) break;
    piece += item.kind == Utf8Kind::kChar ? rest.substr(0, item.size) : kReplacementCharacter;
    rest.remove_prefix(item.size);
  }
  pending_ = std::string(rest);
  return piece;
}

std::string IncrementalDetokenizer::Flush() {
  const std::string piece = RepairUtf8(pending_);
  pending_.clear();
  return piece;
}

}  // namespace baton::text
