// From chat messages to text and token ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

#include "common/text/load_tokenizer.h"

namespace baton::text {

// What a client asks to be rendered. JSON from outside should come through ParseBoundedOrderedJson.
struct ChatRequest {
  // Array of objects, usually {"role": ..., "content": ...}; templates may read other members
  // (tool_calls).
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  // Ends the text with the start of the assistant's turn.
  bool add_generation_prompt = true;
  // Array of tool schemas, null without tools.
  nlohmann::ordered_json tools;
  // Further template variables by name ({"enable_thinking": false}); null or an object.
  nlohmann::ordered_json variables;
  // Name of the template; empty chooses as HuggingFace transformers does: "tool_use" for a request
  // with tools if there is such a template, otherwise "default".
  std::string template_name;
};

// The template that `request` uses. NotFound, naming those there are, when the model has none of
// that name, and FailedPrecondition when it has none at all.
absl::StatusOr<const jinja::Template*> SelectTemplate(const ModelTokenizer& model,
                                                      const ChatRequest& request);

// The text of the chat, special tokens such as BOS included as the template prints them. `now` is
// the time that strftime_now sees, in UTC. InvalidArgument for messages of the wrong shape and for
// what the template refuses, then with the template's own message. Thread-safe.
absl::StatusOr<std::string> RenderChat(const ModelTokenizer& model,
                                       const ChatRequest& request,
                                       absl::Time now);

// RenderChat, then token ids. The one place that knows that a rendered chat is encoded without
// special tokens, since the template has printed BOS itself. A special token spelled out in a
// message becomes that token, as with HuggingFace transformers.
absl::StatusOr<std::vector<int32_t>> EncodeChat(const ModelTokenizer& model,
                                                const ChatRequest& request,
                                                absl::Time now);

}  // namespace baton::text
