// Loads arbitrary bytes as a tokenizer.json. What loads must encode and decode text without a
// crash; and where the file has neither a normaliser nor added tokens nor a prefix space, the text
// must survive the round trip.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "common/text/detokenizer.h"
#include "common/text/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace baton::text;
  constexpr std::string_view kText =
      "Hi there, it's 12 <s>na\xC3\xAFve\xE2\x82\xAC</s>\n\n  e\xCC\x81 \xF0\x9F\x98\x80!";
  const absl::StatusOr<TokenizerParts> parts =
      ParseTokenizerJson({reinterpret_cast<const char*>(data), size});
  if (!parts.ok()) return 0;
  const auto tokenizer = Tokenizer::Create(*parts);
  if (!tokenizer.ok()) return 0;
  const auto ids = (*tokenizer)->Encode(kText, /*add_special_tokens=*/false);
  if (!ids.ok()) return 0;
  const std::string decoded = (*tokenizer)->Decode(*ids, /*skip_special_tokens=*/false);
  const bool is_plain = !parts->nfc && !parts->add_prefix_space && parts->added_tokens.empty();
  if (is_plain && decoded != kText) std::abort();
  IncrementalDetokenizer detokenizer(tokenizer->get(), /*skip_special_tokens=*/false);
  std::string streamed;
  for (const int32_t id : *ids) streamed += detokenizer.Push(id);
  streamed += detokenizer.Flush();
  if (streamed != decoded) std::abort();
  return 0;
}
