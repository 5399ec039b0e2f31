#include "services/router/operations/tokenize.h"

#include <utility>

#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/rpc/status_details.h"
#include "services/router/validate/check_request.h"
#include "services/router/validate/encode_prompt.h"

namespace baton::router {

absl::Status Tokenize(const ServedModel& model,
                      const inference::v1::TokenizeRequest& request,
                      inference::v1::TokenizeResponse* response) {
  BATON_RETURN_IF_ERROR(CheckModelName(model, request.model()));
  std::vector<int32_t> ids;
  switch (request.input_case()) {
    case inference::v1::TokenizeRequest::kText: {
      const bool special = !request.has_add_special_tokens() || request.add_special_tokens();
      BATON_ASSIGN_OR_RETURN(ids, EncodeTextPrompt(model, request.text(), special));
      break;
    }
    case inference::v1::TokenizeRequest::kChat: {
      BATON_ASSIGN_OR_RETURN(EncodedChat chat,
                             EncodeChatPrompt(model, request.chat(), absl::Now()));
      ids = std::move(chat.token_ids);
      response->set_rendered(std::move(chat.rendered));
      break;
    }
    case inference::v1::TokenizeRequest::INPUT_NOT_SET:
      return rpc::InvalidField("input", "one of text and chat must be set");
  }
  response->mutable_token_ids()->Add(ids.begin(), ids.end());
  return absl::OkStatus();
}

}  // namespace baton::router
