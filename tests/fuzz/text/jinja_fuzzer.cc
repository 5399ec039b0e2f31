// Compiles arbitrary bytes as a chat template and renders a small conversation with it. Nothing may
// crash, hang or overflow the stack, and the text must be valid UTF-8.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "nlohmann/json.hpp"

#include "common/text/jinja/template.h"
#include "common/text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace baton::text;
  static const auto* const kContext = [] {
    const auto messages = nlohmann::ordered_json::parse(
        R"([{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "H\u00e9llo\nworld"},
            {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]}])");
    auto* context = new jinja::Dict();
    context->Set(jinja::Value("messages"), *jinja::ValueFromJson(messages));
    context->Set(jinja::Value("tools"), *jinja::ValueFromJson(messages));
    context->Set(jinja::Value("bos_token"), jinja::Value("<s>"));
    context->Set(jinja::Value("add_generation_prompt"), jinja::Value(true));
    return context;
  }();
  const auto compiled = jinja::Template::Compile({reinterpret_cast<const char*>(data), size});
  if (!compiled.ok()) return 0;
  const auto text = compiled->Render(*kContext, absl::UnixEpoch());
  if (text.ok() && FindInvalidUtf8(*text) != std::string_view::npos) std::abort();
  return 0;
}
